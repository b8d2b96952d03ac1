"""Thousands of requests generated from the OpenAPI document: none hits a bug of the server, and
every response is a documented one.

`make fuzz` installs what it needs and runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FakePool
from tests.support.loopback import new_store, on_loopback

#: Beside this interpreter, or wherever the user has it.
_TOOL = shutil.which(
    "schemathesis", path=os.pathsep.join((str(Path(sys.executable).parent), *os.get_exec_path()))
)

#: Not that all that fits the document is taken: it cannot say that a text must hold a word.
CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "unsupported_method",
    )
)


@pytest.mark.slow
@pytest.mark.skipif(_TOOL is None, reason="needs schemathesis: pip install --group fuzz")
def test_no_request_of_the_document_is_a_5xx(tmp_path: Path) -> None:
    assert _TOOL is not None
    engine = FakePool()
    # Few characters: a made-up text of thousands would be minutes of speech.
    app = create_app(engine, ServerSettings(max_characters=200), new_store(tmp_path))
    with on_loopback(app) as address:
        done = subprocess.run(
            [
                *(_TOOL, "run", f"{address}/openapi.json", "--checks", CHECKS, "--no-color"),
                *(
                    "--max-examples",
                    "200",
                    "--continue-on-failure",
                    "--seed",
                    "1",
                    "--warnings",
                    "off",
                ),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
        body = {"input": "Good.", "response_format": "pcm"}
        assert httpx.post(f"{address}/v1/audio/speech", json=body).status_code == 200
    assert len(engine.requests) > 10, "what was made up never was a request that can be spoken"
    assert engine.open_requests == 0
