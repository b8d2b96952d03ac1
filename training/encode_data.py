"""Speech → codes of the trained codec: what the talker learns from, 1/30 of the samples' size.

    python -m training.encode_data --data DATA --codec CHECKPOINT --out CODES

Every utterance is encoded on its own, as a reference would be. CODES holds `lines.jsonl.xz` (text, voice, speed, first
frame, frames) and `codes-N.npy`, the codes of a million frames each, ten bits a code (`unpack_codes`).
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.models.moss_codec.codec import MossCodec
from training.export import load_codec
from training.make_data import AUDIO, LINES

#: Utterances encoded together, alike in length.
_BATCH = 256
#: Frames per file: 10 codes of 10 bits each stay under 15 MiB.
_FILE_FRAMES = 1_000_000


def pack_codes(codes_TN: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Ten bits per code, most significant first: uint8 [ceil(T * N * 10 / 8)]."""
    bits = (codes_TN.reshape(-1, 1) >> np.arange(9, -1, -1, dtype=np.uint16)) & 1
    return np.packbits(bits.astype(np.uint8))


def unpack_codes(packed: NDArray[np.uint8], frames: int, codebooks: int) -> NDArray[np.uint16]:
    """The inverse of `pack_codes`: uint16 [frames, codebooks]."""
    bits = np.unpackbits(packed, count=frames * codebooks * 10).reshape(-1, 10).astype(np.uint16)
    return (bits << np.arange(9, -1, -1, dtype=np.uint16)).sum(1, dtype=np.uint16).reshape(frames, codebooks)


def encode(
    codec: MossCodec, audio: NDArray[np.int16], places: list[tuple[int, int]], device: torch.device
) -> list[NDArray[np.uint16]]:
    """Codes uint16 [T, N] of each (first sample, samples) of `audio`, in the given order."""
    codes: list[NDArray[np.uint16]] = [np.empty((0, codec.config.n_codebooks), np.uint16)] * len(places)
    order = sorted(range(len(places)), key=lambda i: places[i][1])
    for start in range(0, len(order), _BATCH):
        group = order[start : start + _BATCH]
        waves = [np.array(audio[places[i][0] : sum(places[i])], np.float32) / 32768 for i in group]
        found = codec.encode_batch([torch.from_numpy(wave_S)[None].to(device) for wave_S in waves])
        for i, codes_TN in zip(group, found, strict=True):
            codes[i] = codes_TN.cpu().numpy().astype(np.uint16)
    return codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True, help="folder written by export")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    start = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    codec = load_codec(args.codec, device)
    lines = [json.loads(row) for row in (args.data / LINES).read_text(encoding="utf-8").splitlines()]
    audio = np.memmap(args.data / AUDIO, np.int16, mode="r")
    codes = encode(codec, audio, [(line["start"], line["samples"]) for line in lines], device)
    args.out.mkdir(parents=True, exist_ok=True)
    frame = 0
    with lzma.open(args.out / f"{LINES}.xz", "wt", encoding="utf-8") as file:
        for line, codes_TN in zip(lines, codes, strict=True):
            row = {"first": frame, "frames": len(codes_TN)} | {key: line[key] for key in ("text", "voice", "speed")}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            frame += len(codes_TN)
    joined = np.concatenate(codes)
    for i, first in enumerate(range(0, len(joined), _FILE_FRAMES)):
        np.save(args.out / f"codes-{i}.npy", pack_codes(joined[first : first + _FILE_FRAMES]))
    print(f"{len(lines)} utterances, {frame} frames, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
