"""Judges of one answer: samples and their arrival times out of bytes, then faults in sound, pace, words and voice.

`decode` and `sse` read an answer, `playback` plays it, `outcome` judges it; `asr`, `wer` and `speaker_similarity`
listen to it. They know no load: an answer may come from any sender.
"""
