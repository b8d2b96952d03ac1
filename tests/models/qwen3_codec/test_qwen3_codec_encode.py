"""Recordings to codes: the official encoder's tensors, a plain reference for other lengths and
shapes, and any chunking.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import InvalidRequestError
from hocket.models.qwen3_codec.codec import Qwen3Codec
from tests.support.qwen3_codec_helpers import (
    FOLDER,
    SHAPES,
    Pair,
    golden_codec,
    golden_pair,
    golden_tensors,
    load,
    poison,
    random_pair,
    random_samples,
)

WAVE_S = golden_tensors()["encode/wav"]
CODES_TN = golden_tensors()["encode/codes"]


@pytest.fixture(params=list(SHAPES), scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return random_pair(SHAPES[request.param], tmp_path_factory.mktemp("codec"))


def encode(codec: Qwen3Codec, samples_1S: Tensor, schedule: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Codes [T, N] and latents [T, width] of a recording in pieces of `schedule` frames, on row 1
    of three.
    """
    state, size = poison(codec.new_encoder_state(3, max(schedule))), codec.config.frame_samples
    latents: list[Tensor] = []
    hook = codec.encoder.frame_conv.register_forward_hook(
        lambda _m, _i, output: latents.append(output[0].T)
    )
    codes, done = [], 0
    try:
        for frames in schedule:
            piece_1S = samples_1S[:, done * size : (done + frames) * size]
            chunk_BCS = torch.zeros(1, 1, frames * size)
            chunk_BCS[0, :, : piece_1S.shape[1]] = piece_1S
            codes.append(
                codec.encode(
                    chunk_BCS, state, torch.tensor([1]), torch.tensor([piece_1S.shape[1]])
                )[0]
            )
            done += frames
    finally:
        hook.remove()
    return torch.cat(codes), torch.cat(latents)


def test_the_official_codes() -> None:
    assert torch.equal(golden_codec().encode_whole(WAVE_S[None]), CODES_TN)
    assert torch.equal(golden_tensors()["encode/codes32"][:, :16], CODES_TN)
    for n in (1, 2, 7):
        assert torch.equal(golden_codec().encode_whole(WAVE_S[None], n), CODES_TN[:, :n])


@pytest.mark.parametrize("name", ["base_1b7", "base_0b6"])
def test_the_official_references(name: str) -> None:
    """All recordings that the golden requests clone."""
    tensors = golden_tensors(name)
    references = [key for key in tensors if "/ref/wav" in key]
    assert len(references) >= 2
    for key in references:
        codes_TN = golden_codec().encode_whole(tensors[key][None])
        assert torch.equal(codes_TN, tensors[key.replace("/wav", "/codes")]), key


