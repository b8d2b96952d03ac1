"""Turn reference recordings into codes (`encoder`) and voice vectors (`speaker_vectors`), a bounded
part per step.

`conversions` does the same for the codec's own sake: audio to codes and codes to audio, beside all
speech.
"""
