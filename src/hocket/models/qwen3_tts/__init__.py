"""Qwen3-TTS (12 Hz): backbone and code predictor. `family.talker_plan` is its face."""
