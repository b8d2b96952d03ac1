"""Engines on several GPUs behind one address: their devices, bad settings, and the spread of
requests.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from hocket.config import EngineConfig
from hocket.core import SpeechRequest
from hocket.engine.build import engine_memory
from hocket.engine.engine import Engine
from hocket.errors import ConfigError
from hocket.server.profiles import load_profile, parse_settings
from hocket.server.serve import _plan
from hocket.server.settings import Profile
from hocket.worker.client import EngineClient
from hocket.worker.messages import EngineSpec
from hocket.worker.pool import EnginePool
from hocket.worker.process import run_worker
from tests.support.cli_runner import run, run_process
from tests.support.fake_engine import FakePool


def profile(*settings: str) -> Profile:
    return load_profile("default", parse_settings(settings)).profile


def devices(*settings: str) -> list[str]:
    return [spec.device for spec in profile(*settings).engine_specs]


def test_each_engine_gets_its_gpu() -> None:
    assert devices("device=cuda", "gpus=1") == ["cuda:0"]
    assert devices("device=cuda", "gpus=3") == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices("device=cuda", "gpus=2", "workers=2") == ["cuda:0", "cuda:1"]
    assert devices("device=cuda", "gpus=2", "workers=6") == ["cuda:0", "cuda:1"] * 3
    specs = profile("device=cuda", "gpus=2", "workers=4").engine_specs
    assert [spec.workers for spec in specs] == [4] * 4, "they share the cores of one machine"


def test_the_command_line_and_a_profile_say_it(tmp_path: Path) -> None:
    done = run("serve", "--gpus", "2", "--profile", "latency", "--print-config")
    assert re.search(r"^gpus +2 +# flag$", done.out, re.MULTILINE)
    assert re.search(r"^workers +null +# built in$", done.out, re.MULTILINE)
    file = tmp_path / "two.yaml"
    file.write_text("extends: throughput\ngpus: 2\n", encoding="utf-8")
    assert [spec.device for spec in load_profile(str(file)).profile.engine_specs] == [
        "cuda:0",
        "cuda:1",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--gpus", "2"),
            "gpus (flag): 2 GPUs were asked for, but the device is 'cpu'; name a profile for GPUs",
        ),
        (
            ("--gpus", "2", "--set", "device=cuda:1"),
            "gpus (flag): 2 GPUs were asked for, but the device is 'cuda:1';",
        ),
        (("--gpus", "0", "--set", "device=cuda"), "gpus is 0 (flag): it must be at least 1"),
        (
            ("--gpus", "2", "--workers", "3", "--set", "device=cuda"),
            "workers (flag): 3 engines cannot be shared out evenly over 2 GPUs; give a multiple",
        ),
        (
            ("--gpus", "4", "--workers", "2", "--set", "device=cuda"),
            "workers (flag): 2 engines cannot be shared out evenly over 4 GPUs; give a multiple",
        ),
    ],
)
def test_what_does_not_go_together(arguments: tuple[str, ...], message: str) -> None:
    done = run("serve", *arguments, "--print-config")
    assert done.code == 2
    assert message in done.error


def test_more_than_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = torch.cuda.device_count()
    settings = ("--set", "device=cuda", "--set", f"gpus={there + 1}", "--port", "0")
    done = run_process("serve", *settings, HOCKET_HOME=str(tmp_path))
    assert done.code == 2
    assert (
        f"gpus is {there + 1}, but PyTorch sees {there} of them on this machine; lower it"
        in done.error
    )
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    spec = profile("device=cuda", "gpus=3").engine_specs[0]
    with pytest.raises(
        ConfigError, match="gpus is 3, but PyTorch sees 2 of them on this machine; lower it"
    ) as caught:
        run_worker("ipc:///nowhere", spec, lambda _: None)
    assert caught.value.param == "gpus"


def test_the_first_lines_say_where(golden: Path) -> None:
    model = (f"model={golden / 'local_tiny'}", f"codec={golden / 'codec2_tiny'}", "device=cuda")
    memory = engine_memory(
        str(golden / "local_tiny"), str(golden / "codec2_tiny"), torch.float32, EngineConfig()
    )
    plan = "\n".join(
        _plan(profile(*model, "gpus=2", "workers=4", "engine.codec_device=cuda:3"), memory)
    )
    assert "on cuda:0 to cuda:1 (codec on cuda:3), 4 engines\n" in plan
    assert "\n         all that 4 times\n" in plan
    assert "float32 on cuda\n" in "\n".join(_plan(profile(*model), memory))


def test_requests_go_to_the_gpu_with_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    workers: dict[str, FakePool] = {}

    async def start(spec: EngineSpec, **_: object) -> FakePool:
        workers[spec.device] = FakePool(
            prefill_seconds=1000
        )  # requests that do not end by themselves
        return workers[spec.device]

    monkeypatch.setattr(EngineClient, "start", start)

    async def given(pool: EnginePool, count: int) -> list[int]:
        """Number of `count` more requests that each of the three gets."""
        before = [worker.open_requests for worker in workers.values()]
        for _ in range(count):
            await pool.submit(SpeechRequest(text="Hello."))
        return [
            worker.open_requests - old for worker, old in zip(workers.values(), before, strict=True)
        ]

    async def speak() -> None:
        pool = await EnginePool.start(profile("device=cuda", "gpus=3").engine_specs)
        assert list(workers) == ["cuda:0", "cuda:1", "cuda:2"]
        assert await given(pool, 6) == [2, 2, 2]
        workers["cuda:1"].cancel_all()
        await asyncio.sleep(0.01)
        assert await given(pool, 2) == [0, 2, 0]
        workers["cuda:2"].cancel_all()
        await asyncio.sleep(0.01)
        workers["cuda:2"].state = "down"
        assert await given(pool, 4) == [2, 2, 0]

    asyncio.run(speak())


class LoadedError(Exception):
    """The engine would be loaded now."""


def test_a_worker_keeps_to_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def load(*_: object, device: str, **__: object) -> NoReturn:
        calls.append(device)
        raise LoadedError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(Engine, "load", load)
    for spec in profile("device=cuda", "gpus=2").engine_specs:
        with pytest.raises(LoadedError):
            run_worker("ipc:///nowhere", spec, lambda _: calls.append("planned"))
    assert calls == [0, "planned", "cuda:0", 1, "planned", "cuda:1"]
