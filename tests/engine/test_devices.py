"""The devices of an engine's parts, and the current GPU while they work. A CPU stands for
the GPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest
import torch

from hocket.bench.engine.random_model import random_models
from hocket.config import EngineConfig
from hocket.engine import build as loading
from hocket.engine.runners.device import Launcher
from hocket.errors import ConfigError
from hocket.kernels import ops

CUDA0, CUDA1 = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


class AssembledError(Exception):
    """Raised once everything is loaded."""


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize(
    ("device", "codec_device", "places"),
    [
        ("cuda:0", None, [CUDA0, CUDA0]),
        ("cuda:0", "cuda:1", [CUDA0, CUDA1]),
        ("cuda:1", "cuda:0", [CUDA1, CUDA0]),
        ("cpu", None, [torch.device("cpu")] * 2),
    ],
)
def test_the_codec_goes_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
    golden: Path,
    device: str,
    codec_device: str | None,
    places: list[torch.device],
) -> None:
    loaded: list[torch.device] = []

    def load(_folder: Path, *, device: torch.device, **_: object) -> None:
        loaded.append(device)

    def assemble(*_: object, **__: object) -> NoReturn:
        raise AssembledError

    monkeypatch.setattr(loading, "load_talker", load)
    monkeypatch.setattr(loading, "load_codec", load)
    monkeypatch.setattr(loading, "assemble", assemble)
    config = EngineConfig(codec_device=codec_device)
    with pytest.raises(AssembledError):
        loading.load_parts(
            golden / "local_tiny",
            golden / "codec2_tiny",
            device=device,
            dtype="float32",
            config=config,
        )
    assert loaded == places


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize(
    ("device", "codec_device", "message"),
    [
        (
            "cuda:0",
            "cuda:2",
            r"codec_device is 'cuda:2', but this machine has 2 GPU\(s\), from cuda:0 on",
        ),
        ("cuda:0", "gpu", "codec_device is 'gpu'; use cpu, cuda or cuda:N"),
        (
            "cuda:0",
            "cpu",
            "codec_device is 'cpu' and the talker's device 'cuda:0'; two GPUs can share the work",
        ),
        (
            "cpu",
            "cuda:1",
            "codec_device is 'cuda:1' and the talker's device 'cpu'; two GPUs can share the work",
        ),
    ],
)
def test_places_that_there_are_not(device: str, codec_device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        loading.engine_devices(device, EngineConfig(codec_device=codec_device))
    assert caught.value.param == "codec_device"
    # A codec that is not loaded has no place.
    places = loading.engine_devices(
        device, EngineConfig(codec_device=codec_device), has_codec=False
    )
    assert places == (torch.device(device),) * 2


@pytest.mark.parametrize("param", ["quantize", "kv_dtype"])
def test_fp8_is_refused_before_anything_is_loaded(
    param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig.model_validate({param: "fp8"})
    monkeypatch.setattr(loading, "load_talker", mock.Mock(side_effect=AssertionError("loaded")))
    with pytest.raises(ConfigError, match=f"{param} is fp8, which cpu cannot compute") as caught:
        loading.load_parts(None, None, device="cpu", dtype="float32", config=config)
    assert caught.value.param == param


def test_random_models_go_there_too(golden: Path) -> None:
    cpu, meta = torch.device("cpu"), torch.device("meta")
    model = (str(golden / "local_tiny"), str(golden / "codec2_tiny"))
    with mock.patch("hocket.bench.engine.random_model.fill") as fill:
        random_models(*model, device=cpu, codec_device=meta, dtype=torch.float32, seed=0)
    assert [call.kwargs["device"] for call in fill.call_args_list] == [cpu, meta]


# ---- the current GPU


class Gpus:
    """Notes the current GPU and stream, as PyTorch's context managers set them."""

    def __init__(self) -> None:
        self.current: list[object] = []
        self.log: list[tuple[object, ...]] = []

    @contextlib.contextmanager
    def enter(self, what: object) -> Iterator[None]:
        self.current.append(what)
        try:
            yield
        finally:
            assert self.current.pop() is what

    def note(self, *what: object) -> None:
        self.log.append((*what, *self.current))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    noted = Gpus()
    monkeypatch.setattr(torch.cuda, "device", noted.enter)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    class Stream(str):
        __slots__ = ("entered",)

        def __new__(cls, device: torch.device, priority: int) -> Stream:
            return super().__new__(cls, f"stream of {device}")

        def __enter__(self) -> None:
            self.entered = noted.enter(self)
            self.entered.__enter__()

        def __exit__(self, *error: object) -> None:
            self.entered.__exit__(None, None, None)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: noted.note("wait", device))
    return noted


def test_programs_run_on_their_own_gpu(monkeypatch: pytest.MonkeyPatch, gpus: Gpus) -> None:
    class Graph:
        def pool(self) -> str:
            return "pool"

        def replay(self) -> None:
            gpus.note("replay")

    @contextlib.contextmanager
    def graph(*_: object, stream: object, **__: object) -> Iterator[None]:
        gpus.note("record", stream)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    launcher = Launcher(CUDA1)
    assert launcher.records
    for _ in range(2):
        with launcher.active():
            launcher.run("key", lambda: gpus.note("call"))
    stream = "stream of cuda:1"
    here = (CUDA1, stream)
    assert gpus.log == [
        # What filled the inputs is waited for before the first call reads them.
        ("wait", CUDA1, *here),
        ("call", *here),
        ("record", stream, *here),
        ("call", *here),
        ("replay", *here),
        ("replay", *here),
    ]
    assert not gpus.current


def test_a_cpu_has_no_current_gpu(gpus: Gpus) -> None:
    launcher = Launcher(torch.device("cpu"))
    with launcher.active():
        launcher.run("key", lambda: gpus.note("call"))
        assert torch.is_inference_mode_enabled()
    assert gpus.log == [("call",)]


def test_kernels_are_launched_where_their_tensors_are(
    monkeypatch: pytest.MonkeyPatch, gpus: Gpus
) -> None:
    def kernel(first: Any, *rest: object) -> str:
        gpus.note("kernel")
        return "done"

    monkeypatch.setitem(vars(ops.silu_mul), "gpu", kernel)
    with torch.inference_mode():
        assert ops.silu_mul(mock.Mock(device=CUDA1)) == "done"
    assert gpus.log == [("kernel", CUDA1)]
