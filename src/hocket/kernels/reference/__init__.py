"""What each operation computes, in plain PyTorch: kernels are tested against it, gradients need it."""
