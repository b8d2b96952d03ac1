"""The golden checkpoints on a device, for `benchmarks.gpu.check`: whole engines, and codecs
alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from benchmarks.gpu.tools import ROOT
from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import AudioArray, Samples, Sampling, Speech, SpeechRequest
from hocket.engine.engine import Engine
from hocket.engine.runners.device import Launcher
from hocket.models.registry import load_codec

GOLDEN = ROOT / "tests" / "golden"
QWEN3 = ("base_1b7", "base_0b6", "custom_1b7", "custom_0b6", "design_1b7")
#: One checkpoint for each codec, and one for each set of dimensions.
CODECS = ("local_tiny", "base_1b7")
BF16 = ("local_tiny", "base_1b7", "base_0b6")
#: Largest error of samples, relative to the root mean square of a CPU's in float32. These networks
#: are random and amplify bf16 rounding: on a CPU, too, samples are up to 13 % off.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.5}
#: Few, small batches, so that recording graphs takes seconds.
CONFIG = EngineConfig(
    rows=3,
    max_context_rows=512,
    prefix_cache=False,
    chunks=ChunkPolicy(
        ramp_frames=(2,), steady_chunk_frames=4, min_batch=1, max_batch=2, max_wait_ms=0.0
    ),
)
_PREFILL_ROWS = 64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A golden checkpoint: greedy requests, and the official classes' frames of each, [F, N]."""

    name: str
    model: Path
    codec: Path
    greedy: list[SpeechRequest]
    frames: list[NDArray[np.int64]]

    @property
    def sampled(self) -> list[SpeechRequest]:
        """The first requests, sampled with noise that is the same on every device."""
        rules = [
            Sampling(temperature=1.7, top_k=25, top_p=0.8),
            Sampling(temperature=1.0, top_k=0, top_p=0.95, repetition_penalty=1.2),
            Sampling(temperature=0.9, top_k=5, top_p=1.0),
        ]
        return [
            request.model_copy(
                update={"sampling": rule, "seed": seed, "max_frames": 8, "min_frames": 8}
            )
            for seed, (request, rule) in enumerate(zip(self.greedy, rules, strict=False))
        ]

    def engine(self, device: torch.device, dtype: str) -> Engine:
        with mock.patch("hocket.engine.runners.talker.MAX_PREFILL_ROWS", _PREFILL_ROWS):
            return Engine.load(
                self.model, self.codec, device=str(device), dtype=dtype, config=CONFIG
            )

    def speak_on_cpu(self) -> tuple[list[Speech], list[Speech]]:
        """Generate the greedy and the sampled requests on a CPU in float32."""
        engine = self.engine(torch.device("cpu"), "float32")
        return engine.generate_many(self.greedy), engine.generate_many(self.sampled)


def checkpoints() -> dict[str, Checkpoint]:
    """All golden checkpoints by name."""
    return {one.name: one for one in (_moss(), *map(_qwen3, QWEN3))}


def _moss() -> Checkpoint:
    folder = GOLDEN / "local_tiny"
    cases = json.loads((folder / "golden_prompts.json").read_text())["cases"]
    prompts, golden = (
        load_file(folder / f"golden_{name}.safetensors") for name in ("prompts", "local")
    )
    references = {"one_ref": ["r1"], "two_ref": ["r1", "r2"], "continuation": ["c1"]}
    requests, frames = [], []
    for case in ("plain", "fields", "one_ref", "two_ref", "continuation"):
        fields = dict(cases[case]["fields"])
        codes = [prompts[f"codes/{name}"] for name in references.get(case, [])]
        if codes:
            fields["reference"] = codes if len(codes) > 1 else codes[0]
        if case == "continuation":
            fields |= {"reference_text": "None of this.", "join": ""}
            fields["text"] = fields["text"].removeprefix("None of this.")
        for penalty, name in ((1.0, "greedy_frames"), (1.5, "greedy_frames_reppen1.5")):
            wanted = golden[f"{case}/{name}"]
            sampling = Sampling(temperature=0.0, repetition_penalty=penalty)
            # A few frames more than the golden ones: the request must stop by itself.
            requests.append(
                SpeechRequest(**fields, sampling=sampling, seed=0, max_frames=len(wanted) + 4)
            )
            frames.append(wanted.astype(np.int64))
    return Checkpoint("local_tiny", folder, GOLDEN / "codec2_tiny", requests, frames)


