"""The 12 Hz codec of Qwen3-TTS: convolutions around a windowed transformer, and Mimi's encoder."""
