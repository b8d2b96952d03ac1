"""The Qwen3-TTS talker and its prompts against the official classes' tensors (sources:
Qwen3 17).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import astuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hocket.kernels.cpu import draw_at
from hocket.kernels.reference.philox import uniforms
from hocket.kernels.reference.sampling import probabilities
from hocket.kernels.types import DrawArgs, DrawParams
from hocket.models.sampling import ResolvedSampling
from tests.support.qwen3_tts_helpers import (
    CHECKPOINTS,
    GOLDEN,
    all_cases,
    assert_close,
    case,
    checkpoint,
    greedy,
    speak,
)
from tests.support.sampling import sampling_batch

CASES = pytest.mark.parametrize(("folder", "name", "number"), all_cases())


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_there_are_eighteen_cases() -> None:
    assert len({(folder, name) for folder, name, _ in all_cases()}) == 18


@CASES
def test_prompt_rows(folder: str, name: str, number: int) -> None:
    one = case(folder, name, number)
    x_TD = one.checkpoint.talker.embed(torch.from_numpy(one.rows.rows)[None], one.voice)[0]
    is_row_T = one.tensor("prompt/attention_mask")[number].bool()
    assert_close(x_TD, one.tensor("prompt/inputs_embeds")[number][is_row_T])


@CASES
def test_texts_of_the_frames(folder: str, name: str, number: int) -> None:
    """The official tensor is padded for the batch, or holds one pad where no text is left."""
    one = case(folder, name, number)
    wanted_QD = one.tensor("prompt/trailing_text_hidden")[number]
    pads = [one.checkpoint.config.frame_text_id] * (len(wanted_QD) - len(one.rows.frame_texts))
    texts_Q = torch.tensor([*one.rows.frame_texts.tolist(), *pads])
    assert len(texts_Q) == len(wanted_QD)
    assert_close(one.checkpoint.talker.embed_text(texts_Q), wanted_QD)


@CASES
@pytest.mark.parametrize("chunk", [1000, 5])
def test_greedy_frames(folder: str, name: str, number: int, chunk: int) -> None:
    one = case(folder, name, number)
    (frames_FN,) = speak(
        one.checkpoint.talker,
        [one.rows],
        greedy(1, one.penalty),
        max_frames=one.max_frames,
        chunk=chunk,
    )
    assert torch.equal(frames_FN, one.tensor(f"codes/{number}"))


@CASES
def test_teacher_forced(folder: str, name: str, number: int) -> None:
    """Hidden states, logits of the first code, inputs and logits of the predictor, stepwise and
    whole.
    """
    one = case(folder, name, number)
    talker, config = one.checkpoint.talker, one.checkpoint.config
    frames_FN = one.tensor(f"codes/{number}")
    count = len(frames_FN)
    texts = [*one.rows.frame_texts.tolist(), *[config.frame_text_id] * count][:count]
    fed_FD = talker.embed_frame(frames_FN, torch.tensor(texts))
    assert_close(fed_FD, one.tensor("talker/decode_inputs_embeds")[number, :count])
    prompt_1TD = talker.embed(torch.from_numpy(one.rows.rows)[None], one.voice)
    hidden_FD = talker.backbone(torch.cat([prompt_1TD, fed_FD[None]], 1))[
        0, len(one.rows.rows) - 1 :
    ]
    assert_close(hidden_FD, one.tensor("talker/hidden")[number, : count + 1])
    logits_FV = one.tensor("talker/logits")[number, : count + 1]
    assert_close(talker.code_head(hidden_FD), logits_FV)

    predictor, wanted_FKV = talker.predictor, one.tensor("predictor/logits")[number, :count]
    first_F2D = torch.stack([hidden_FD[:count], talker.codec_embedding(frames_FN[:, 0])], 1)
    assert_close(first_F2D, one.tensor("predictor/inputs_embeds")[number, :count])
    inputs_FPD = torch.cat([first_F2D, predictor.embed(frames_FN[:, 1:-1])], 1)
    whole_FPD = predictor(inputs_FPD)
    kv = predictor.new_kv(count)
    kv.keys.fill_(torch.nan)
    kv.values.fill_(torch.nan)
    for k in range(1, config.n_vq):
        assert_close(predictor.logits(whole_FPD[:, k], k), wanted_FKV[:, k - 1])
        start, end = (0, 2) if k == 1 else (k, k + 1)
        y_FTD = predictor.step(predictor.projection(inputs_FPD[:, start:end]), start, kv)
        assert_close(predictor.logits(y_FTD[:, -1], k), wanted_FKV[:, k - 1])


@pytest.mark.parametrize("chunk", [1000, 4])
def test_a_ragged_batch_gives_each_row_what_it_gets_alone(chunk: int) -> None:
    """All cases of one checkpoint together: queues of different lengths, with and without a voice's
    own text.
    """
    chosen = [
        (folder, name, number) for folder, name, number in all_cases() if folder == "base_1b7"
    ]
    together = [case(*one) for one in chosen if "nopen" not in one[1]]
    assert {one.penalty for one in together} == {1.05}
    talker, prompts = together[0].checkpoint.talker, [one.rows for one in together]
    frames = speak(talker, prompts, greedy(len(prompts), 1.05), max_frames=11, chunk=chunk)
    for one, frames_FN in zip(together, frames, strict=True):
        assert torch.equal(frames_FN, one.tensor(f"codes/{one.number}"))


def test_sampling_filters() -> None:
    """Probabilities after the official processors, for code 0 and for the predictor's codes."""
    talker = checkpoint("base_1b7").talker
    tensors = load_file(GOLDEN / "golden_sampling.safetensors")
    eos, codes = talker.config.codec_eos_id, talker.config.audio_codebook_sizes[0]
    cuts = torch.tensor([0.9]), torch.tensor([1.0]), torch.tensor([50])
    for step in range(6):
        raw_BV, wanted_BV = (tensors[f"talker/{step}/{name}"] for name in ("raw", "processed"))
        seen_BV = torch.zeros(1, codes + 1, dtype=torch.bool)
        seen_BV[0, tensors[f"talker/{step}/history"][0]] = True
        allowed_BV = talker.allowed(raw_BV, torch.tensor([step]), torch.tensor([0]))
        got_BV = probabilities(allowed_BV, DrawArgs(*cuts, torch.tensor([1.05])), seen_BV)
        kept_BV = wanted_BV.softmax(1)
        assert torch.allclose(
            got_BV, torch.cat([kept_BV[:, :codes], kept_BV[:, eos : eos + 1]], 1), atol=1e-6
        )
        assert torch.equal(got_BV[0, -1] > 0, wanted_BV[0, eos].isfinite())
    for step in range(15):
        raw_BV, wanted_BV = (tensors[f"predictor/{step}/{name}"] for name in ("raw", "processed"))
        got_BV = probabilities(raw_BV, DrawArgs(*cuts, torch.ones(1)))
        assert torch.allclose(got_BV, wanted_BV.softmax(1), atol=1e-6)


