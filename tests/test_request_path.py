"""The way of a request: as docs/architecture.md lists it, and no longer than it may be."""

from __future__ import annotations

import re

from tests.support.paths import REPOSITORY
from tests.support.trace_request import trace_http, trace_in_process

#: Most files that a newcomer should have to open to follow one request.
MAX_FILES, MAX_FILES_HTTP = 42, 62
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Following one request\n")[1].split("\n## ")[0]
IN_PROCESS, OVER_HTTP = SECTION.split("`Engine.generate`")[1].split("`POST /v1/audio/speech`")


def listed(text: str) -> list[str]:
    return re.findall(r"`([a-z0-9_/]+\.py)`", text)


def stated(text: str) -> int:
    found = re.search(r"runs through (\d+)", text)
    assert found is not None
    return int(found[1])


def test_in_process() -> None:
    files = trace_in_process()
    assert set(files) == set(listed(IN_PROCESS))
    assert stated(IN_PROCESS) == len(files) <= MAX_FILES


def test_over_http() -> None:
    files = set(trace_http())
    # Which of the worker's files happen to run beside one request is a matter of time.
    assert files <= set(listed(IN_PROCESS)) | set(listed(OVER_HTTP))
    assert 50 < len(files) <= stated(OVER_HTTP) <= MAX_FILES_HTTP
