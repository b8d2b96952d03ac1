"""MOSS-Audio-Tokenizer v1 and v2. `family.codec_plan` is its face."""
