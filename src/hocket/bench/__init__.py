"""`hocket bench`: load on any OpenAI-compatible speech server, and a judgement of every answer
(docs/bench.md).

Bottom up: `http`, `dialects`, `dataset` and `faults` define requests and what can go wrong; `judge`
judges one answer, independent of its sender; `load` sends requests and times them; `report` turns
outcomes into figures, tables and pages. `serve` and `isolation` are commands made of these.
`engine` measures the engine without a server, and is the only part that imports it. `environment`
collects where a figure was measured. `cli` and `options` are the edge: others use `cli.bench_app`
alone, and benchmarks use `environment` and `engine`.
"""
