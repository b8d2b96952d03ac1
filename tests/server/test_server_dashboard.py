"""docs/grafana.json: every metric of the dashboard is one of /metrics."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FakePool
from tests.support.loopback import new_store, on_loopback, wait_until
from tests.support.paths import REPOSITORY

BOARD: dict[str, Any] = json.loads(
    (REPOSITORY / "docs" / "grafana.json").read_text(encoding="utf-8")
)
QUERIES: list[str] = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """/metrics after a speech and an error, because series with labels begin with their first
    event.
    """
    app = create_app(FakePool(), ServerSettings(), new_store(tmp_path_factory.mktemp("dashboard")))
    with on_loopback(app) as address, httpx.Client(base_url=address) as client:
        assert (
            client.post(
                "/v1/audio/speech", json={"input": "Good.", "response_format": "pcm"}
            ).status_code
            == 200
        )
        assert client.post("/v1/audio/speech", json={"input": ""}).status_code == 400
        # An answer is counted once it has been sent.
        wait_until(lambda: "hocket_errors_total{" in client.get("/metrics").text)
        return client.get("/metrics").text


def test_every_metric_of_the_dashboard_is_exported(page: str) -> None:
    exported = set(re.findall(r"^(hocket_\w+)", page, re.MULTILINE))
    asked = {name for query in QUERIES for name in re.findall(r"hocket_\w+", query)}
    assert asked - exported == set()
    families = {
        name
        for name in re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE)
        if not name.endswith("_created")
    }
    shown = {name.removesuffix("_bucket") for name in asked}
    assert families - shown == set(), "metrics that the dashboard does not show"


def test_every_label_of_the_dashboard_is_exported(page: str) -> None:
    numbers = {
        name for query in QUERIES for name in re.findall(r'hocket_engine\{name="(\w+)"\}', query)
    }
    assert (
        numbers - set(re.findall(r'^hocket_engine\{name="(\w+)",worker="0"\}', page, re.MULTILINE))
        == set()
    )
    for query in QUERIES:
        for labels, metric in re.findall(r"sum by \(([\w, ]+)\) \(rate\((\w+)", query):
            for label in labels.split(", "):
                assert re.search(rf'^{metric}\{{[^}}]*\b{label}="', page, re.MULTILINE), (
                    metric,
                    label,
                )


def test_the_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        taken = {
            (place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= taken
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
