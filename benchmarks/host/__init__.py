"""Benchmarks of the host's own work: a scheduler or engine step, the worker's and the server's process boundary.

Each is a command; its docstring shows how to run it.
"""
