"""The README's snippets run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_python_example_runs_and_is_short(tmp_path: Path) -> None:
    (code,) = blocks("python")
    assert len(code.strip().splitlines()) <= 9
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "seconds more" in done.stdout


def test_console_lines_run_in_order(tmp_path: Path) -> None:
    (script,) = blocks("console")
    hocket = f'"{sys.executable}" -m hocket'
    for line in script.strip().splitlines():
        command = re.sub(r"(^|\| )hocket ", lambda match: f"{match[1]}{hocket} ", line)
        done = subprocess.run(
            command,
            check=False,
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    for name in ("hello.wav", "clone.flac", "more.mp3", "piped.opus", "hello.npy", "again.wav"):
        assert (tmp_path / name).stat().st_size > 100, name


@pytest.mark.parametrize("target", ["say", "test"])
def test_make_targets_named_in_the_readme_exist(target: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
