"""Text before it is a prompt: tokens, normalization, pieces, pauses, joins.

Others use `tokenizer.TextTokenizer`, `normalize.normalize_request` and `normalize`,
`segment.split_text` and `SentenceBuffer`, `pauses.PAUSE` and `join.join_texts`. Nothing here knows
a model.
"""
