"""The studio's files as they are served. The page in a browser: test_server_studio_browser.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FakePool
from tests.support.loopback import new_store, on_loopback

#: Fragments of addresses that would make the page depend on, or talk to, another host.
OUTSIDE = re.compile(r"https?:(?!//www\.w3\.org/2000/svg)|[\"'(]//")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    app = create_app(
        FakePool(),
        ServerSettings(api_keys=("secret",)),
        new_store(tmp_path_factory.mktemp("voices")),
    )
    with on_loopback(app) as address, httpx.Client(base_url=address) as client:
        yield client


@pytest.fixture(scope="module")
def page(client: httpx.Client) -> str:
    return client.get("/").text


def scripts(client: httpx.Client, page: str) -> dict[str, str]:
    """The scripts that the page loads, and those that they load."""
    found: dict[str, str] = {}
    names = re.findall(r'<script[^>]* src="studio/(.+?)"', page)
    while names:
        name = names.pop()
        if name not in found:
            found[name] = client.get(f"/studio/{name}").text
            names += re.findall(r'from "\./(.+?)"', found[name])
    return found


def test_the_page_needs_no_key_and_says_what_it_is(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert client.get("/v1/audio/voices").status_code == 401


def test_everything_it_loads_is_there(client: httpx.Client, page: str) -> None:
    files = re.findall(r'(?:src|href)="(studio/.+?)"', page) + [
        f"studio/{name}" for name in scripts(client, page)
    ]
    assert len(set(files)) == 4
    for name in files:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"].startswith(kind)


def test_nothing_comes_from_outside(client: httpx.Client, page: str) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for text in (page, client.get("/studio/studio.css").text, *scripts(client, page).values()):
        assert not OUTSIDE.search(text)
    assert not re.search(r"\s(style|on\w+)=", page)  # the policy would stop these


def test_files_are_sent_once(client: httpx.Client) -> None:
    for name in ("/", "/studio/studio.js"):
        tag = client.get(name).headers["etag"]
        again = client.get(name, headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(name, headers={"If-None-Match": '"older"'}).status_code == 200


@pytest.mark.parametrize("name", ["", "index.html", "studio.map", "../pages.py", "%2e%2e/pages.py"])
def test_no_other_file_can_be_had(client: httpx.Client, name: str) -> None:
    assert client.get(f"/studio/{name}").status_code == 404


def test_page_and_script_agree_on_names(client: httpx.Client, page: str) -> None:
    ids = set(re.findall(r'\bid="(.+?)"', page))
    script = scripts(client, page)["studio.js"]
    assert set(re.findall(r'\$\("(.+?)"\)', script)) <= ids
    fields = re.findall(r"_FIELDS = \[(.+?)\]", script)
    assert {name for names in fields for name in re.findall(r'"(.+?)"', names)} <= ids


def test_every_field_has_a_label(page: str) -> None:
    fields = re.findall(r'<(?:input|select|textarea) id="(.+?)"', page)
    assert set(fields) == set(re.findall(r'<label[^>]* for="(.+?)"', page))


def test_scripts_stay_small(client: httpx.Client, page: str) -> None:
    assert sum(len(script.splitlines()) for script in scripts(client, page).values()) < 700


def test_the_package_has_the_files() -> None:
    import hocket.server

    folder = Path(hocket.server.__file__).parent / "studio"
    assert {path.name for path in folder.iterdir()} == {
        *("index.html", "studio.css", "studio.js", "player.js", "take.js")
    }
