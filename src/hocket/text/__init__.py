"""Text on its way to tokens: `tokenizer`, `join`, `segment`, `pauses`, `normalize`."""
