"""What the models ask of a device, as operations: `ops.py` is what they call, `reference.py` says in plain PyTorch what
each computes and is what runs on a CPU, and the other files have the Triton kernels that run on a GPU.
"""