def test_a_frame_is_its_draws_one_by_one() -> None:
    """Code 0 is drawn with its own parameters and history, the others with the predictor's; each
    has its noise slot.
    """
    talker = copy.deepcopy(checkpoint("base_1b7").talker)
    config, rows = talker.config, 6
    talker.code_head.weight[config.codec_eos_id] *= 4  # so that stops are likely enough to occur
    generator = torch.Generator().manual_seed(3)
    hidden_BD = 4 * torch.randn(rows, config.hidden_size, generator=generator)
    seen_BNV = torch.rand(rows, config.n_vq, 64, generator=generator) < 0.5
    firsts = [
        DrawParams(0.0, 1.0, 0, 1.0),
        DrawParams(0.7, 0.8, 25, 1.0),
        DrawParams(1.0, 1.0, 3, 1.5),
        DrawParams(1.7, 0.5, 0, 2.0),
        DrawParams(3.0, 0.95, 50, 1.05),
        DrawParams(0.9, 1.0, 50, 1.1),
    ]
    others = [
        DrawParams(0.9, 1.0, 50),
        DrawParams(0.0, 0.7, 0),
        DrawParams(0.5, 0.9, 7),
        DrawParams(1.7, 1.0, 0),
        DrawParams(3.0, 0.5, 10),
        DrawParams(0.9, 1.0, 50),
    ]
    sampling = sampling_batch(
        [ResolvedSampling(first, other) for first, other in zip(firsts, others, strict=True)],
        min_frames=[0, 0, 9, 9, 2, 0],
    )
    first_args, other_args = (
        DrawArgs(*(torch.tensor(column) for column in zip(*map(astuple, params), strict=True)))
        for params in (firsts, others)
    )
    stops: list[Tensor] = []
    for frame in range(40):
        frame_B = torch.arange(rows) + frame
        stop_B, codes_BN = talker.frame(hidden_BD, sampling, frame_B, seen_BNV)
        u_BK = uniforms(sampling.seed_B, frame_B, config.n_vq)
        first_B = draw_at(
            talker.allowed(talker.code_head(hidden_BD), frame_B, sampling.min_frames_B),
            first_args,
            u_BK[:, 0],
            torch.cat([seen_BNV[:, 0], torch.zeros(rows, 1, dtype=torch.bool)], 1),
        )
        assert torch.equal(stop_B, first_B == 64)
        assert torch.equal(codes_BN[:, 0], first_B.masked_fill(stop_B, 0))
        inputs = [hidden_BD, talker.codec_embedding(codes_BN[:, 0])]
        y_BPD = talker.predictor(
            torch.cat([torch.stack(inputs, 1), talker.predictor.embed(codes_BN[:, 1:-1])], 1)
        )
        for k in range(1, config.n_vq):
            logits_BV = talker.predictor.logits(y_BPD[:, k], k)
            assert torch.equal(codes_BN[:, k], draw_at(logits_BV, other_args, u_BK[:, k]))
        stops.append(stop_B)
    stopped_FB = torch.stack(stops)
    assert 0.05 < stopped_FB.float().mean() < 0.95
    early_FB = torch.arange(40)[:, None] + torch.arange(rows) < torch.tensor([2, 2, 9, 9, 2, 2])
    assert not stopped_FB[early_FB].any()


