"""Recordings on their way to codes and vectors: `encoder`, `speaker_vectors`, `conversions`."""
