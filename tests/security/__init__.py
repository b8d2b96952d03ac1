"""Attacks on a running server, and what it does about them."""
