"""The definition of each operation in plain PyTorch; the other columns are tested against it.

A GPU runs it where gradients may be needed, a CPU where `kernels.cpu` has no faster form. `philox`
is the noise of draws. Tests, `kernels.ops` and `kernels.cpu` import the rest.
"""