def _qwen3(name: str) -> Checkpoint:
    folder = GOLDEN / "qwen3_tts"
    golden = load_file(folder / f"golden_{name}.safetensors")
    requests, frames = [], []
    for case, entry in json.loads((folder / f"golden_{name}.json").read_text()).items():
        settings = entry["generate_kwargs"]
        for i in range(len(entry["frames"])):
            asked = {
                key: value[i] if isinstance(value, list) else value
                for key, value in entry["request"].items()
            }
            recording = golden.get(f"{case}/ref/wav{i}")
            streaming = (
                None if "non_streaming_mode" not in asked else not asked["non_streaming_mode"]
            )
            requests.append(
                SpeechRequest(
                    text=asked["text"],
                    language=asked.get("language"),
                    voice=asked.get("speaker"),
                    instruction=asked.get("instruct"),
                    reference=None
                    if recording is None
                    else AudioArray(recording[None].astype(np.float32), 24_000),
                    reference_text=None
                    if asked.get("x_vector_only_mode")
                    else asked.get("ref_text"),
                    streaming_text=streaming,
                    sampling=Sampling(
                        temperature=0.0, repetition_penalty=settings["repetition_penalty"]
                    ),
                    seed=0,
                    max_frames=settings["max_new_tokens"] - 1,
                )
            )
            frames.append(golden[f"{case}/codes/{i}"].astype(np.int64))
    return Checkpoint(
        name, folder / name, folder / "base_1b7" / "speech_tokenizer", requests, frames
    )


@contextlib.contextmanager
def eager_execution() -> Iterator[None]:
    """Within the block programs run eagerly, with the shapes and inputs of graphs."""
    with mock.patch.object(Launcher, "run", lambda self, key, program: program()):
        yield


def check_golden(
    checkpoint: Checkpoint,
    engine: Engine,
    dtype: str,
    on_cpu: Sequence[Speech],
    sampled_on_cpu: Sequence[Speech],
) -> dict[str, Any]:
    """Compare an engine on the device to the official frames, and to the CPU's samples in
    float32.
    """
    said, sampled = (
        engine.generate_many(checkpoint.greedy),
        engine.generate_many(checkpoint.sampled),
    )
    equal = [_same(one.codes, wanted) for one, wanted in zip(said, checkpoint.frames, strict=True)]
    firsts = [
        _same(one.codes[:1], wanted[:1])
        for one, wanted in zip(said, checkpoint.frames, strict=True)
    ]
    drawn = [
        _same(one.codes, other.codes) for one, other in zip(sampled, sampled_on_cpu, strict=True)
    ]
    errors = [
        relative_rms(one.samples, other.samples)
        for one, other in zip([*said, *sampled], [*on_cpu, *sampled_on_cpu], strict=True)
        if _same(one.codes, other.codes)
    ]
    figure: dict[str, Any] = {
        "greedy_requests": len(said),
        "greedy_equal": sum(equal),
        "first_frames_equal": round(float(np.mean(firsts)), 3),
        "sampled_equal": f"{sum(drawn)} of {len(drawn)}",
        "samples_relative_rms": max(errors, default=None),
    }
    wrong = []
    if dtype == "float32":
        wrong += [
            f"greedy frames of request {i} are not the official ones"
            for i, same in enumerate(equal)
            if not same
        ]
        wrong += [
            f"sampled frames of request {i} are not the CPU's"
            for i, same in enumerate(drawn)
            if not same
        ]
    if not all(error <= TOLERANCES[dtype] for error in errors):
        wrong.append(f"samples differ by {max(errors):.1e}, more than {TOLERANCES[dtype]:.0e}")
    if not all(np.isfinite(one.samples).all() for one in said):
        wrong.append("samples are not finite")
    return {**figure, "wrong": wrong}


