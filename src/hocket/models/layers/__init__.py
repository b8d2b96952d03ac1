"""Layers and state that families share.

`qwen3` and `qwen3_config` are the backbone, `kv_cache` its keys and values, `codec_state` the state
of codec streams, `fp8` linear layers on 8-bit weights, and `basic` norms and rotary tables.
"""
