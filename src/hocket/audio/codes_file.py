"""Codec codes as `.npy` files: int64 [frames, codebooks]."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.audio.files import check_replaceable, write_atomically
from hocket.errors import AudioFileError

_NPY_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK\x03\x04"


def read_codes(path: Path) -> NDArray[np.int64]:
    """Read the codes in a `.npy` file of any integer type, as int64 [frames, codebooks].

    The model checks the number of codebooks and the range. Raises AudioFileError naming the file.
    """
    try:
        if path.exists() and not path.is_file():
            raise AudioFileError(f"{str(path)!r} is not a file; give a .npy file of codes")
        with path.open("rb") as file:
            start = file.read(len(_NPY_MAGIC))
            if start.startswith(_ZIP_MAGIC):
                raise AudioFileError(
                    f"{str(path)!r} is an .npz archive; save its array of codes with numpy.save"
                )
            if start != _NPY_MAGIC:
                raise AudioFileError(
                    f"{str(path)!r} is {'not a .npy file' if start else 'empty'}; write it with "
                    "numpy.save"
                )
            file.seek(0)
            array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise AudioFileError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (
        ValueError,
        EOFError,
        MemoryError,
    ) as error:  # a broken header, missing values, Python objects
        raise AudioFileError(
            f"{str(path)!r} is truncated or holds no plain array; save its codes again"
        ) from error
    return as_codes(array, repr(str(path)))


def as_codes(array: NDArray[Any], name: str) -> NDArray[np.int64]:
    """`array` as int64 [frames, codebooks]. Raises AudioFileError naming `name` when it has no
    codes.
    """
    if not np.issubdtype(array.dtype, np.integer):
        raise AudioFileError(f"{name} holds {array.dtype} values; codes are integers")
    if array.ndim != 2:
        raise AudioFileError(f"{name} has the shape {array.shape}; codes are [frames, codebooks]")
    if array.size == 0:
        raise AudioFileError(f"{name} has the shape {array.shape}, which holds no codes")
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest > np.iinfo(np.int64).max:
        raise AudioFileError(f"{name} holds {lowest if lowest < 0 else highest}, which is no code")
    return array.astype(np.int64)


def check_codes_writable(path: Path) -> None:
    """Check, before any model work, that codes can be written to `path`. Raises AudioFileError."""
    if path.suffix.lower() != ".npy":
        raise AudioFileError(f"cannot write codes to {str(path)!r}: give it the suffix .npy")
    check_replaceable(path)


def write_codes(path: Path, codes: NDArray[np.int64]) -> None:
    """Write `codes` [frames, codebooks] atomically; zero frames are valid. Raises
    AudioFileError.
    """
    check_codes_writable(path)
    buffer = io.BytesIO()
    np.save(buffer, codes.astype(np.int64, copy=False), allow_pickle=False)
    write_atomically(path, buffer.getvalue())
