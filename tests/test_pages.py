"""Pages for readers: lines that fit, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

PAGES = [
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "docs").rglob("*.md"),
    *(REPOSITORY / "constraints").glob("*.md"),
    *(REPOSITORY / "training").glob("*.md"),
    *(REPOSITORY / "src").rglob("*.md"),
]
#: Where a path on a page may begin.
ROOTS = (
    "",
    "src/hocket/",
    "src/",
    "docs/",
    "benchmarks/results/",
    "training/",
    "src/hocket/engine/",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_lines_have_at_most_100_columns(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 100 and "](http" not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_python_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`([a-z0-9_]+(?:/[a-z0-9_]+)+\.py)`", page.read_text(encoding="utf-8")))
    assert {
        name for name in named if not any((REPOSITORY / root / name).exists() for root in ROOTS)
    } == set()
