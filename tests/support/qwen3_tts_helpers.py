"""Golden Qwen3-TTS checkpoints, their cases, and a plain loop that speaks them (sources:
Qwen3 17).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hocket.checkpoint.weights import WeightEntry, load_weights, stored_tensors
from hocket.core import PromptRows, SpeechRequest
from hocket.kernels.types import DrawParams, PagedBatch
from hocket.models.layers.kv_cache import KVPages
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.models.qwen3_tts.prompt import Qwen3TtsPrompt
from hocket.models.qwen3_tts.talker import Qwen3TtsTalker
from hocket.models.qwen3_tts.weights import talker_weight_table
from hocket.models.sampling import ResolvedSampling, SamplingBatch
from hocket.text.tokenizer import TextTokenizer
from tests.support import paths
from tests.support.sampling import sampling_batch

GOLDEN = paths.GOLDEN / "qwen3_tts"
CHECKPOINTS = ("base_1b7", "base_0b6", "custom_1b7", "custom_0b6", "design_1b7")
#: Tolerance relative to the golden tensor's maximum; reordered float32 sums reach 2e-6.
TOLERANCE = 2e-5
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Checkpoint:
    config: Qwen3TtsConfig
    talker: Qwen3TtsTalker
    prompt: Qwen3TtsPrompt
    cases: dict[str, dict[str, Any]]
    tensors: dict[str, Tensor]


class _Whole(nn.Module):
    """A checkpoint's file as the golden tensors need it: the talker; the speaker encoder's tensors
    are only held.
    """

    def __init__(self, config: Qwen3TtsConfig, others: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.talker = Qwen3TtsTalker(config)
        self.others = nn.ParameterDict(
            {name.replace(".", "/"): torch.empty(shape) for name, shape in others.items()}
        )


@cache
def checkpoint(name: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    folder = GOLDEN / name
    config = Qwen3TtsConfig.from_dict(json.loads((folder / "config.json").read_text()))
    others = {
        key: tensor.shape
        for key, tensor in stored_tensors(folder).items()
        if key.startswith("speaker_encoder.")
    }
    table = talker_weight_table(config, dtype)
    table = [
        WeightEntry(f"talker.{entry.parameter}", entry.names, entry.shape, entry.dtype)
        for entry in table
    ]
    table += [
        WeightEntry(f"others.{key.replace('.', '/')}", (key,), shape, dtype)
        for key, shape in others.items()
    ]
    with torch.device("meta"):
        whole = _Whole(config, others)
    load_weights(whole, folder, table, device=CPU)
    whole.talker.finalize()
    tokenizer = TextTokenizer.load(folder, vocab_size=config.text_vocab_size)
    return Checkpoint(
        config,
        whole.talker.eval(),
        Qwen3TtsPrompt(config, tokenizer),
        json.loads((GOLDEN / f"golden_{name}.json").read_text()),
        load_file(GOLDEN / f"golden_{name}.safetensors"),
    )


@dataclass(frozen=True)
class Case:
    """One row of a golden case: its request as we take it, and the recording's features."""

    checkpoint: Checkpoint
    name: str
    number: int
    request: SpeechRequest
    codes: list[Any]
    voices: list[Any]
    penalty: float
    max_frames: int

    def tensor(self, name: str) -> Tensor:
        return self.checkpoint.tensors[f"{self.name}/{name}"]

    @property
    def rows(self) -> PromptRows:
        return self.checkpoint.prompt.build(self.request, self.codes, self.voices)

    @property
    def voice(self) -> Tensor:
        """[1, D]."""
        return torch.from_numpy(self.rows.voice)[None]


def all_cases() -> list[tuple[str, str, int]]:
    names = []
    for folder in CHECKPOINTS:
        for name, case in json.loads((GOLDEN / f"golden_{folder}.json").read_text()).items():
            names += [(folder, name, number) for number in range(len(case["frames"]))]
    return names


