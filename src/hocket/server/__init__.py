"""The HTTP server: OpenAI-compatible speech in front of engines that run in processes of their own.

`serve` runs it, `app` puts it together, `settings` and `profiles` say how it behaves. `routes/`
holds the HTTP routes, `websocket/` the one for text that arrives in pieces, `speech/` what a
request for speech goes through.
"""
