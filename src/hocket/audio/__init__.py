"""Audio files and recordings: `io` reads and writes, `reference` prepares recordings, `codes_file` keeps codes."""
