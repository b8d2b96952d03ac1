"""Voices and caches on disk: one user's, one key's, and no way out through a link."""

from __future__ import annotations

import io
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from hocket.audio.files import write_atomically
from hocket.audio.io import FORMATS, encode_audio
from hocket.audio.reference_cache import ReferenceCache
from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.config import ReferenceCacheConfig
from hocket.core import EncodedReference
from hocket.errors import AudioFileError, HocketError
from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceDraft, VoiceStore
from tests.support.fake_engine import FakePool
from tests.support.loopback import on_loopback

VOICES = "/v1/audio/voices"
CODES = np.arange(24).reshape(8, 3)
TONE = encode_audio(
    FORMATS[".wav"],
    (0.1 * np.sin(np.arange(16000) / 20)[None]).astype(np.float32),
    16000,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def store_in(folder: Path) -> VoiceStore:
    return VoiceStore(folder, ONLY_DEFAULT)


def keep(store: VoiceStore, name: str) -> None:
    store.save(VoiceDraft(name, "", None), None, EncodedReference(CODES), "tiny")


def uploaded(store: VoiceStore) -> list[str]:
    return [voice.name for voice in store.listed() if voice.kind != "builtin"]


# --------------------------------------------------------------------------------------------------
# one user's


@pytest.fixture(autouse=True)
def _others_may_read() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_voices_are_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "voices"
    store = store_in(folder)
    keep(store, "anna")
    keep(store.of("0123abcd"), "bert")
    assert [mode(path) for path in (folder, folder / "of-0123abcd")] == [0o700] * 2
    assert [mode(path) for path in folder.rglob("*.voice")] == [0o600] * 2


def test_voices_of_older_versions_become_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(store_in(tmp_path / "voices"), "anna")
    (tmp_path / "voices").chmod(0o755)
    (tmp_path / "voices" / "anna.voice").chmod(0o644)
    with caplog.at_level(logging.INFO):
        again = store_in(tmp_path / "voices")
    assert (mode(tmp_path / "voices"), mode(tmp_path / "voices" / "anna.voice")) == (0o700, 0o600)
    assert "event=voices_made_private files=1" in caplog.text
    assert uploaded(again) == ["anna"]


def test_a_folder_of_other_things_is_not_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "letters.txt").touch()
    (tmp_path / "link.voice").symlink_to(tmp_path / "letters.txt")
    tmp_path.chmod(0o755)
    store_in(tmp_path)
    assert (mode(tmp_path), mode(tmp_path / "letters.txt")) == (0o755, 0o644)
    assert "event=voices_folder_open" in caplog.text


def test_references_are_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "references"
    cache = ReferenceCache(ReferenceCacheConfig(folder=folder))
    cache.store("ab12", EncodedReference(CODES, None))
    (path,) = folder.iterdir()
    assert (mode(folder), mode(path)) == (0o700, 0o600)


# --------------------------------------------------------------------------------------------------
# links


def test_nothing_private_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    for target in (victim, tmp_path / "not-yet", tmp_path):
        link = tmp_path / "link"
        link.symlink_to(target)
        with pytest.raises(AudioFileError, match="it is a link; remove it"):
            write_atomically(link, b"theirs", private=True)
        assert link.is_symlink()
        link.unlink()
    assert victim.read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim"]


def test_links_in_the_reference_cache_lead_nowhere(tmp_path: Path) -> None:
    cache = ReferenceCache(ReferenceCacheConfig(folder=tmp_path / "cache"))
    cache.store("ab12", EncodedReference(CODES, None))
    (path,) = (tmp_path / "cache").iterdir()
    victim = path.rename(tmp_path / "victim")
    content = victim.read_bytes()
    path.symlink_to(victim)
    assert cache.load("ab12") is None
    cache.store("ab12", EncodedReference(CODES + 1, None))
    assert path.is_symlink()
    assert victim.read_bytes() == content


def test_an_owners_folder_is_no_link(tmp_path: Path) -> None:
    store = store_in(tmp_path / "voices")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "voices" / "of-0123abcd").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HocketError, match="is a link"):
        store.of("0123abcd")


# --------------------------------------------------------------------------------------------------
# bad entries


def a_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_dead_link(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "full").touch()


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 64)


def a_long_header(path: Path) -> None:
    path.write_bytes(b"\xff\xff\xff\xff\0\0\0\0{")


def an_unreadable_file(path: Path) -> None:
    path.touch(mode=0)


ODD_NAMES = (
    "Upper.voice",
    "\U0001f600.voice",
    "default.voice",
    "a b.voice",
    "-x.voice",
    "x\n.voice",
)
ENTRIES: dict[str, Callable[[Path], None]] = {
    **{f"anna.voice {make.__name__}": make for make in (a_link, a_dead_link, a_loop, a_folder)},
    "anna.voice pipe": os.mkfifo,
    "anna.voice garbage": garbage,
    "anna.voice header of 4 GiB": a_long_header,
    "anna.voice unreadable": an_unreadable_file,
    **dict.fromkeys(ODD_NAMES, Path.touch),
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., httpx.Client]]:
    with ExitStack() as stack:

        def serve(**settings: object) -> httpx.Client:
            app = create_app(
                FakePool(), ServerSettings.model_validate(settings), store_in(tmp_path / "voices")
            )
            address = stack.enter_context(on_loopback(app))
            return stack.enter_context(httpx.Client(base_url=address, timeout=10))

        yield serve


