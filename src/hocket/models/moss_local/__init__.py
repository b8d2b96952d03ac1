"""MOSS-TTS-Local v1.5: backbone and depth transformer. `family.talker_plan` is its face."""
