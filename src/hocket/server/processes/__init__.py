"""Several HTTP processes of one server: `supervisor` is their parent's side, `process` what each
runs, `channel` what they say to each other.
"""
