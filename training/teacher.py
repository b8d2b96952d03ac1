"""Kokoro-82M in PyTorch as a fast teacher: many utterances at once, without padding.

The model code is the `kokoro` package's own (Apache-2.0). It normalises over time (instance norm,
bidirectional LSTMs), so padding would leak into the speech. Instead utterances are grouped twice:
by their number of phonemes for the text side, and by their number of 25 ms frames for the waveform
side. Trailing silence is lengthened by at most three frames so that groups are large. Batched
speech equals single speech, apart from the source noise that the model draws.
"""

from __future__ import annotations

import importlib.util
import io
import json
import lzma
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

T = TypeVar("T")

SAMPLE_RATE = 24_000
#: Samples per phoneme-alignment frame: 40 frames a second.
FRAME_SAMPLES = 600
#: The longest phoneme string the text encoder takes, without its two end marks.
MAX_PHONEMES = 509
#: Text lengths per stored style row of a voice.
VOICE_STRIDE = 4
_STYLE = 128
_FRAME_MULTIPLE = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One utterance to speak."""

    #: Phonemes in the teacher's alphabet (espeak's IPA with stress marks).
    phonemes: str
    #: float32 [256]: a row of a voice, or a blend of rows.
    style: NDArray[np.float32]
    speed: float


@dataclass(frozen=True, slots=True)
class Spoken:
    #: Position of the line in the list given to `Teacher.speak`.
    index: int
    #: int16 [S], S a multiple of 2400.
    samples: NDArray[np.int16]
    #: uint8 [S / 600]: the phoneme id spoken in each 25 ms.
    phonemes: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Planned:
    """A line with its durations. T phonemes (end marks included), D channels."""

    #: int64 [T].
    tokens: Tensor
    #: int64 [T], in frames of 25 ms.
    durations: Tensor
    #: float32 [T, D].
    prosody: Tensor
    #: float32 [D, T].
    text: Tensor
    #: float32 [256].
    style: Tensor


def _kokoro_model_class() -> Any:
    """The package's KModel, without its `__init__`, which requires a text front."""
    if "kokoro" not in sys.modules:
        spec = importlib.util.find_spec("kokoro")
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError(
                "the teacher needs the package kokoro==0.9.4 (see training/requirements.txt)"
            )
        package = types.ModuleType("kokoro")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["kokoro"] = package
    return importlib.import_module("kokoro.model").KModel


def _build(config: dict[str, Any]) -> nn.Module:
    nothing = io.BytesIO()
    torch.save({}, nothing)
    nothing.seek(0)
    model = _kokoro_model_class()(repo_id="local", config=config, model=nothing)
    for module in model.modules():
        if hasattr(module, "weight_g"):
            nn.utils.remove_weight_norm(module)
    return model.eval()


def read_pack(path: Path) -> dict[str, Tensor]:
    """The teacher's float32 weights from an .npz.xz pack.

    A tensor `k` is stored as `k|f` (fp16), as `k|q` codes with `k|c` tables (`k|m` 0: one table, 1:
    one per row) and shape `k|s`, or as `k|i` int8 rows with `k|r` float32 row scales.
    """
    with lzma.open(path) as file:
        arrays = np.load(io.BytesIO(file.read()))
    weights = {}
    for name in arrays["keys"].tolist():
        if f"{name}|f" in arrays:
            value = arrays[f"{name}|f"].astype(np.float32)
        elif f"{name}|i" in arrays:
            rows = arrays[f"{name}|i"]
            value = rows.astype(np.float32) * arrays[f"{name}|r"].reshape(
                -1, *[1] * (rows.ndim - 1)
            )
        else:
            codes, tables, shape = arrays[f"{name}|q"], arrays[f"{name}|c"], arrays[f"{name}|s"]
            if int(arrays[f"{name}|m"]) == 0:
                value = tables[0][codes]
            else:
                value = np.take_along_axis(
                    tables, codes.reshape(len(tables), -1).astype(np.int64), axis=1
                )
            value = value.reshape(tuple(shape))
        weights[name] = torch.from_numpy(np.ascontiguousarray(value))
    return weights


def shrink_pack(source: Path, target: Path) -> None:
    """Rewrite a pack with its large fp16 matrices as int8 rows, as most of the others are already:
    57 MiB become 50.
    """
    with lzma.open(source) as file:
        arrays = np.load(io.BytesIO(file.read()))
    out: dict[str, NDArray[Any]] = {}
    for name in arrays.files:
        value = arrays[name]
        if name.endswith("|f") and value.ndim >= 2 and value.size > 4096:
            rows = value.astype(np.float32).reshape(len(value), -1)
            scale = np.maximum(np.abs(rows).max(axis=1) / 127, 1e-8).astype(np.float32)
            out[f"{name[:-2]}|i"] = (
                np.round(rows / scale[:, None]).astype(np.int8).reshape(value.shape)
            )
            out[f"{name[:-2]}|r"] = scale
        else:
            out[name] = value
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **out)
    # Weights look like noise: no byte predicts the next one, so literals need no context.
    coder = {"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}
    target.write_bytes(lzma.compress(buffer.getvalue(), filters=[coder]))


def thin_voices(source: Path, target: Path) -> None:
    """Keep every fourth row of the voices: a row is the style for one text length, and neighbours
    are alike.
    """
    voices = np.load(source)
    thin = {name: voices[name][::VOICE_STRIDE].astype(np.float16) for name in voices.files}
    np.savez_compressed(target, allow_pickle=False, **thin)


def read_voices(path: Path) -> dict[str, NDArray[np.float32]]:
    """Name -> float32 [rows, 256]; row r serves texts of about `VOICE_STRIDE * r` phonemes."""
    voices = np.load(path)
    return {name: voices[name].astype(np.float32) for name in voices.files}


def style_row(voice_RD: NDArray[np.float32], phonemes: int) -> NDArray[np.float32]:
    """float32 [256]: the voice's style for a text of so many phonemes."""
    return voice_RD[min(round(phonemes / VOICE_STRIDE), len(voice_RD) - 1)]


def _groups(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), max(1, size)):
        yield items[start : start + max(1, size)]


