"""The device state of talker and codec, and the only code that moves data to the device and back."""
