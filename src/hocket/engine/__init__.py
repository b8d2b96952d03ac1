"""The engine: loads a model and speaks many requests at once, on one device, in one process.

For other packages: `engine.Engine`; `build` (loads models, makes runners, parses devices);
`memory_plan`; `stats.EngineStats`; `references.conversions.Conversions`. Inside, `engine` drives a
step, `intake` takes requests in, `pipeline` launches and collects device work, and `driver` speaks
whole requests. `scheduling` decides, `runners` hold device state, `references` encode recordings.
"""
