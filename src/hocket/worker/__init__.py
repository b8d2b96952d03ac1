"""The process boundary: an engine in a process of its own, and its clients on an event loop.

Front ends use `client` (one worker), `pool` (several), `stream` (the audio of one request) and the
nouns of `messages`. The other side is `process`, which loads the engine and runs the loop of
`worker`. `supervisor` and `connection` serve `client` alone.
"""
