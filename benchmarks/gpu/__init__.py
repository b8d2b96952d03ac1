"""Benchmarks of a GPU: `check` (correctness), `parts` and `kernels` (speed), and `fp8_error`
(precision).

Each is a command, and its docstring shows how to run it. All share `tools`. `golden` belongs to
`check`, `floors` to `parts`; `case`, `cases`, `codec_cases` and `products` belong to `kernels`.
"""
