"""A checkpoint's files on disk or on the hub, for models, engine and command line; knows no model.

`hub` finds the folder and its `config.json`, `config_file` has the checked sections that
configurations share, `weights` fills a module from safetensors, `extras` reads `hocket.json`,
`voices` the built-in voices, and `files` opens them all. Only `weights` imports torch.
"""
