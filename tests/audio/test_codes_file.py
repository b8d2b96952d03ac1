"""Codes in `.npy` files, and refusals."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.audio.codes_file import check_codes_writable, read_codes, write_codes
from hocket.errors import AudioFileError

CODES_FN = np.arange(36, dtype=np.int64).reshape(3, 12)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, codes=CODES_FN)
    return buffer.getvalue()


def test_codes_written_are_codes_read(tmp_path: Path) -> None:
    path = tmp_path / "voice.npy"
    write_codes(path, CODES_FN)
    codes_FN = read_codes(path)
    assert codes_FN.dtype == np.int64
    assert np.array_equal(codes_FN, CODES_FN)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "<i2", ">i4", "u8", "i8"])
def test_every_integer_type_is_read(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "voice.npy"
    path.write_bytes(npy(np.asfortranarray(CODES_FN.astype(dtype))))
    codes_FN = read_codes(path)
    assert codes_FN.dtype == np.int64
    assert np.array_equal(codes_FN, CODES_FN)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"1 2 3\n4 5 6\n", "is not a .npy file"),
        (npz(), "is an .npz archive"),
        (npy(CODES_FN)[:-8], "truncated"),
        (npy(CODES_FN)[:40], "truncated"),
        (npy(np.array([[object()]], dtype=object)), "holds no plain array"),
        (npy(CODES_FN).replace(b"(3, 12)", b"(9999999999, 12)")[:-9], "truncated"),
        (npy(CODES_FN * 1.0), "float64 values; codes are integers"),
        (npy(CODES_FN > 3), "bool values; codes are integers"),
        (npy(CODES_FN[0]), r"shape \(12,\); codes are"),
        (npy(CODES_FN[None]), r"shape \(1, 3, 12\); codes are"),
        (npy(CODES_FN[:0]), r"shape \(0, 12\), which holds no codes"),
        (npy(CODES_FN - 1), "holds -1, which is no code"),
        (
            npy(CODES_FN.astype(np.uint64) + np.uint64(2**63)),
            f"holds {2**63 + 35}, which is no code",
        ),
    ],
)
def test_what_is_not_codes_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "voice.npy"
    path.write_bytes(content)
    with pytest.raises(AudioFileError, match=message) as caught:
        read_codes(path)
    assert repr(str(path)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AudioFileError, match="No such file"):
        read_codes(tmp_path / "absent.npy")
    with pytest.raises(AudioFileError, match="is not a file"):
        read_codes(tmp_path)


def test_where_codes_cannot_go_is_said_first(tmp_path: Path) -> None:
    check_codes_writable(tmp_path / "voice.NPY")
    for path, message in [
        (tmp_path / "voice.wav", "suffix .npy"),
        (tmp_path / "absent" / "v.npy", "does not exist"),
    ]:
        with pytest.raises(AudioFileError, match=message):
            check_codes_writable(path)
        with pytest.raises(AudioFileError, match=message):
            write_codes(path, CODES_FN)


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_codes(tmp_path / "voice.npy", CODES_FN)
    assert not list(tmp_path.iterdir())
