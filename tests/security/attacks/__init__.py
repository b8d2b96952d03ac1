"""Attacks on a running server, by kind: `python -m tests.security.attacks` (or `make attacks`).

`target` has the server, the attack and its verdict; every other module makes the attacks of some
groups up. An attack holds when the server answers as it should, has not broken, and answered
`/health/live` all the while.
"""
