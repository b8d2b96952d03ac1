"""Layers and state that families share: `qwen3`, `kv_cache`, `codec_state`, `basic`, `fp8`."""