def case(folder: str, name: str, number: int) -> Case:
    """The golden case's arguments, in the words of `SpeechRequest`."""
    of = checkpoint(folder)
    entry = of.cases[name]
    asked = {
        key: value[number] if isinstance(value, list) else value
        for key, value in entry["request"].items()
    }
    is_base = of.config.kind == "base"
    streaming = None if "non_streaming_mode" not in asked else not asked["non_streaming_mode"]
    request = SpeechRequest(
        text=asked["text"],
        language=asked.get("language"),
        voice=asked.get("speaker"),
        instruction=asked.get("instruct"),
        reference=b"the recording" if is_base else None,
        reference_text=None if asked.get("x_vector_only_mode") else asked.get("ref_text"),
        streaming_text=streaming,
    )
    codes, voices = [], []
    if is_base:
        voices = [of.tensors[f"{name}/ref/speaker_embedding{number}"].numpy().astype(np.float32)]
        codes = [of.tensors[f"{name}/ref/codes{number}"].numpy()] if request.is_continuation else []
    settings = entry["generate_kwargs"]
    return Case(
        of,
        name,
        number,
        request,
        codes,
        voices,
        settings["repetition_penalty"],
        settings["max_new_tokens"] - 1,
    )


def assert_close(got: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert got.shape == wanted.shape
    error = (got - wanted).abs().max().item() / wanted.abs().max().item()
    assert error <= tolerance, f"{error:.1e}"  # false for NaN


def greedy(rows: int, penalty: float) -> SamplingBatch:
    return sampling_batch([ResolvedSampling(DrawParams(0.0, 1.0, 50, penalty))] * rows)


def speak(
    talker: Qwen3TtsTalker,
    prompts: Sequence[PromptRows],
    sampling: SamplingBatch,
    *,
    max_frames: int,
    chunk: int = 1000,
) -> list[Tensor]:
    """Prefill in chunks on NaN pages, then frame by frame: each sequence's codes [frames, N]."""
    config, page_rows, count = talker.config, 8, len(prompts)
    lengths = [len(prompt.rows) for prompt in prompts]
    each = -(-(max(lengths) + max_frames) // page_rows)
    kv = KVPages.allocate(
        config.layers,
        1 + count * each,
        page_rows,
        config.kv_heads,
        config.head_dim,
        torch.float32,
        CPU,
    )
    kv.keys.fill_(torch.nan)
    kv.values.fill_(torch.nan)
    table_BP = 1 + torch.arange(count * each).view(count, each)

    def run(x_BTD: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
        return talker.backbone(
            x_BTD, kv, PagedBatch(table_BP, torch.tensor(starts), torch.tensor(counts))
        )

    rows_BTR = nn.utils.rnn.pad_sequence(
        [torch.from_numpy(prompt.rows) for prompt in prompts], batch_first=True
    )
    voice_BD = torch.stack([torch.from_numpy(prompt.voice) for prompt in prompts])
    hidden_BD = torch.full((count, config.hidden_size), torch.nan)
    for start in range(0, max(lengths), chunk):
        counts = [min(max(length - start, 0), chunk) for length in lengths]
        out_BTD = run(
            talker.embed(rows_BTR[:, start : start + chunk], voice_BD),
            [min(start, n) for n in lengths],
            counts,
        )
        for b, rows in enumerate(counts):
            if rows:
                hidden_BD[b] = out_BTD[b, rows - 1]
    seen_BNV = torch.zeros(count, config.n_vq, max(config.audio_codebook_sizes), dtype=torch.bool)
    frames: list[list[Tensor]] = [[] for _ in prompts]
    running = [True] * count
    for frame in range(max_frames):
        stop_B, codes_BN = talker.frame(hidden_BD, sampling, torch.full((count,), frame), seen_BNV)
        running = [going and not stop for going, stop in zip(running, stop_B.tolist(), strict=True)]
        if not any(running):
            break
        for b in range(count):
            if running[b]:
                frames[b].append(codes_BN[b])
        seen_BNV.scatter_(2, codes_BN[..., None], True)
        text_B = torch.tensor(
            [
                int(prompt.frame_texts[frame])
                if frame < len(prompt.frame_texts)
                else config.frame_text_id
                for prompt in prompts
            ]
        )
        starts = [length + frame for length in lengths]
        hidden_BD = run(talker.embed_frame(codes_BN, text_B)[:, None], starts, [1] * count)[:, 0]
    return [
        torch.stack(rows) if rows else torch.empty(0, config.n_vq, dtype=torch.int64)
        for rows in frames
    ]
