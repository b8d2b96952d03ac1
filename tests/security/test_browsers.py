"""What a page in somebody's browser can do to a server on that person's machine: nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from pydantic import ValidationError
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FakePool
from tests.support.loopback import new_store, on_loopback, wait_until

SPEECH = {"input": "Good.", "response_format": "pcm"}
STREAM = "/v1/audio/speech/stream"
Served = Callable[..., httpx.Client]


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A client of a server with these settings; `host` alone does not change where it listens."""
    with ExitStack() as stack:

        def serve(**settings: object) -> httpx.Client:
            store = new_store(tmp_path_factory.mktemp("voices"))
            app = create_app(FakePool(), ServerSettings.model_validate(settings), store)
            address = stack.enter_context(on_loopback(app))
            return stack.enter_context(httpx.Client(base_url=address))

        yield serve


def status(client: httpx.Client, host: str) -> int:
    return client.get("/v1/models", headers={"Host": host}).status_code


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


STRANGERS = (
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("localhost@evil.example", "evil.example#localhost", "0.0.0.0", "192.168.0.7", "[::2]"),
    *("", "localhost:", "localhost:8000:1", "[::1", "::1]", "2130706433"),
)


@pytest.mark.parametrize("api_keys", [(), ("secret",)])
def test_a_local_server_answers_to_local_names_only(
    served: Served, api_keys: tuple[str, ...]
) -> None:
    client = served(api_keys=api_keys)
    client.headers["Authorization"] = "Bearer secret"
    local = ("localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.1.2.3:1", "[::1]:8000")
    assert [host for host in local if status(client, host) != 200] == []
    assert [host for host in STRANGERS if status(client, host) not in (400, 421)] == []
    for path in ("/", "/docs", "/health", "/metrics", "/v1/audio/voices", "/nothing"):
        refused = client.get(path, headers={"Host": "evil.example:8000"})
        assert (refused.status_code, code(refused)) == (421, "host_not_allowed")
        assert "'evil.example:8000'; add it to server.allowed_hosts" in refused.text


def test_names_can_be_allowed(served: Served) -> None:
    client = served(allowed_hosts=("Speech.example", "[2001:db8::1]"))
    for host in ("speech.example", "SPEECH.example.:81", "[2001:db8::1]:8000", "localhost"):
        assert status(client, host) == 200
    for host in ("a.speech.example", "speech.example.evil.example", "[2001:db8::2]"):
        assert status(client, host) == 421
    assert status(served(allowed_hosts=("*",)), "evil.example") == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7"])
def test_a_server_in_a_network_answers_to_names_that_no_stranger_can_point_at_it(
    served: Served, host: str
) -> None:
    client = served(host=host)
    for name in ("192.168.0.7:8000", "[fd00::7]", "hocket:8000", "localhost"):
        assert status(client, name) == 200
    assert status(client, "evil.example") == 421
    with_key = served(host=host, api_keys=("secret",))
    assert status(with_key, "evil.example") == 401
    assert with_key.get("/health", headers={"Host": "speech.example"}).status_code == 200


FOREIGN = (
    *("http://evil.example", "https://localhost.evil.example", "null", "http://localhost:3000"),
    *("http://127.0.0.1", "file://", "http://{host}@evil.example", "http://{host}.evil.example"),
    *("http://evil.example/{host}", "{host}", "//{host}", "ftp://{host}", "http://{host}#", ""),
)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/audio/speech"),
        ("POST", "/v1/audio/speech/batch"),
        ("POST", "/v1/audio/voices"),
        ("DELETE", "/v1/audio/voices/anna"),
        ("POST", "/v1/audio/tokens/encode"),
        ("POST", "/v1/audio/tokens/decode"),
        ("PUT", "/v1/audio/voices/anna"),
    ],
)
def test_pages_of_other_sites_change_nothing(served: Served, method: str, path: str) -> None:
    client = served()
    for origin in FOREIGN:
        origin = origin.format(host=client.base_url.netloc.decode())
        refused = client.request(method, path, headers={"Origin": origin}, json=SPEECH)
        assert (refused.status_code, code(refused)) == (403, "origin_not_allowed"), origin


def test_a_form_of_another_site_stores_no_voice(served: Served) -> None:
    client = served()
    form = {"audio_sample": ("a.wav", b"RIFF")}
    refused = client.post(
        "/v1/audio/voices",
        files=form,
        data={"name": "anna"},
        headers={"Origin": "http://evil.example"},
    )
    assert refused.status_code == 403
    assert [voice["name"] for voice in client.get("/v1/audio/voices").json()["voices"]] == [
        "default"
    ]


def test_the_servers_own_page_and_clients_without_origin_may_do_all(served: Served) -> None:
    client = served()
    netloc = client.base_url.netloc.decode()
    assert client.post("/v1/audio/speech", json=SPEECH).status_code == 200
    own = client.post("/v1/audio/speech", json=SPEECH, headers={"Origin": f"http://{netloc}"})
    assert own.status_code == 200
    # Behind a proxy that does the TLS and hands the Host on.
    behind = served(host="0.0.0.0", api_keys=("secret",))
    headers = {"Origin": "https://speech.example", "Authorization": "Bearer secret"}
    for host, expected in (("speech.example", 200), ("speech.example:443", 200), ("other", 403)):
        answer = behind.post("/v1/audio/speech", json=SPEECH, headers={**headers, "Host": host})
        assert answer.status_code == expected


