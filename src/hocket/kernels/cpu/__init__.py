"""Faster forms of some references, which a CPU runs: they prepare once what all layers of a call share.

They are `ops`'s alone; the kernels are tested against them as well as against the references.
"""
