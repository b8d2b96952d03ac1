"""Speech → codes of the trained codec, from which the talker learns: 1/30 of the samples' size.

    python -m training.encode_data --data DATA --codec CHECKPOINT --out CODES

Every utterance is encoded on its own, as a reference would be. CODES holds `lines.jsonl.xz` (text,
voice, speed, first frame, frames) and `codes-N.npy`, the codes of a million frames each, ten bits a
code (`unpack_codes`).
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
from torch import Tensor

from hocket.models.codec import WHOLE_CHUNK_FRAMES
from hocket.models.moss_codec.codec import MossCodec
from training.data import complete_lines
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
    return (
        (bits << np.arange(9, -1, -1, dtype=np.uint16))
        .sum(1, dtype=np.uint16)
        .reshape(frames, codebooks)
    )


@torch.inference_mode()
def encode(
    codec: MossCodec, audio: NDArray[np.int16], places: list[tuple[int, int]], device: torch.device
) -> list[NDArray[np.uint16]]:
    """Codes uint16 [T, N] of each (first sample, samples) of `audio`, in the given order, as
    `encode_whole` makes them.

    Utterances alike in length go together: one upload and one download per batch, nothing per
    utterance on the device.
    """
    codes: list[NDArray[np.uint16]] = [np.empty((0, codec.config.n_codebooks), np.uint16)] * len(
        places
    )
    frame_samples = codec.config.frame_samples
    frames = [samples // frame_samples for _, samples in places]
    order = sorted((i for i in range(len(places)) if frames[i] > 0), key=frames.__getitem__)
    for start in range(0, len(order), _BATCH):
        group = order[start : start + _BATCH]
        # Sorted: the last is the longest.
        pcm_BS = np.zeros((len(group), frames[group[-1]] * frame_samples), np.int16)
        for b, i in enumerate(group):
            length = frames[i] * frame_samples
            pcm_BS[b, :length] = audio[places[i][0] : places[i][0] + length]
        counts_B = torch.tensor([frames[i] for i in group], device=device)
        codes_BTN = _encode_padded(codec, torch.from_numpy(pcm_BS).to(device), counts_B)
        found = codes_BTN.to(torch.int16).cpu().numpy().astype(np.uint16)
        for b, i in enumerate(group):
            codes[i] = found[b, : frames[i]].copy()
    return codes


def _encode_padded(codec: MossCodec, pcm_BS: Tensor, counts_B: Tensor) -> Tensor:
    """int16 samples with `counts_B` real frames -> codes [B, T, N] with as many real ones."""
    batch, frame_samples = len(pcm_BS), codec.config.frame_samples
    state = codec.new_encoder_state(batch, WHOLE_CHUNK_FRAMES)
    rows_B = torch.arange(batch, device=pcm_BS.device)
    codes = []
    for i, chunk_BS in enumerate(torch.split(pcm_BS, WHOLE_CHUNK_FRAMES * frame_samples, dim=1)):
        frames = chunk_BS.shape[1] // frame_samples
        left_B = (counts_B - i * WHOLE_CHUNK_FRAMES).clamp(0, frames)
        codes.append(
            codec.encode(chunk_BS[:, None].float() / 32768, state, rows_B, left_B * frame_samples)
        )
    return torch.cat(codes, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True, help="folder written by export")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    start = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    codec = load_codec(args.codec, device)
    lines = complete_lines(args.data)
    audio = np.memmap(args.data / AUDIO, np.int16, mode="r")
    codes = encode(codec, audio, [(line["start"], line["samples"]) for line in lines], device)
    args.out.mkdir(parents=True, exist_ok=True)
    frame = 0
    with lzma.open(args.out / f"{LINES}.xz", "wt", encoding="utf-8") as file:
        for line, codes_TN in zip(lines, codes, strict=True):
            row = {"first": frame, "frames": len(codes_TN)} | {
                key: line[key] for key in ("text", "voice", "speed")
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            frame += len(codes_TN)
    joined = np.concatenate(codes)
    for i, first in enumerate(range(0, len(joined), _FILE_FRAMES)):
        np.save(args.out / f"codes-{i}.npy", pack_codes(joined[first : first + _FILE_FRAMES]))
    print(f"{len(lines)} utterances, {frame} frames, {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
