"""Helpers that tests (and benchmarks) import: the fake engine, tiny engines on golden checkpoints,
servers on loopback, and plain second implementations to compare with.
"""
