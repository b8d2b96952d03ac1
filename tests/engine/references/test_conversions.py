"""Codec conversions: the parts equal the whole, and errors end only their own conversion."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hocket.core import AudioChunk
from hocket.engine.references.conversions import MAX_WAITING, PIECE_FRAMES, Conversions
from hocket.errors import CapacityError, InvalidRequestError
from tests.support.tiny_engine import FRAME_SAMPLES, codec


def noise(frames: float, seed: int = 0) -> NDArray[np.float32]:
    return (
        np.random.default_rng(seed)
        .normal(0, 0.2, (2, int(frames * FRAME_SAMPLES)))
        .astype(np.float32)
    )


def some_codes(frames: int, n: int = 12, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, codec().config.codebook_size, (frames, n))


def drained(conversions: Conversions) -> dict[str, list[AudioChunk]]:
    heard: dict[str, list[AudioChunk]] = {}
    while not conversions.idle:
        for chunk in conversions.step():
            heard.setdefault(chunk.request_id, []).append(chunk)
    return heard


@pytest.mark.parametrize("frames", [1, PIECE_FRAMES, PIECE_FRAMES + 1, 3 * PIECE_FRAMES - 1])
def test_pieces_equal_the_whole(frames: int) -> None:
    conversions = Conversions(codec())
    conversions.encode("all", noise(frames), None)
    conversions.decode("audio", some_codes(frames))
    conversions.encode("few", noise(frames, 1), 3)
    heard = drained(conversions)
    assert all(len(chunk.codes) <= PIECE_FRAMES for chunks in heard.values() for chunk in chunks)
    assert all(
        chunks[-1].end is not None and chunks[-1].end.finish_reason == "stop"
        for chunks in heard.values()
    )
    for name, samples, n in (("all", noise(frames), None), ("few", noise(frames, 1), 3)):
        codes = np.concatenate([chunk.codes for chunk in heard[name][:-1]])
        assert np.array_equal(codes, codec().encode_whole(torch.from_numpy(samples), n).numpy())
    audio = np.concatenate([chunk.samples for chunk in heard["audio"]], axis=1)
    whole = codec().decode_whole(torch.from_numpy(some_codes(frames))).numpy()
    assert audio.shape == whole.shape
    assert np.abs(audio - whole).max() < 1e-5 * np.abs(whole).max()


def test_an_unfinished_frame_is_filled_up() -> None:
    conversions = Conversions(codec())
    conversions.encode("x", noise(1.5), None)
    codes = np.concatenate([chunk.codes for chunk in drained(conversions)["x"][:-1]])
    padded = np.pad(noise(1.5), ((0, 0), (0, FRAME_SAMPLES // 2)))
    assert np.array_equal(codes, codec().encode_whole(torch.from_numpy(padded)).numpy())


def test_a_cancelled_one_ends_at_once() -> None:
    conversions = Conversions(codec())
    for name in ("a", "b", "c"):
        conversions.encode(name, noise(4 * PIECE_FRAMES), None)
    conversions.step()
    conversions.cancel("a")
    conversions.cancel("c")
    conversions.cancel("nobody")
    heard = drained(conversions)
    reasons = {
        name: chunks[-1].end.finish_reason for name, chunks in heard.items() if chunks[-1].end
    }
    assert reasons == {"a": "cancelled", "b": "stop", "c": "cancelled"}
    assert np.array_equal(
        np.concatenate([chunk.codes for chunk in heard["b"][:-1]]),
        codec().encode_whole(torch.from_numpy(noise(4 * PIECE_FRAMES))).numpy(),
    )


def test_refusals() -> None:
    conversions = Conversions(codec())
    size, n = codec().config.codebook_size, codec().config.n_codebooks
    with pytest.raises(InvalidRequestError, match=r"shape \(1, 24\); give \[2, samples\]"):
        conversions.encode("x", noise(1)[:1], None)
    with pytest.raises(InvalidRequestError, match=r"shape \(2, 0\)"):
        conversions.encode("x", noise(0), None)
    with pytest.raises(InvalidRequestError, match=f"codebooks is {n + 1}; this codec has {n}"):
        conversions.encode("x", noise(1), n + 1)
    for bad in (some_codes(1, n + 1), some_codes(0), some_codes(3)[0]):
        with pytest.raises(InvalidRequestError, match="codes have the shape"):
            conversions.decode("x", bad)
    for code in (-1, size):
        with pytest.raises(InvalidRequestError, match=f"codes are 0 .. {size - 1}"):
            conversions.decode("x", np.full((2, 2), code))
    assert conversions.idle
    for i in range(MAX_WAITING):
        conversions.decode(f"{i}", some_codes(1))
    with pytest.raises(CapacityError, match="64 conversions"):
        conversions.decode("x", some_codes(1))
    assert len(drained(conversions)) == MAX_WAITING
