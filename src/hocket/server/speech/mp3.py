"""The first frame of a streamed mp3, which tells players how much silence the encoder puts before
the speech.

It is a silent frame whose payload is an "Info" tag, as encoders write it into files: flags and,
after the encoder's name, its delay and padding (12 bits each). Players skip the frame, and FFmpeg,
so Chromium, drops the delay as well. A file's tag also holds the number of frames, which a stream
does not know; this one holds a size with all bits set, as the header of a streamed wav does. With
neither, FFmpeg would play the frame.
"""

from __future__ import annotations

import struct

#: LAME's delay.
_ENCODER_DELAY = 576
#: Samples that players drop at the beginning: that, and the delay of every mp3 decoder.
DELAY_SAMPLES = _ENCODER_DELAY + 529

_HAS_SIZE = 2
_UNKNOWN = 0xFFFFFFFF
#: FFmpeg trusts the delay of encoders that it knows by name.
_NAME = b"Lavf".ljust(9, b"\0")
#: Revision, lowpass, replay gain, flags and bit rate.
_UNSAID = bytes(1 + 1 + 8 + 1 + 1)

_MPEG_1, _MPEG_2 = 3, 2
_PADDED = 0b10
_MONO = 3


def info_frame(first_frame: bytes) -> bytes:
    """The tag's frame, to be sent before `first_frame`: Layer III at a constant bit rate, without
    CRC.
    """
    header = bytearray(first_frame[:4])
    header[2] &= ~_PADDED
    is_mpeg_1 = header[1] >> 3 & 3 == _MPEG_1
    is_mono = header[3] >> 6 == _MONO
    side_bytes = {(True, False): 32, (True, True): 17, (False, False): 17, (False, True): 9}[
        is_mpeg_1, is_mono
    ]
    delays = (_ENCODER_DELAY << 12).to_bytes(3, "big")
    tag = b"Info" + struct.pack(">II", _HAS_SIZE, _UNKNOWN) + _NAME + _UNSAID + delays
    return (bytes(header) + bytes(side_bytes) + tag).ljust(_frame_bytes(header), b"\0")


def _frame_bytes(header: bytearray) -> int:
    version = header[1] >> 3 & 3
    if version == _MPEG_1:
        rates, bits = (
            (44_100, 48_000, 32_000),
            (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
        )
    else:
        rates = (22_050, 24_000, 16_000) if version == _MPEG_2 else (11_025, 12_000, 8_000)
        bits = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    bytes_per_second = bits[(header[2] >> 4) - 1] * 1000 // 8
    samples = 1152 if version == _MPEG_1 else 576
    return samples * bytes_per_second // rates[header[2] >> 2 & 3]