class Teacher:
    """Speaks lines on one device. Not for gradients; random only in the source noise of its
    vocoder.
    """

    def __init__(self, pack: Path, config: Path, device: torch.device) -> None:
        settings = json.loads(config.read_text(encoding="utf-8"))
        model = _build(settings)
        # Identity affines of instance norms and an unused pooler are not in the pack; a leftover
        # key would be an error.
        unexpected = model.load_state_dict(read_pack(pack), strict=False).unexpected_keys
        if unexpected:
            raise ValueError(
                f"{pack} has tensors that the model lacks: {unexpected[:3]}; use kokoro 0.9.4"
            )
        self.model: Any = model.to(device)
        self.vocab: dict[str, int] = settings["vocab"]
        self.device = device

    def ids(self, phonemes: str) -> list[int]:
        """Phoneme ids between the two end marks; characters outside the alphabet are left out."""
        known = [self.vocab[symbol] for symbol in phonemes if symbol in self.vocab]
        return [0, *known[:MAX_PHONEMES], 0]

    @torch.inference_mode()
    def speak(self, lines: list[Line], *, batch_frames: int) -> Iterator[Spoken]:
        """Speak every line, in any order; a group holds at most `batch_frames` frames of 25 ms."""
        by_frames: defaultdict[int, list[tuple[int, _Planned]]] = defaultdict(list)
        for index, plan in self._plans(lines, batch_frames):
            by_frames[int(plan.durations.sum())].append((index, plan))
        for frames, planned in sorted(by_frames.items()):
            for part in _groups(planned, batch_frames // frames):
                yield from self._voice(part)

    @torch.inference_mode()
    def seconds(self, lines: list[Line], *, batch_frames: int) -> list[float]:
        """The duration of each line, without speaking it."""
        frames = {
            index: int(plan.durations.sum()) for index, plan in self._plans(lines, batch_frames)
        }
        return [frames[index] * FRAME_SAMPLES / SAMPLE_RATE for index in range(len(lines))]

    def _plans(self, lines: list[Line], batch_frames: int) -> Iterator[tuple[int, _Planned]]:
        """Every line's plan with its position, in groups of equally many phonemes."""
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        ids = [self.ids(line.phonemes) for line in lines]
        for index, row in enumerate(ids):
            by_length[len(row)].append(index)
        for length, members in by_length.items():
            for group in _groups(members, batch_frames // length):
                yield from zip(
                    group,
                    self._plan([ids[i] for i in group], [lines[i] for i in group]),
                    strict=True,
                )

    def _plan(self, ids_BT: list[list[int]], lines: list[Line]) -> list[_Planned]:
        """Durations and text features of lines that have equally many phonemes."""
        model = self.model
        tokens_BT = torch.tensor(ids_BT, device=self.device)
        style_BD = torch.from_numpy(np.stack([line.style for line in lines])).to(self.device)
        lengths_B = torch.full((len(lines),), tokens_BT.shape[1])
        mask_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        hidden_BDT = model.bert_encoder(
            model.bert(tokens_BT, attention_mask=(~mask_BT).int())
        ).transpose(1, 2)
        prosody_BTD = model.predictor.text_encoder(
            hidden_BDT, style_BD[:, _STYLE:], lengths_B, mask_BT
        )
        steps_BTD = torch.sigmoid(
            model.predictor.duration_proj(model.predictor.lstm(prosody_BTD)[0])
        )
        speed_B = torch.tensor([line.speed for line in lines], device=self.device)
        durations_BT = (steps_BTD.sum(-1) / speed_B[:, None]).round().clamp(min=1).long()
        durations_BT[:, -1] += -durations_BT.sum(-1) % _FRAME_MULTIPLE
        text_BDT = model.text_encoder(tokens_BT, lengths_B, mask_BT)
        durations_BT = durations_BT.cpu()
        return [
            _Planned(*row)
            for row in zip(
                tokens_BT.cpu(), durations_BT, prosody_BTD, text_BDT, style_BD, strict=True
            )
        ]

    def _voice(self, group: list[tuple[int, _Planned]]) -> Iterator[Spoken]:
        """Waveforms of planned lines that have equally many frames."""
        model = self.model
        source = [
            torch.repeat_interleave(torch.arange(len(plan.durations)), plan.durations)
            for _, plan in group
        ]
        rows = [index_F.to(self.device) for index_F in source]
        prosody_BDF = torch.stack(
            [p.prosody[row] for (_, p), row in zip(group, rows, strict=True)]
        ).transpose(1, 2)
        text_BDF = torch.stack([p.text[:, row] for (_, p), row in zip(group, rows, strict=True)])
        style_BD = torch.stack([plan.style for _, plan in group])
        pitch_BF, energy_BF = model.predictor.F0Ntrain(prosody_BDF, style_BD[:, _STYLE:])
        wave_B1S = model.decoder(text_BDF, pitch_BF, energy_BF, style_BD[:, :_STYLE])
        pcm_BS = (wave_B1S[:, 0].clamp(-1, 1) * 32767).short().cpu().numpy()
        for (index, plan), pcm_S, row in zip(group, pcm_BS, source, strict=True):
            yield Spoken(
                index, pcm_S[: len(row) * FRAME_SAMPLES], plan.tokens[row].to(torch.uint8).numpy()
            )
