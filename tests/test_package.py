"""What a wheel holds: a model that speaks as soon as it is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hocket.models.registry import builtin_model
from tests.support.paths import REPOSITORY

ROOT = REPOSITORY


@pytest.mark.slow
def test_a_wheel_holds_the_whole_model_and_no_more(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=300)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = {
            name.removeprefix("hocket/assets/mini/")
            for name in archive.namelist()
            if "assets/mini/" in name
        }
        modes = {
            info.external_attr >> 16 & 0o444
            for info in archive.infolist()
            if "assets/mini/" in info.filename
        }
    folder = builtin_model()
    assert names == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    talker = {"config.json", "model.safetensors", "tokenizer.json", "MODEL_CARD.md"}
    assert names >= talker | {"codec/config.json", "codec/model.safetensors"}
    assert modes == {0o444}, "every user of the machine can read it"
    assert wheel.stat().st_size < 60 * 2**20
