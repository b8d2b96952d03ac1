"""MOSS-Audio-Tokenizer: a codec of causal transformers around a residual quantizer."""
