"""`hocket bench engine`: the engine alone, driven in this process, with random weights or a checkpoint.

`bench` measures; `workload` makes requests like Seed-TTS EN's, `random_model` models of real dimensions.
"""
