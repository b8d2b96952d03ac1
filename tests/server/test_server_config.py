"""Profiles, --set, flags and variables: precedence, origins and refused values."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import pytest
import torch

from hocket.config import EngineConfig
from hocket.engine.build import engine_memory
from hocket.errors import ConfigError
from hocket.info import describe
from hocket.server.profiles import Layer, load_profile, parse_settings, profile_names
from hocket.server.serve import _plan
from hocket.server.settings import Profile
from tests.support.cli_runner import run, run_process


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_shipped_profiles() -> None:
    assert profile_names() == ["cpu", "default", "latency", "throughput"]
    for name in profile_names():
        loaded = load_profile(name)
        assert [spec.config for spec in loaded.profile.engine_specs] == [loaded.profile.engine]
    assert load_profile("default").profile.device == "cpu"
    assert {load_profile(name).profile.server.segment_characters for name in profile_names()} == {
        None
    }
    assert load_profile("throughput").profile.engine.rows == 256
    made = {name: load_profile(name).profile.engine.samples for name in profile_names()}
    assert made == {
        "cpu": "float32",
        "default": "float32",
        "latency": "int16",
        "throughput": "int16",
    }
    assert load_profile("latency").origins["device"] == "profile latency"
    assert load_profile("latency").origins["engine.max_frames"] == "built in"


def test_later_layers_win_and_every_value_has_an_origin(tmp_path: Path) -> None:
    write(
        tmp_path,
        "base.yaml",
        "extends: cpu\nengine: {rows: 5, chunks: {ramp_frames: [3, 6]}}\nserver: {port: 1}",
    )
    mine = write(tmp_path, "mine.yaml", "extends: base.yaml\nserver:\n  port: 2\n  max_queue: 3\n")
    loaded = load_profile(
        mine, parse_settings(["server.port=4", "model=null"]), Layer("flag", {"server.host": "::1"})
    )
    profile, origins = loaded.profile, loaded.origins
    assert (profile.server.port, profile.server.max_queue, profile.server.host) == (4, 3, "::1")
    assert (profile.engine.rows, profile.engine.chunks.ramp_frames) == (5, (3, 6))
    assert profile.engine.max_context_rows == 4096
    expected = {
        "server.port": "--set",
        "server.host": "flag",
        "server.max_queue": "profile mine",
        "engine.rows": "profile base",
        "engine.chunks.ramp_frames": "profile base",
        "engine.max_context_rows": "profile cpu",
        "dtype": "profile default",
        "engine.page_rows": "built in",
    }
    assert {key: origins[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "engine: {rowz: 1}",
            r"engine.rowz is not a setting \(profile bad\); did you mean engine.rows\?",
        ),
        ("volume: 11", r"volume is not a setting \(profile bad\)"),
        ("engine: 3", r"engine is not a setting"),
        ("engine: {rows: {a: 1}}", r"engine.rows.a is not a setting"),
        ("engine: {rows: 0}", r"engine.rows is 0 \(profile bad\): it must be at least 1"),
        ("engine: {rows: '8'}", r"engine.rows is '8' \(profile bad\): it must be an integer"),
        ("engine: {rows: 8.5}", r"engine.rows is 8.5"),
        ("engine: {rows: true}", r"engine.rows is True"),
        ("engine: {chunks: {max_wait_ms: .nan}}", r"engine.chunks.max_wait_ms is nan"),
        ("engine: {chunks: {ramp_frames: [2, x]}}", r"engine.chunks.ramp_frames is 'x'"),
        (
            "engine: {chunks: {ramp_frames: [9, 2]}}",
            r"engine.chunks.*: chunk sizes must not shrink",
        ),
        ("server: {port: 70000}", r"server.port is 70000"),
        ("server: {response_format: ogg}", r"server.response_format is 'ogg' .*: it must be 'wav'"),
        (
            "server: {api_keys: ['']}",
            r"server.api_keys \(profile bad\): it must have at least 1 character",
        ),
        (
            "server: {segment_characters: 19}",
            r"server.segment_characters is 19 .* it must be at least 20",
        ),
        ("server: {stall_seconds: 0}", r"server.stall_seconds is 0"),
        ("server: {fetch: {max_redirects: 99}}", r"server.fetch.max_redirects is 99"),
        ("device: 2020-01-01\ndtype: float16", r"dtype is 'float16'"),
        (
            "extends: nowhere",
            r"cannot read the profile '.*nowhere': No such file or directory; shipped ones: cpu",
        ),
        ("extends: [cpu]", r"extends is \['cpu'\] in the profile 'bad.yaml'"),
        ("extends: bad.yaml", r"extends itself \(bad.yaml -> bad.yaml\)"),
        ("- a\n- b", r"holds no settings"),
        ("a: [1", r"is not YAML \(line \d\)"),
        ("a: !!python/object:os.system x", r"is not YAML \(line 1\)"),
    ],
)
def test_bad_profiles(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_profile(write(tmp_path, "bad.yaml", text))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.rows", "is not key=value"),
        ("=3", "is not key=value"),
        ("engine.rows=[", "which is not YAML"),
        ("engine.rows=many", r"engine.rows is 'many' \(--set\)"),
        ("extends=cpu", "extends is not a setting"),
    ],
)
def test_bad_settings(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_profile("default", parse_settings([setting]))


def test_print_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_API_KEY", "sk-secret")
    monkeypatch.setenv("HOCKET_PROFILE", "latency")
    done = run("serve", "folder", "--set", "engine.rows=7", "--port", "9", "--print-config")
    assert done.code == 0
    assert "sk-secret" not in done.out
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.out.splitlines()}
    assert [
        " ".join(rows[key].split())
        for key in ("model", "engine.rows", "server.port", "server.api_keys")
    ] == [
        '"folder" # flag',
        "7 # --set",
        "9 # flag",
        "(1 hidden) # HOCKET_API_KEY",
    ]
    assert rows["device"].split()[0] == '"cuda"'
    keys = run(
        "serve", "--api-key", "a", "--api-key", "b", "--profile", "default", "--print-config"
    ).out
    assert "(2 hidden)" in keys
    assert '"cpu"' in keys


def test_several_engines() -> None:
    def devices(*settings: str) -> list[str]:
        return [
            spec.device
            for spec in load_profile("default", parse_settings(settings)).profile.engine_specs
        ]

    assert devices("workers=3") == ["cpu"] * 3
    assert devices("device=cuda") == ["cuda"]
    assert devices("device=cuda", "workers=2") == ["cuda"] * 2
    assert devices("device=cuda:1", "workers=2") == ["cuda:1"] * 2
    done = run("serve", "--workers", "2", "--print-config")
    assert re.search(r"^workers +2 +# flag$", done.out, re.MULTILINE)
    assert "workers is 0" in run("serve", "--workers", "0", "--print-config").error
    profile = load_profile("default", parse_settings(["workers=2"])).profile
    plan = "\n".join(_plan(profile, engine_memory(None, None, torch.float32, profile.engine)))
    assert ", 2 engines" in plan
    assert "all that 2 times\n" in plan
    specs = load_profile("default", parse_settings(["workers=2"])).profile.engine_specs
    assert [spec.workers for spec in specs] == [2, 2], "each takes its share of the cores"


def test_every_setting_is_printed() -> None:
    printed = {line.split()[0] for line in run("serve", "--print-config").out.splitlines()}
    assert printed == set(load_profile("default").origins)
    assert {"model", "server.fetch.allow_private", "engine.reference_cache.folder"} <= printed
    assert Profile().served_name == "hocket-mini"


def test_what_keeps_a_server_from_starting(tmp_path: Path, golden: Path) -> None:
    home = str(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_process("serve", "--port", str(port), HOCKET_HOME=home)
    assert done.code == 2
    assert (
        f"cannot listen at 127.0.0.1 port {port}: Address already in use; choose another"
        in done.error
    )
    missing = run_process("serve", str(tmp_path / "nothing"), "--port", "0", HOCKET_HOME=home)
    assert missing.code == 2
    assert "nothing" in missing.error
    assert "mean engine.rows" in run_process("serve", "--set", "engine.row=1").error
    # Only the worker finds out what is wrong here; its words come through.
    model = shutil.copytree(golden / "local_tiny", tmp_path / "cut")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    late = run_process(
        "serve",
        str(model),
        "--set",
        f"codec={golden / 'codec2_tiny'}",
        "--port",
        "0",
        HOCKET_HOME=home,
    )
    assert late.code == 2
    assert weights.name in late.err.splitlines()[-1]
    assert "memory " in late.out
    # What does not fit, or is not there, is refused before anything is loaded.
    for setting, message in (
        ("engine.memory_bytes=1000", "memory_bytes is 1,000"),
        ("device=abacus", "device is 'abacus'; use cpu"),
        ("engine.quantize=fp8", "quantize is fp8, which cpu cannot compute"),
    ):
        early = run_process("serve", "--port", "0", "--set", setting, HOCKET_HOME=home)
        assert (early.code, early.out) == (2, "")
        assert message in early.error


def test_the_memory_plan_is_that_of_info() -> None:
    profile = load_profile("default", parse_settings(["engine.rows=3"])).profile
    facts = describe(None, torch.float32, rows=3)
    plan = engine_memory(None, None, torch.float32, EngineConfig(rows=3))
    assert plan.total_bytes == facts["memory_total_bytes"]
    default = profile.model_copy(update={"engine": EngineConfig(rows=3)})
    (line,) = [line for line in _plan(default, plan) if line.startswith("memory")]
    total, *parts = [
        f"{part:,.1f}"
        for part in (
            int(facts[f"memory_{name}_bytes"]) / 2**20
            for name in ("total", "weight", "kv", "ring", "row", "workspace")
        )
    ]
    assert re.findall(r"[\d,]+\.\d", line) == [total, *parts]