def upload(client: httpx.Client, name: str, key: str | None = None) -> httpx.Response:
    files = {"audio_sample": ("a.wav", io.BytesIO(TONE))}
    return client.post(VOICES, files=files, data={"name": name}, headers=bearer(key))


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def names(client: httpx.Client, key: str | None = None) -> list[str]:
    answer = client.get(VOICES, headers=bearer(key))
    assert answer.status_code == 200
    return [voice["name"] for voice in answer.json()["voices"] if not voice["builtin"]]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_bad_entry_holds_nothing_up(
    served: Callable[..., httpx.Client],
    tmp_path: Path,
    entry: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = served()
    assert upload(client, "bert").status_code == 200
    path = tmp_path / "voices" / entry.partition(" ")[0] if "anna" in entry else None
    path = path or tmp_path / "voices" / entry
    ENTRIES[entry](path)
    is_file = path.is_file() and not path.is_symlink() and path.name == "anna.voice"
    for _ in range(3):
        assert names(client) == (["anna", "bert"] if is_file else ["bert"])
    assert caplog.text.count("event=voices_skipped files=1") == (not is_file)
    taken = path.name == "anna.voice" and not is_file
    assert upload(client, "anna").status_code == (400 if taken else 200)
    assert client.delete(f"{VOICES}/anna").status_code == (404 if taken else 200)
    assert client.delete(f"{VOICES}/bert").status_code == 200
    for name in ("default", "anna"):
        assert client.get(f"{VOICES}/{name}/preview").status_code == 404


# --------------------------------------------------------------------------------------------------
# one key's


def speak(client: httpx.Client, key: str | None, **fields: Any) -> int:
    body = {"input": "Good.", "response_format": "pcm", **fields}
    return client.post("/v1/audio/speech", json=body, headers=bearer(key)).status_code


def test_a_voice_belongs_to_its_key(served: Callable[..., httpx.Client], tmp_path: Path) -> None:
    ada = "the-key-of-ada"
    client = served(api_keys=(ada, "bob"))
    assert upload(client, "anna", ada).status_code == 200
    assert (names(client, ada), names(client, "bob")) == (["anna"], [])
    assert speak(client, ada, voice="anna") == speak(client, ada, ref_audio="anna") == 200
    assert speak(client, "bob", voice="anna") == speak(client, "bob", ref_audio="anna") == 400
    batch = client.post(
        "/v1/audio/speech/batch",
        json={"items": [{"input": "Good.", "voice": "anna"}]},
        headers=bearer("bob"),
    )
    assert batch.json()["results"][0]["error"]["param"] == "voice"
    for method, path in (("GET", f"{VOICES}/anna/preview"), ("DELETE", f"{VOICES}/anna")):
        assert client.request(method, path, headers=bearer("bob")).status_code == 404
    # Another one of that name is another one.
    assert upload(client, "anna", "bob").status_code == 200
    assert client.delete(f"{VOICES}/anna", headers=bearer("bob")).status_code == 200
    assert client.get(f"{VOICES}/anna/preview", headers=bearer(ada)).status_code == 200
    # The key itself is nowhere on the disk.
    for file in tmp_path.rglob("*"):
        assert ada not in file.name
        assert file.is_dir() or ada.encode() not in file.read_bytes()


def test_a_voice_outlives_the_server_and_stays_its_keys(
    served: Callable[..., httpx.Client], tmp_path: Path
) -> None:
    upload(served(api_keys=("ada",)), "anna", "ada")
    later = served(api_keys=("bob", "ada"))
    assert (names(later, "ada"), names(later, "bob")) == (["anna"], [])
    # Digest of the key: another one would take all users' voices away.
    assert [path.name for path in (tmp_path / "voices").iterdir()] == ["of-15b0da4321160527"]


def test_voices_without_owner_are_everybodys(served: Callable[..., httpx.Client]) -> None:
    upload(served(), "anna")
    client = served(api_keys=("ada", "bob"))
    assert names(client, "ada") == names(client, "bob") == ["anna"]
    assert speak(client, "ada", voice="anna") == 200
    assert upload(client, "anna", "ada").status_code == 200
    assert client.delete(f"{VOICES}/anna", headers=bearer("ada")).status_code == 200
    assert names(client, "bob") == ["anna"]


def test_voices_can_be_shared(served: Callable[..., httpx.Client]) -> None:
    client = served(api_keys=("ada", "bob"), voices_shared=True)
    upload(client, "anna", "ada")
    assert speak(client, "bob", voice="anna") == 200
    assert client.delete(f"{VOICES}/anna", headers=bearer("bob")).status_code == 200
    assert names(client, "ada") == []


# --------------------------------------------------------------------------------------------------
# many


def test_an_unknown_name_costs_little_beside_many_voices(
    served: Callable[..., httpx.Client], tmp_path: Path
) -> None:
    client = served()
    upload(client, "anna")
    content = (tmp_path / "voices" / "anna.voice").read_bytes()
    for i in range(1, 1000):
        (tmp_path / "voices" / f"voice{i}.voice").write_bytes(content)
    items = [{"input": "Good.", "voice": f"nobody{i}"} for i in range(64)]
    started = time.perf_counter()
    assert len(names(client)) == 1000
    listed = time.perf_counter() - started
    answer = client.post("/v1/audio/speech/batch", json={"items": items})
    seconds = time.perf_counter() - started - listed
    errors = [result["error"]["message"] for result in answer.json()["results"]]
    assert len(errors) == 64
    assert all("some are default, anna, voice1, voice10, voice100, ..." in e for e in errors)
    # It was 64 lists, each of which opens every file.
    assert seconds < 20 * listed