def test_every_stage_of_the_official_encoder() -> None:
    """The recording ends within a frame: after it, every strided convolution pads its own input."""
    encoder, seen = golden_codec().encoder, dict[str, Tensor]()
    stages: dict[str, nn.Module] = {
        "seanet": encoder.latent_conv,
        "transformer": encoder.transformer,
        "downsample": encoder.frame_conv,
    }
    hooks = [
        module.register_forward_hook(
            lambda _m, _i, output, name=name: seen.__setitem__(name, output)
        )
        for name, module in stages.items()
    ]
    try:
        encode(golden_codec(), WAVE_S[None], [30])
    finally:
        for hook in hooks:
            hook.remove()
    seen["transformer"] = seen["transformer"].transpose(1, 2)
    for name, output in seen.items():
        torch.testing.assert_close(output, golden_tensors()[f"encode/{name}"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("schedule", [[1] * 30, [7, 1, 2, 12, 3, 5], [16, 14], [30]])
def test_any_pieces_of_the_golden_recording(schedule: list[int]) -> None:
    codes_TN, latent_TD = encode(golden_codec(), WAVE_S[None], schedule)
    assert torch.equal(codes_TN, CODES_TN)
    torch.testing.assert_close(
        latent_TD, golden_tensors()["encode/downsample"][0].T, rtol=2e-5, atol=2e-5
    )


def test_a_batch_is_each_as_if_alone() -> None:
    """The official batch pads a shorter recording with silence; here it equals the recording
    alone.
    """
    clips = [WAVE_S[None, :length] for length in (56880, 32000, 1, 1920, 1921)]
    batch = golden_codec().encode_batch(clips)
    for clip, codes_TN in zip(clips, batch, strict=True):
        assert torch.equal(codes_TN, golden_codec().encode_whole(clip))
    assert [len(codes_TN) for codes_TN in batch] == [30, 17, 1, 1, 2]
    assert torch.equal(batch[0], golden_tensors()["encode_batch/codes0"])
    silent_S = torch.cat((WAVE_S[:32000], torch.zeros(17 * 1920 - 32000)))
    assert torch.equal(
        golden_codec().encode_whole(silent_S[None]), golden_tensors()["encode_batch/codes1"]
    )


def test_no_window() -> None:
    """The file's sliding_window (10 tokens here) is not applied: token 59 attends to token 0, as in
    the official package.
    """
    changed_S = WAVE_S.clone()
    changed_S[:960] = 0.0
    _, one = encode(golden_codec(), WAVE_S[None], [30])
    _, other = encode(golden_codec(), changed_S[None], [30])
    assert float((one - other)[25:].abs().max()) > 1e-4


def test_every_length_within_two_frames(pair: Pair) -> None:
    size = pair.codec.config.frame_samples
    samples_1S = random_samples(9 * size)
    for samples in range(7 * size - 1, 9 * size + 1):
        frames = -(-samples // size)
        truth_TD = pair.plain.latent(samples_1S[0, :samples])
        for schedule in ([frames], [1] * frames, [3, frames - 3]):
            codes_TN, latent_TD = encode(pair.codec, samples_1S[:, :samples], schedule)
            torch.testing.assert_close(latent_TD.double(), truth_TD, rtol=0, atol=2e-6)
            assert torch.equal(codes_TN, pair.plain.quantise(truth_TD))


def test_rows_of_other_lengths_and_padding_leave_no_trace(pair: Pair) -> None:
    """Three recordings of different lengths in calls of one width, with noise after their ends."""
    size = pair.codec.config.frame_samples
    recordings = [
        random_samples(samples, seed=samples) for samples in (11 * size, 4 * size + 1, 7 * size - 1)
    ]
    state, rows_B = poison(pair.codec.new_encoder_state(4, 3)), torch.tensor([3, 0, 2])
    codes: list[list[Tensor]] = [[], [], []]
    for start in range(0, 12 * size, 3 * size):
        chunk_BCS = torch.cat([random_samples(3 * size, seed=start + b) for b in range(3)])[:, None]
        pieces = [recording[0, start : start + 3 * size] for recording in recordings]
        for b, piece_S in enumerate(pieces):
            chunk_BCS[b, 0, : len(piece_S)] = piece_S
        lengths = [len(piece_S) for piece_S in pieces]
        codes_BTN = pair.codec.encode(chunk_BCS, state, rows_B, torch.tensor(lengths))
        for b, length in enumerate(lengths):
            codes[b].append(codes_BTN[b, : -(-length // size)])
    for b, recording in enumerate(recordings):
        assert torch.equal(torch.cat(codes[b]), pair.plain.encode(recording[0]))


def test_a_recording_that_outgrows_its_row_is_refused() -> None:
    """The encoder attends to everything, so a row holds a bounded recording; whole files are
    unbounded.
    """
    codec, row_B = golden_codec(), torch.tensor([0])
    limit = codec.config.max_recording_frames
    assert limit == 1500  # 120 s
    state = codec.new_encoder_state(1, 16)
    state.offsets[0] = limit - 16
    codec.encode(torch.zeros(1, 1, 16 * 1920), state, row_B)
    with pytest.raises(InvalidRequestError, match="1501 frames so far, this state holds 1500"):
        codec.encode(torch.zeros(1, 1, 1920), state, row_B)


def test_codes_do_not_depend_on_the_compute_dtype() -> None:
    half = load(FOLDER, torch.bfloat16)
    assert torch.equal(half.encode_whole(WAVE_S[None]), CODES_TN)


def test_bad_calls_say_what_is_wrong() -> None:
    codec, row_B = golden_codec(), torch.tensor([0])
    state = codec.new_encoder_state(2, 2)
    with pytest.raises(
        InvalidRequestError, match="1921 samples are not one or more whole frames of 1920"
    ):
        codec.encode(torch.zeros(1, 1, 1921), state, row_B)
    with pytest.raises(InvalidRequestError, match=r"1 \.\. 2 frames"):
        codec.encode(torch.zeros(1, 1, 3 * 1920), state, row_B)
    with pytest.raises(InvalidRequestError, match=r"counts must be 0 \.\. 1"):
        codec.encode(torch.zeros(1, 1, 1920), state, row_B, torch.tensor([1921]))
    with pytest.raises(
        InvalidRequestError,
        match=r"float32 \[batch, channels, samples\] with 1 channel\(s\), "
        r"got torch.float32 \[1, 2, 1920\]",
    ):
        codec.encode(torch.zeros(1, 2, 1920), state, row_B)
    with pytest.raises(
        InvalidRequestError,
        match=r"float32 \[channels, samples\] with 1 channel\(s\), got torch.float64",
    ):
        codec.encode_whole(torch.zeros(1, 1920, dtype=torch.float64))
    with pytest.raises(InvalidRequestError, match="16 codebooks, 17"):
        codec.encode_whole(torch.zeros(1, 1920), 17)
    with pytest.raises(InvalidRequestError, match="belongs to the encoder"):
        codec.decode(torch.zeros(1, 1, 16, dtype=torch.int64), state, row_B)
    assert state.offsets.tolist() == [0, 0], "a refused call changes nothing"
    assert codec.encode_whole(torch.zeros(1, 0)).shape == (0, 16)


def test_the_plain_twin_is_the_official_encoder() -> None:
    assert torch.equal(golden_pair().plain.encode(WAVE_S), CODES_TN)
