"""Triton kernels and their launchers, one module for each kind of operation.

`kernels.ops` alone imports them, when it first runs one: Triton comes with PyTorch for GPUs alone.
Each launcher has the signature of its reference, whose docstring defines it. `rows` has the parts
that row kernels share.
"""
