"""Triton kernels and their launchers, one module for a kind of operation; only `kernels.ops` imports them."""
