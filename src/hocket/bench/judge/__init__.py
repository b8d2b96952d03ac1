"""Judges of one answer: from bytes to samples and their arrival times, then to faults in sound,
words and voice.

`decode` and `sse` read an answer, `playback` simulates a player, `outcome` finds faults; `asr`,
`wer` and `speaker_similarity` judge words and voice. None of them depends on the load that sent the
request.
"""
