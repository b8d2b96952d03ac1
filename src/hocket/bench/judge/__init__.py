"""Judges of one answer: from bytes to samples and their arrival times, then to faults in sound,
words and voice.

`decode` and `sse` read an answer, `playback` simulates a player, `outcome` finds faults; `asr`,
`wer`, `speaker_similarity` and `speaking_rate` judge words, voice and pace. None of them depends on
the load that sent the request.
"""
