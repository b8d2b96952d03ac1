"""The load generator: `generator` schedules and times requests, `client` sends them, `run_config`
configures both.

`postprocess` judges words and voices after the load, `self_check` measures the generator itself
against `stub_server`, and `prometheus` reads the server's own metrics.
"""
