"""Training of the built-in voice: data, codec, talker, and the check of the result.

In the order of a run: `text` writes lines, `make_data` has a teacher speak them, `train_codec`
trains the codec and `export` writes its checkpoint; `encode_data` codes the speech, `train_talker`
trains the talker and `export_talker` writes its checkpoint; `voice_check` judges the voice. The
product's own modules learn; nothing of `hocket` imports this package.
"""
