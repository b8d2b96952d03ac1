"""Turn reference recordings into what a model reads (`encoder`: codes of `codes`, voice vectors of
`speaker_vectors`), a bounded part per step.

`conversions` does the same for the codec's own sake: audio to codes and codes to audio, beside all
speech.
"""
