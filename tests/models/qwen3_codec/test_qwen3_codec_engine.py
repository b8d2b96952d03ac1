"""The codec in the engine: its runner, reference encoder and conversions, and the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hocket.audio.io import decode_audio, write_audio
from hocket.config import EngineConfig, ReferenceLimits
from hocket.engine.build import load_parts
from hocket.engine.references.codes import CodeEncoder
from hocket.engine.references.conversions import Conversions
from hocket.engine.runners.codec import CodecRunner, DecodedChunk, StateSlot
from hocket.engine.scheduling.request import DecodeBatch, DecodeItem, Request
from hocket.errors import ConfigError, InvalidRequestError
from hocket.models.registry import codec_folder, codec_plan, load_codec
from tests.support.cli_runner import run
from tests.support.qwen3_codec_helpers import (
    FOLDER,
    GOLDEN,
    WAVE_TOLERANCE,
    golden_codec,
    golden_tensors,
    random_codes,
    random_samples,
)

CODES_TN = golden_tensors()["decode/codes"][0].T.contiguous()
WAVE_S = golden_tensors()["decode/wav"]
RECORDING_1S = golden_tensors()["encode/wav"][None]
#: Sizes of chunks, as the engine cuts a stream.
CHUNKS = (1, 2, 4, 8)


def request(row: int) -> Request:
    made = Request(
        id=str(row), priority=0, arrival=row, prompt=np.zeros((1, 17), np.int64), max_frames=99,
        streaming=True,
        digests=(), added_at=0.0,
    )  # fmt: skip
    made.row = row
    return made


def decode(
    runner: CodecRunner, codes_RFN: torch.Tensor, items: Sequence[tuple[int, int, int]]
) -> list[DecodedChunk]:
    """Items are (row, start, count)."""
    most = max(count for _, _, count in items)
    width = next(size for size in CHUNKS if size >= most)
    batch = DecodeBatch(
        [DecodeItem(request(row), start, count) for row, start, count in items], width
    )
    pieces = [codes_RFN[row, start : start + count].numpy() for row, start, count in items]
    return runner.collect(runner.launch(batch, pieces))


def test_the_runner_streams_the_official_waveform() -> None:
    """Chunks of 1, 2, 4, 8, ... frames, beside another stream at another position."""
    runner = CodecRunner(golden_codec(), rows=4, chunk_sizes=CHUNKS, max_batch=32)
    codes_RFN = random_codes(golden_codec(), 4, 60, 16)
    codes_RFN[2, :40] = CODES_TN
    runner.start(StateSlot("row", 1))
    decode(runner, codes_RFN, [(1, 0, 5)])
    runner.start(StateSlot("row", 2))
    pieces, done = [], 0
    for count in (1, 2, 4, 8, 8, 8, 8, 1):
        own = decode(runner, codes_RFN, [(1, 5 + done, min(count, 3)), (2, done, count)])[1]
        pieces.append(own.samples_CS)
        assert own.power_F.shape == (count,)
        done += count
    wave_S = np.concatenate(pieces, axis=1)[0]
    assert np.abs(wave_S - WAVE_S.numpy()).max() < WAVE_TOLERANCE


def test_a_primed_row_goes_on_behind_its_reference() -> None:
    tensors, name = golden_tensors("base_1b7"), "icl_stream_text_shorter"
    runner = CodecRunner(golden_codec(), rows=2, chunk_sizes=CHUNKS, max_batch=32, kept=2)
    heard_TN = tensors[f"{name}/ref/codes0"]
    runner.start(StateSlot("priming", 0))
    for piece_TN in torch.split(heard_TN, 8):
        runner.prime([0], [piece_TN.numpy()], 8)
    # Through the row where it is kept.
    runner.copy(StateSlot("priming", 0), StateSlot("kept", 1), len(heard_TN))
    runner.copy(StateSlot("kept", 1), StateSlot("row", 1), len(heard_TN))
    codes_RFN = torch.zeros(2, 11, 16, dtype=torch.int64)
    codes_RFN[1] = tensors[f"{name}/codes/0"]
    chunks = [
        decode(runner, codes_RFN, [(1, start, count)])[0] for start, count in ((0, 8), (8, 3))
    ]
    wave_S = np.concatenate([chunk.samples_CS for chunk in chunks], axis=1)[0]
    assert np.abs(wave_S - tensors[f"{name}/wav/0"].numpy()).max() < WAVE_TOLERANCE


def test_strict_chunks_are_the_same_bytes_in_any_company() -> None:
    """Alone in an engine of one row, and in one of twelve among requests that come, go and have
    other chunks.
    """
    cuts = [(0, 1), (1, 2), (3, 4), (7, 8), (15, 5)]

    def alone() -> bytes:
        runner = CodecRunner(golden_codec(), rows=1, chunk_sizes=CHUNKS, max_batch=32, strict=True)
        runner.start(StateSlot("row", 0))
        return b"".join(
            decode(runner, CODES_TN[None], [(0, *cut)])[0].samples_CS.tobytes() for cut in cuts
        )

    def among(seed: int, row: int) -> bytes:
        random = np.random.default_rng(seed)
        runner = CodecRunner(golden_codec(), rows=12, chunk_sizes=CHUNKS, max_batch=32, strict=True)
        codes_RFN = random_codes(golden_codec(), 12, 40, 16, seed=seed)
        codes_RFN[row] = CODES_TN
        others, heard = [r for r in range(12) if r != row], b""
        for other in others:
            runner.start(StateSlot("row", other))
        decode(runner, codes_RFN, [(other, 0, 3) for other in others[:7]])
        runner.start(StateSlot("row", row))
        for start, count in cuts:
            # Its neighbours fit the same width, which is the size of its own chunk.
            company = random.choice(others, size=random.integers(0, 8), replace=False)
            items = [
                (int(other), int(random.integers(0, 30)), int(random.integers(1, count + 1)))
                for other in company
            ]
            place = int(random.integers(0, len(items) + 1))
            items.insert(place, (row, start, count))
            heard += decode(runner, codes_RFN, items)[place].samples_CS.tobytes()
        return heard

    expected = alone()
    for seed, row in ((1, 0), (2, 11), (3, 5)):
        assert among(seed, row) == expected


@pytest.mark.parametrize("fixed_batch", [False, True])
def test_references_are_coded_as_the_official_package_does(fixed_batch: bool) -> None:
    """All recordings in one batch, in pieces of 16 frames, each with an incomplete last frame."""
    tensors = golden_tensors("base_1b7")
    keys = [key for key in tensors if "/ref/wav" in key]
    encoder = CodeEncoder(golden_codec(), n_codebooks=16, fixed_batch=fixed_batch)
    wanted = {*keys, "long"}
    for key in keys:
        encoder.submit(key, tensors[key][None].numpy())
    encoder.submit("long", RECORDING_1S.numpy())
    found: dict[str, NDArray[np.int64]] = {}
    while not encoder.idle:
        found |= encoder.step(wanted)
    for key in keys:
        assert np.array_equal(found[key], tensors[key.replace("/wav", "/codes")].numpy())
    assert np.array_equal(found["long"], golden_tensors()["encode/codes"].numpy())


def test_conversions_go_both_ways() -> None:
    conversions = Conversions(golden_codec())
    conversions.encode("codes", RECORDING_1S.numpy(), None)
    conversions.decode("audio", CODES_TN.numpy())
    heard: dict[str, list[Any]] = {"codes": [], "audio": []}
    while not conversions.idle:
        for chunk in conversions.step():
            if chunk.end is None:
                heard[chunk.request_id].append(chunk)
    codes_TN = np.concatenate([chunk.codes for chunk in heard["codes"]])
    assert np.array_equal(codes_TN, golden_tensors()["encode/codes"].numpy())
    wave_CS = np.concatenate([chunk.samples for chunk in heard["audio"]], axis=1)
    assert np.abs(wave_CS[0] - WAVE_S.numpy()).max() < WAVE_TOLERANCE


def test_conversions_refuse_what_a_row_cannot_hold() -> None:
    conversions = Conversions(golden_codec())
    samples = np.zeros((1, 120 * 24_000 + 1), np.float32)
    with pytest.raises(
        InvalidRequestError, match=r"lasts 120\.0 s; this codec's encoder takes 120 s at a time"
    ):
        conversions.encode("x", samples, None)
    conversions.encode("x", samples[:, :-1], None)
    assert conversions.idle is False


def test_references_longer_than_a_row_are_refused_when_the_engine_starts() -> None:
    config = EngineConfig(reference=ReferenceLimits(max_seconds=121.0))
    with pytest.raises(
        ConfigError,
        match=r"reference\.max_seconds is 121; this model's codec encodes 120 s at most",
    ):
        load_parts(GOLDEN / "base_1b7", None, device="cpu", dtype="float32", config=config)


def test_the_registry_finds_and_plans_it() -> None:
    assert codec_folder(GOLDEN / "base_1b7", None) == FOLDER
    assert codec_folder(GOLDEN, GOLDEN / "base_1b7") == FOLDER
    assert codec_folder(GOLDEN, FOLDER) == FOLDER
    for dtype in (torch.float32, torch.bfloat16):
        codec = load_codec(FOLDER, device=torch.device("cpu"), dtype=dtype)
        loaded = sum(tensor.nbytes for tensor in (*codec.parameters(), *codec.buffers()))
        assert codec_plan(FOLDER, dtype).resident_bytes == loaded


@pytest.mark.parametrize("codec", [str(FOLDER), str(FOLDER.parent)])
def test_the_command_line_codes_and_decodes(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codec's own folder, or the folder of the checkpoint that contains it."""
    monkeypatch.chdir(tmp_path)
    write_audio(Path("in.wav"), RECORDING_1S.numpy(), 24_000, float32=True)
    done = run("codec", "encode", "in.wav", "-o", "codes.npy", "--codec", codec)
    assert done.out == "codes.npy: 30 frames of 16 codes\n", done.err
    assert np.array_equal(np.load("codes.npy"), golden_tensors()["encode/codes"].numpy())

    np.save("official.npy", CODES_TN.numpy())
    done = run("codec", "decode", "official.npy", "-o", "out.wav", "--codec", codec, "--float")
    assert done.code == 0, done.err
    audio = decode_audio(Path("out.wav"), max_bytes=2**22, max_seconds=60)
    assert audio.sample_rate == 24_000
    assert np.abs(audio.samples[0] - WAVE_S.numpy()).max() < WAVE_TOLERANCE


def test_the_command_line_describes_it() -> None:
    done = run("info", str(FOLDER), "--json")
    facts = json.loads(done.out)
    assert facts["family"] == "qwen3_tts_tokenizer_12hz"
    assert (facts["sample_rate_hz"], facts["frame_rate_hz"], facts["codebooks"]) == (
        24_000,
        12.5,
        16,
    )
    assert facts["parameters"] == facts["parameters_encoder"] + facts["parameters_decoder"]


def test_a_short_recording_is_one_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    samples_1S = random_samples(1000)
    write_audio(Path("in.wav"), samples_1S.numpy(), 24_000, float32=True)
    assert run("codec", "encode", "in.wav", "-o", "codes.npy", "--codec", str(FOLDER)).code == 0
    assert np.array_equal(np.load("codes.npy"), golden_codec().encode_whole(samples_1S).numpy())
