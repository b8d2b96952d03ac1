"""Hold the device state of talker and codec, and move data between host and device.

For the engine: `talker.TalkerRunner` and `codec.CodecRunner`, through the interfaces in
`protocols`. `device` (recorded programs, inputs, results), `padding` (host arrays, no torch) and
`sampling_state` belong to the runners; the memory plan asks the latter for its size.
"""
