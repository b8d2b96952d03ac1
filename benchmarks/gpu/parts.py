"""Times of a model's parts at full size with random weights, in the CUDA graphs that the engine
replays.

    python -m benchmarks.gpu.parts [--json FILE] [--model moss-tts-local-v1.5]
                                   [--rows 1,16,64,128,256] [--profile]

Parts: `advance`, a step of the backbone that feeds one frame of each row back; `draw`, a frame's
codes from the hidden states (with the sampling of the model's authors); `pages`, prefill of 32
prompt rows each; `decode`, codec chunks to samples. Inputs are uploaded once, then the graph is
replayed for a while between two events; the time is the median of several such runs. Beside each
time: its floor, the larger of bytes over 4.3 TB/s and operations over 790 TFLOP/s; the time of the
shortest plain PyTorch program for the same arithmetic in a graph on one H200; and the target, if
any. `--profile` also lists the kernels in which the largest graphs and the codec's first chunks
spend their time.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.gpu.floors import (
    MEASURED_MODEL,
    PLAIN_MS,
    TARGET_MS,
    Work,
    advance_work,
    decode_work,
    draw_work,
    pages_work,
)
from benchmarks.gpu.tools import Report, device_of, kernels_us, numbers, parser_of, time_us
from hocket.bench.engine.random_model import random_models
from hocket.core import PromptRows
from hocket.engine.runners.codec import CodecRunner
from hocket.engine.runners.device import Launcher
from hocket.engine.runners.padding import PrefillSlice
from hocket.engine.runners.talker import TalkerRunner
from hocket.kernels.types import FP8
from hocket.models.codec import Codec
from hocket.models.family import LoadedTalker
from hocket.models.layers.fp8 import check_fp8_device, quantize_models

PAGE_ROWS = 32
#: Pages of a prompt in prefill: 160 rows, the length of a cloned voice.
PROMPT_PAGES = 5
#: Position of codec streams, in frames: all rings are full.
HEARD_FRAMES = 500


HEADER = f"{'':<10}{'ms':>9}{'floor':>9}{'ratio':>7}{'plain':>9}{'target':>9}"


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--model", default=MEASURED_MODEL, help="dimensions, as for hocket bench engine"
    )
    parser.add_argument("--codec", help="folder of the codec, where the model does not bring it")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument(
        "--quantize", choices=["fp8"], help="8-bit weights and activations, as engine.quantize"
    )
    parser.add_argument(
        "--kv-dtype", default="auto", choices=["auto", "fp8"], help="as engine.kv_dtype"
    )
    parser.add_argument("--rows", type=numbers, default=[1, 16, 64, 128, 256])
    parser.add_argument("--context", type=int, default=320, help="positions that a step attends to")
    parser.add_argument("--pages", type=numbers, default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--streams", type=numbers, default=[1, 8, 16, 32])
    parser.add_argument("--frames", type=numbers, default=[1, 2, 4, 8, 15])
    parser.add_argument(
        "--profile", action="store_true", help="also list kernels and their times, on a GPU"
    )
    arguments = parser.parse_args()
    device = device_of(arguments.device)
    report = Report(arguments, device)
    report.document |= {
        name: getattr(arguments, name) for name in ("model", "dtype", "quantize", "kv_dtype")
    }
    dtype = getattr(torch, arguments.dtype)
    model, codec = random_models(
        arguments.model, arguments.codec, device=device, dtype=dtype, seed=0
    )
    if arguments.quantize:
        check_fp8_device(device)
        quantize_models(model.talker, codec)
    bench = Bench(report, arguments, model, codec, device)
    talker = report.attempt("talker runner", bench.talker_runner)
    if talker is not None:
        bench.frames(talker)
        bench.pages(talker)
        bench.chunks()
    if device.type == "cuda":
        report.figures["memory_gb"] = round(torch.cuda.max_memory_reserved(device) / 1e9, 2)
        print(f"\nmemory: {report.figures['memory_gb']} GB", flush=True)
    return report.finish()


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurements, and the report that they go to."""

    report: Report
    arguments: Namespace
    model: LoadedTalker
    codec: Codec
    device: torch.device

    def talker_runner(self) -> TalkerRunner:
        """A runner with the rows of the largest batch, each with its own pages; state is random."""
        rows, config = max(self.arguments.rows), self.model.talker.config
        width = max(1024 // PAGE_ROWS, -(-self.arguments.context // PAGE_ROWS))
        runner = TalkerRunner(
            self.model.talker,
            rows=rows,
            pages=1 + rows * width,
            page_rows=PAGE_ROWS,
            max_frames=width * PAGE_ROWS,
            kv_dtype=FP8 if self.arguments.kv_dtype == "fp8" else None,
        )
        prompt = PromptRows(
            np.zeros((1, 1 + config.n_vq), np.int64),
            np.zeros((0, config.n_vq), np.int64),
            voice=np.zeros(config.voice_size, np.float32),
        )
        for row in range(rows):
            runner.start(row, self.model.sampling, seed=row, min_frames=0, prompt=prompt)
        with runner._launcher.active():
            for tensor in (*runner._kv.keys, *runner._kv.values):
                # PyTorch has no random numbers of 8 bits.
                tensor.copy_(torch.randn(tensor.shape, device=self.device))
            if runner._kv.scales is not None:
                runner._kv.scales.fill_(1.0)
            runner._hidden_RD.normal_()
            runner.codes_RFN.random_(0, min(config.audio_codebook_sizes))
            runner._put_table(1 + np.arange(rows * width, dtype=np.int32).reshape(rows, width))
        return runner

    def frames(self, runner: TalkerRunner) -> None:
        """Measure a backbone step, and the draw of a frame."""
        talker, sampling, context = (
            self.model.talker,
            self.model.sampling.codes,
            self.arguments.context,
        )
        frame = min(context - 1, 50)

        def launch(rows: int, is_draw: bool) -> None:
            place = np.array([np.arange(rows), np.full(rows, frame), np.full(rows, context - 1)])
            places = runner._put_frames(place, rows)
            if is_draw:
                runner._draw(places, sampling.repetition_penalty != 1)
            else:
                runner._advance(places, None, None)

        launcher, max_rows = runner._launcher, max(self.arguments.rows)
        print(f"\nadvance: a backbone step at {context} positions\n{HEADER}", flush=True)
        for rows in self.arguments.rows:
            self.show(
                f"advance/{rows}",
                launcher,
                partial(launch, rows, False),
                partial(advance_work, talker, runner._kv.keys.dtype, rows, context),
                is_listed=rows == max_rows,
            )
        rules = f"T {sampling.temperature}, top-k {sampling.top_k}, top-p {sampling.top_p}"
        print(f"\ndraw: {talker.config.n_vq} codes, {rules}\n{HEADER}", flush=True)
        for rows in self.arguments.rows:
            self.show(
                f"draw/{rows}",
                launcher,
                partial(launch, rows, True),
                partial(draw_work, talker, rows),
                is_listed=rows == max_rows,
            )

    def pages(self, runner: TalkerRunner) -> None:
        """Measure prefill."""
        talker, rows, random = self.model.talker, max(self.arguments.rows), np.random.default_rng(0)
        entries = min(talker.config.audio_codebook_sizes)

        def launch(count: int) -> None:
            shape = (count, PAGE_ROWS, 1 + talker.config.n_vq)
            # With fewer rows than prompts some rows are written twice, which is the same work.
            runner._run_pages(
                [
                    PrefillSlice(
                        i // PROMPT_PAGES % rows, rows_TR, i % PROMPT_PAGES * PAGE_ROWS, True
                    )
                    for i, rows_TR in enumerate(random.integers(0, entries, shape))
                ]
            )

        print(
            f"\npages: prefill of {PAGE_ROWS} rows each, {PROMPT_PAGES} pages a prompt\n{HEADER}",
            flush=True,
        )
        max_pages = max(self.arguments.pages)
        for count in self.arguments.pages:
            min_work = partial(pages_work, talker, count, PAGE_ROWS)
            self.show(
                f"pages/{count}",
                runner._launcher,
                partial(launch, count),
                min_work,
                is_listed=count == max_pages,
            )

    def chunks(self) -> None:
        """Measure the codec, with the rings of all streams full."""
        arguments, config = self.arguments, self.codec.config
        streams = max(arguments.streams)
        shape = (max(arguments.frames), self.model.talker.config.n_vq)
        codes_FN = np.random.default_rng(0).integers(0, config.codebook_size, shape)
        runner = self.report.attempt(
            "codec runner",
            lambda: CodecRunner(
                self.codec, rows=streams, chunk_sizes=arguments.frames, max_batch=streams
            ),
        )
        if runner is None:
            return
        path = runner._steady
        with path.launcher.active():
            for ring in (
                ring for stage in path.state.stages if stage is not None for ring in stage.layers
            ):
                ring.keys.normal_()
                ring.values.normal_()
            path.state.tails.normal_()

        def launch(count: int, frames: int) -> object:
            # Replays continue from here; a stream has no end.
            path.state.offsets.fill_(HEARD_FRAMES)
            pieces = [codes_FN[:frames]] * count
            if runner.packs:
                return runner._decode_packed(path, range(count), pieces)
            return runner._decode(path, range(count), pieces, frames)

        print(f"\ndecode: codec, streams x frames\n{HEADER}{'audio-s/s':>11}", flush=True)
        for count in arguments.streams:
            for frames in arguments.frames:
                self.show(
                    f"decode/{count}x{frames}",
                    path.launcher,
                    partial(launch, count, frames),
                    partial(decode_work, self.codec, count, frames),
                    audio_seconds=count * frames * config.frame_samples / config.sample_rate,
                    is_listed=(count, frames) in ((streams, max(arguments.frames)), (1, 1)),
                )

    def show(
        self,
        name: str,
        launcher: Launcher,
        launch: Callable[[], object],
        min_work: Callable[[], Work | None],
        *,
        audio_seconds: float | None = None,
        is_listed: bool = False,
    ) -> None:
        """Measure, note and print one size of a part; with `--profile` also its kernels, where it
        `is_listed`.
        """

        def figure() -> dict[str, Any]:
            with launcher.active():
                again = replay(launcher, launch)
                ms = time_us(again, self.device, min_ms=30.0) / 1e3
            found: dict[str, Any] = {"ms": round(ms, 4)}
            if (work := min_work()) is not None:
                found |= {
                    "floor_ms": round(work.floor_ms, 6),
                    "ratio": round(ms / work.floor_ms, 2),
                }
                found |= {
                    "gbytes": round(work.nbytes / 1e9, 4),
                    "gflop": round(work.flops / 1e9, 3),
                }
            if audio_seconds is not None:
                found["audio_s_per_s"] = round(1e3 * audio_seconds / ms, 1)
            return found

        found = self.report.measure(name, figure)
        if found is None:
            return
        line = f"{name.partition('/')[2]:<10}{found['ms']:>9.3f}"
        line += (
            f"{found['floor_ms']:>9.3f}{found['ratio']:>7.2f}"
            if "floor_ms" in found
            else f"{'-':>9}{'-':>7}"
        )
        for table in (PLAIN_MS, TARGET_MS):
            line += (
                f"{table[name]:>9.2f}"
                if self.arguments.model == MEASURED_MODEL and name in table
                else f"{'-':>9}"
            )
        print(
            line + (f"{found['audio_s_per_s']:>11.1f}" if audio_seconds is not None else ""),
            flush=True,
        )
        if self.arguments.profile and is_listed and self.device.type == "cuda":
            self._list(name, launcher, launch)

    def _list(self, name: str, launcher: Launcher, launch: Callable[[], object]) -> None:
        def profile() -> dict[str, tuple[float, int]]:
            with launcher.active():
                return kernels_us(replay(launcher, launch), self.device)

        for kernel, (us, count) in list(
            (self.report.measure(f"kernels_us/{name}", profile) or {}).items()
        )[:14]:
            print(f"    {us:>9.1f} us {count:>5} x {kernel[:90]}", flush=True)


def replay(launcher: Launcher, launch: Callable[[], object]) -> Callable[[], object]:
    """Call `launch` once; returns a call that replays its program on the inputs now in place."""
    with mock.patch.object(launcher, "run", wraps=launcher.run) as run:
        launch()
    (key, program), _ = run.call_args
    return lambda: launcher.run(key, program)


if __name__ == "__main__":
    sys.exit(main())