def test_without_parameters_of_its_own_the_predictor_draws_as_code_0_is_drawn() -> None:
    talker = checkpoint("custom_0b6").talker
    hidden_BD = torch.randn(
        3, talker.config.hidden_size, generator=torch.Generator().manual_seed(3)
    )
    codes = [DrawParams(temperature, 1.0, 50) for temperature in (0.5, 1.0, 2.0)]
    one, other = (
        talker.frame(hidden_BD, sampling_batch(rows), torch.arange(3), None)
        for rows in (
            [ResolvedSampling(row) for row in codes],
            [ResolvedSampling(row, row) for row in codes],
        )
    )
    assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("folder", CHECKPOINTS)
def test_embed_frame_is_embed_of_its_row(folder: str) -> None:
    talker = checkpoint(folder).talker
    codes_BN = torch.arange(32).view(2, 16)
    text_B = torch.tensor([7, talker.config.frame_text_id])
    voice_BD = torch.ones(2, talker.config.voice_size)
    rows_B1R = torch.cat((text_B[:, None], codes_BN), 1)[:, None]
    assert torch.equal(talker.embed_frame(codes_BN, text_B), talker.embed(rows_B1R, voice_BD)[:, 0])


def test_bfloat16_stays_near() -> None:
    """Half-precision weights: prompt rows round as the official sum does, frames need not be the
    same.
    """
    one, half = (
        case("base_1b7", "icl_stream_text_longer", 0),
        checkpoint("base_1b7", torch.bfloat16),
    )
    rows_1TR = torch.from_numpy(one.rows.rows)[None]
    x_TD = half.talker.embed(rows_1TR, one.voice.bfloat16())[0]
    assert x_TD.dtype == torch.bfloat16
    assert_close(x_TD.float(), one.tensor("prompt/inputs_embeds")[0], tolerance=1e-2)
    hidden_D = half.talker.backbone(x_TD[None])[0, -1]
    assert_close(hidden_D.float(), one.tensor("talker/hidden")[0, 0], tolerance=5e-2)


def test_every_parameter_gets_a_gradient() -> None:
    """Rows of every kind and whole frames through the predictor are differentiable."""
    one = case("base_1b7", "icl_stream_text_longer", 0)
    talker = copy.deepcopy(one.checkpoint.talker).requires_grad_()
    with torch.enable_grad():
        hidden_BTD = talker.backbone(talker.embed(torch.from_numpy(one.rows.rows)[None], one.voice))
        frames_FN = one.tensor("codes/0")
        first_F2D = torch.stack(
            [hidden_BTD[0, -len(frames_FN) :], talker.codec_embedding(frames_FN[:, 0])], 1
        )
        y_FPD = talker.predictor(
            torch.cat([first_F2D, talker.predictor.embed(frames_FN[:, 1:-1])], 1)
        )
        loss = talker.code_head(hidden_BTD).logsumexp(-1).sum()
        for k in range(1, 16):
            loss = loss + talker.predictor.logits(y_FPD[:, k], k).logsumexp(-1).sum()
        loss = (
            loss + talker.predictor.embed(frames_FN[:, 1:]).sum()
        )  # code 15 is fed to the backbone alone
        gradients = torch.autograd.grad(loss, list(talker.parameters()))
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
