"""The load generator: `generator` times requests that `client` sends, as `run_config` says.

`postprocess` has the answers' words and voices judged after the load; `self_check` measures the generator itself
against `stub_server`; `prometheus` reads the server's own metrics.
"""