@pytest.mark.parametrize("key", ["", "?api_key=secret"])
def test_sockets_take_no_foreign_page(served: Served, key: str) -> None:
    client = served(api_keys=("secret",) if key else ())
    netloc = client.base_url.netloc.decode()
    url = f"ws://{netloc}{STREAM}{key}"
    for origin in ("http://evil.example", "null", "http://localhost:3000"):
        with pytest.raises(InvalidStatus), connect(url, origin=Origin(origin)):
            pass
    with pytest.raises(InvalidStatus), connect(url, additional_headers={"Host": "evil.example"}):
        pass
    with connect(url, origin=Origin(f"http://{netloc}")), connect(url):
        pass


def test_pages_that_are_allowed_read_what_they_ask_for(served: Served) -> None:
    client = served(cors_origins=("https://app.example",), api_keys=("secret",))
    asking = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    preflight = client.options("/v1/audio/speech", headers=asking)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    page = {"Origin": "https://app.example", "Authorization": "Bearer secret"}
    spoken = client.post("/v1/audio/speech", json=SPEECH, headers=page)
    assert spoken.status_code == 200
    assert spoken.headers["access-control-allow-origin"] == "https://app.example"
    assert "X-Seed" in spoken.headers["access-control-expose-headers"]
    unknown = client.post("/v1/audio/speech", json=SPEECH, headers={"Origin": page["Origin"]})
    assert (unknown.status_code, unknown.headers["access-control-allow-origin"]) == (
        401,
        page["Origin"],
    )
    with connect(
        f"ws://{client.base_url.netloc.decode()}{STREAM}?api_key=secret",
        origin=Origin("https://app.example"),
    ):
        pass


def test_other_pages_are_refused_beside_allowed_ones(served: Served) -> None:
    client = served(cors_origins=("https://app.example",))
    asking = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    preflight = client.options("/v1/audio/speech", headers=asking)
    assert (preflight.status_code, code(preflight)) == (403, "cors")
    refused = client.post("/v1/audio/speech", json=SPEECH, headers={"Origin": asking["Origin"]})
    assert refused.status_code == 403
    for answer in (preflight, refused, client.get("/version", headers=asking)):
        assert "access-control-allow-origin" not in answer.headers


def test_nobody_is_allowed_by_default(served: Served) -> None:
    asking = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    answer = served().options("/v1/audio/speech", headers=asking)
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("value", ["app.example", "https://app.example/", "https://*.example", ""])
def test_what_is_no_origin_cannot_be_allowed(value: str) -> None:
    with pytest.raises(ValidationError, match="cors_origins"):
        ServerSettings(cors_origins=(value,))
    with pytest.raises(ValidationError, match="allowed_hosts"):
        ServerSettings(allowed_hosts=(f"http://{value}",))


def test_every_answer_says_that_it_is_no_page(served: Served) -> None:
    client = served()
    for method, path in (
        ("GET", "/version"),
        ("GET", "/v1/audio/voices"),
        ("GET", "/nothing"),
        ("POST", "/v1/audio/speech"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ):
        headers = client.request(method, path, json=SPEECH).headers
        assert headers.get_list("content-security-policy") == [
            "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_run_their_own_scripts_only(served: Served, path: str) -> None:
    answer = served().get(path)
    (policy,) = answer.headers.get_list("content-security-policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in rules["script-src"]
    # Scripts in the page itself are those whose digest the policy has.
    inline = re.findall(r"<script>", answer.text)
    assert len(inline) == rules["script-src"].count("'sha256-") == (path == "/docs")


def test_no_redirect_goes_where_the_client_says(served: Served) -> None:
    client = served(allowed_hosts=("*",))
    for path in ("/health/", "/v1/models/", "/docs/", "/studio/studio.js/", "/v1/audio/voices/"):
        answer = client.get(path, headers={"Host": "evil.example"})
        assert answer.status_code == 404
        assert "location" not in answer.headers


def test_names_in_paths_stay_out_of_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(api_keys=("secret",))
    with caplog.at_level(logging.DEBUG):
        for path in ("/v1/audio/voices/annasname", "/v1/audio/voices/annasname/preview"):
            client.get(path)
            client.delete(path, headers={"Authorization": "Bearer secret"})
        client.get("/v1//audio/annasname?annasname")
        client.get("/version")
    wait_until(lambda: caplog.text.count("event=request") == 6)
    lines = [record.message for record in caplog.records if record.name == "hocket.request"]
    assert "annasname" not in "\n".join(lines)
    paths = [found[1] for line in lines if (found := re.search(r"path=(\S+)", line))]
    assert sorted(paths) == [
        *["/v1/audio/voices/{name}"] * 2,
        *["/v1/audio/voices/{name}/preview"] * 2,
        "/version",
        "none",
    ]
