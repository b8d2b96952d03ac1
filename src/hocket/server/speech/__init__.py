"""From a checked request to bytes of audio.

`voice` finds who speaks (`fetch` opens the recordings that requests name), `synthesis` sends the
texts to the engine, `encoders` make bytes of its samples, `responses` send them.
"""
