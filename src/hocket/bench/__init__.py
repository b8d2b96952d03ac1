"""`hocket bench`: load on any OpenAI-compatible speech server, judged by what a listener would hear (docs/bench.md)."""