def check_graphs(engine: Engine, requests: Sequence[SpeechRequest]) -> dict[str, Any]:
    """Compare each request alone, through recorded graphs and eagerly."""
    recorded = [engine.generate(request) for request in requests]
    with eager_execution():
        eager = [engine.generate(request) for request in requests]
    return compare(recorded, eager, "with and without graphs")


def check_codec(checkpoint: Checkpoint, device: torch.device) -> dict[str, Any]:
    """Decode golden frames, and compare to the CPU in float32; bf16 may have twice the CPU's own
    bf16 error.
    """
    codes_TN = torch.from_numpy(np.concatenate(checkpoint.frames))
    # Engines set it the same way.
    torch.backends.cudnn.allow_tf32 = False

    def decoded(on: torch.device, dtype: torch.dtype) -> NDArray[np.float32]:
        codec = load_codec(checkpoint.codec, device=on, dtype=dtype)
        return codec.decode_whole(codes_TN.to(on)).float().cpu().numpy()

    cpu = torch.device("cpu")
    wanted = decoded(cpu, torch.float32)
    error = relative_rms(decoded(device, torch.float32), wanted)
    bf16_error, usual = (relative_rms(decoded(on, torch.bfloat16), wanted) for on in (device, cpu))
    wrong = []
    if not error <= TOLERANCES["float32"]:
        wrong.append(
            f"float32 samples differ by {error:.1e}, more than {TOLERANCES['float32']:.0e}"
        )
    if not bf16_error <= 2 * usual:
        wrong.append(f"bfloat16 samples differ by {bf16_error:.1e}, on a CPU by {usual:.1e}")
    return {
        "frames": len(codes_TN),
        "float32_relative_rms": error,
        "bfloat16_relative_rms": bf16_error,
        "bfloat16_relative_rms_on_a_cpu": usual,
        "wrong": wrong,
    }


def compare(some: Sequence[Speech], others: Sequence[Speech], what: str) -> dict[str, Any]:
    """Compare speech: codes must be equal; the figure says whether samples are equal too, or how
    far off.
    """
    codes = [_same(one.codes, other.codes) for one, other in zip(some, others, strict=True)]
    pairs = [(one, other) for one, other, same in zip(some, others, codes, strict=True) if same]
    bits = [one.samples.tobytes() == other.samples.tobytes() for one, other in pairs]
    worst = max((relative_rms(one.samples, other.samples) for one, other in pairs), default=0.0)
    wrong = [f"codes of request {i} differ {what}" for i, same in enumerate(codes) if not same]
    if not worst <= TOLERANCES["float32"]:
        wrong.append(f"samples differ by {worst:.1e} {what}")
    return {
        "requests": len(codes),
        "codes_equal": sum(codes),
        "samples_equal_bits": sum(bits),
        "samples_relative_rms": worst,
        "wrong": wrong,
    }


def relative_rms(made: Samples, wanted: Samples) -> float:
    """Root mean square of the difference over that of `wanted`; infinite for other shapes and for
    NaN.
    """
    if made.shape != wanted.shape:
        return float("inf")
    if not wanted.size:
        return 0.0
    error = float(
        np.linalg.norm(made.astype(np.float64) - wanted) / max(float(np.linalg.norm(wanted)), 1e-30)
    )
    return error if np.isfinite(error) else float("inf")


def _same(codes: NDArray[np.int64], others: NDArray[np.int64]) -> bool:
    return bool(np.array_equal(codes, others))
