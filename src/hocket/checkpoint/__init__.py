"""Files of a checkpoint: `hub` finds it, `config_file` and `weights` read it, `extras` and `voices` go with it."""
