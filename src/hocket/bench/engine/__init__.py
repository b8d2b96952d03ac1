"""`hocket bench engine`: the engine alone, driven in this process, with random weights or a
checkpoint.

`bench` measures, `workload` makes requests like those of Seed-TTS EN, and `random_model` builds
models of real dimensions.
"""
