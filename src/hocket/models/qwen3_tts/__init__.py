"""Qwen3-TTS (12 Hz): a Qwen3 backbone that draws the first code of a frame, and a code
predictor.
"""
