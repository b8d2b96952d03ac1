"""The HTTP server: OpenAI-compatible speech in front of an engine that runs in a process of its own."""
