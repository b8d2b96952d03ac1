"""Benchmarks of a GPU: `check` (is it right?), `parts`, `kernels` (how fast?) and `fp8_error`.

Each is a command; its docstring shows how to run it. They share `tools`, and `case` for inputs of kernels.
"""
