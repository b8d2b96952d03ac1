"""The cache of references: bounded to the byte, the least recently used goes first, files private
and repaired.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from hocket.audio.reference_cache import ReferenceCache, content_key
from hocket.config import ReferenceCacheConfig
from hocket.core import AudioArray, EncodedReference, PreparedReference
from hocket.errors import ConfigError


def encoded(seed: int, frames: int = 10, voice: int | None = None) -> EncodedReference:
    random = np.random.default_rng(seed)
    vector = None if voice is None else random.standard_normal(voice).astype(np.float32)
    return EncodedReference(random.integers(0, 1024, (frames, 4)), vector)


def in_memory(max_bytes: int) -> ReferenceCache:
    return ReferenceCache(ReferenceCacheConfig(max_bytes=max_bytes))


def in_folder(folder: Path) -> ReferenceCache:
    return ReferenceCache(ReferenceCacheConfig(folder=folder))


def same(one: EncodedReference | None, other: EncodedReference) -> bool:
    assert one is not None
    for got, wanted in ((one.codes, other.codes), (one.voice, other.voice)):
        if got is None or wanted is None:
            if got is not wanted:
                return False
        elif got.dtype != wanted.dtype or not np.array_equal(got, wanted):
            return False
    return True


def test_keys_tell_contents_and_preparations_apart() -> None:
    samples = np.arange(6, dtype=np.float32).reshape(1, 6)
    contents: list[bytes | AudioArray | PreparedReference] = [
        b"one",
        b"two",
        AudioArray(samples, 300),
        AudioArray(samples, 301),
        AudioArray(samples.reshape(2, 3), 300),
        AudioArray(samples.astype(np.float64), 300),
        PreparedReference(samples, 300),
    ]
    keys = [content_key(how, content) for how in ("a", "b") for content in contents]
    assert len(set(keys)) == len(keys)
    strided = AudioArray(np.repeat(samples, 2, axis=1)[:, ::2], 300)
    assert content_key("a", strided) == keys[2]


def test_bytes_are_exact_whatever_comes() -> None:
    """Also when an entry comes again, in another size, or is larger than all."""
    random, cache, max_bytes = np.random.default_rng(0), in_memory(4000), 4000
    model: dict[str, EncodedReference] = {}
    for _ in range(3000):
        key = f"{random.integers(12)}"
        if random.random() < 0.3:
            found = cache.recall(key)
            assert (found is None) == (key not in model)
            if key in model:
                model[key] = model.pop(key)
                assert same(found, model[key])
            continue
        value = encoded(
            int(random.integers(100)),
            int(random.choice([1, 10, 40, 200])),
            [None, 16][random.integers(2)],
        )
        cache.remember(key, value)
        model.pop(key, None)
        if value.nbytes <= max_bytes:
            model[key] = value
        while sum(entry.nbytes for entry in model.values()) > max_bytes:
            del model[next(iter(model))]
        assert cache.nbytes == sum(entry.nbytes for entry in model.values()) <= max_bytes
    for key in [f"{number}" for number in range(12)]:
        assert (cache.recall(key) is None) == (key not in model)


def test_memory_is_flat_over_thousands_of_recordings() -> None:
    """What a parent array or a frame of a message holds is not kept alive."""
    cache = in_memory(20 * 10 * 4 * 8)
    for seed in range(5000):
        large = np.zeros((10_000, 8), np.int64)
        large[:10, :4] = seed
        cache.remember(f"{seed}", EncodedReference(large[:10, :4]))
    held = [cache.recall(f"{seed}") for seed in range(5000)]
    entries = [entry for entry in held if entry is not None]
    assert len(entries) == 20
    for entry in entries:
        assert entry.codes is not None
        assert entry.codes.base is None
        with pytest.raises(ValueError, match="read-only"):
            entry.codes[0, 0] = 1


@pytest.mark.parametrize("parts", [(20, 8), (20, None), (0, 8)])
def test_folder_is_shared(tmp_path: Path, parts: tuple[int, int | None]) -> None:
    frames, voice = parts
    value = encoded(1, frames or 1, voice)
    if not frames:
        value = EncodedReference(None, value.voice)
    in_folder(tmp_path / "made" / "on demand").store("key", value)
    other = in_folder(tmp_path / "made" / "on demand")
    assert same(other.load("key"), value)
    assert other.load("another") is None
    assert in_memory(100).load("key") is None


def test_files_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        in_folder(tmp_path / "cache").store("key", encoded(1))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    (path,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_folders_that_are_there_are_closed_unless_they_hold_other_things(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, files in (("empty", []), ("older", ["key.npy"]), ("mixed", ["key.npy", "a.txt"])):
        folder = tmp_path / name
        folder.mkdir()
        folder.chmod(0o755)
        for file in files:
            (folder / file).touch()
        in_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == (0o755 if name == "mixed" else 0o700)
        assert ("stays open" in caplog.text) == (name == "mixed")


def test_files_of_other_users_are_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = in_folder(tmp_path / "cache")
    cache.store("key", encoded(1))
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert cache.load("key") is None
    assert "belongs to another user" in caplog.text


def test_damage_is_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, value = in_folder(tmp_path), encoded(1, 20, 8)
    cache.store("key", value)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damages = [b"", b"no codes at all", whole[:-50], whole + b"x"]
    damages += [whole[:place] + b"\x7f" + whole[place + 1 :] for place in (3, 60, len(whole) - 1)]
    assert caplog.records == []
    for damage in damages:
        path.write_bytes(damage)
        caplog.clear()
        assert cache.load("key") is None
        assert "is damaged and is made again" in caplog.text
        cache.store("key", value)
        assert same(cache.load("key"), value)


def test_links_are_neither_read_nor_written_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, value = in_folder(tmp_path / "cache"), encoded(1)
    cache.store("key", value)
    (path,) = (tmp_path / "cache").iterdir()
    victim = path.rename(tmp_path / "victim")
    content = victim.read_bytes()
    path.symlink_to(victim)
    assert cache.load("key") is None
    assert "is damaged" in caplog.text
    caplog.clear()
    cache.store("key", encoded(2))
    assert "in memory only" in caplog.text
    assert victim.read_bytes() == content
    assert path.is_symlink()
    path.unlink()
    os.mkfifo(path)  # a reader of a pipe must not wait for a writer
    assert cache.load("key") is None
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [path.name]


def test_folder_that_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(ConfigError, match="cannot be made"):
            in_folder(folder)
    cache = in_folder(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    cache.store("key", encoded(1))
    assert "in memory only" in caplog.text
    assert cache.load("key") is None
