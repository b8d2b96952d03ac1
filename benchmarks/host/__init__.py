"""Benchmarks of the host's own work: a step of the scheduler and of the engine, the worker's
boundary, the server.

Each is a command, and its docstring shows how to run it.
"""
