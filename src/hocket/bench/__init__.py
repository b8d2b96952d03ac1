"""`hocket bench`: load on any OpenAI-compatible speech server, every answer judged as a listener
would (docs/bench.md).

Bottom up: `http`, `dialects`, `dataset` and `faults` say how a server is asked and what can go
wrong; `judge` judges one answer, whoever asked for it; `load` asks, and keeps time; `report` turns
judged answers into figures, tables and pages. `serve` and `isolation` are the two commands made of
these. `engine` measures the engine without a server, and is the only part that imports it.
`environment` says where a figure was measured. `cli` and `options` are the commands' edge:
`cli.bench_app` is all that `hocket` needs.
"""
