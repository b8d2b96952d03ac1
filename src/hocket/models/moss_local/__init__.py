"""MOSS-TTS-Local: a Qwen3 backbone, and a depth transformer that draws all codes of a frame."""
