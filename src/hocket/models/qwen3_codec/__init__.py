"""The 12 Hz codec of Qwen3-TTS. `family.codec_plan` is its face."""
