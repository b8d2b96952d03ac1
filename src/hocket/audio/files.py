"""Atomic writes: a path holds either its old content or the whole new one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from hocket.errors import AudioFileError


def check_replaceable(path: Path) -> None:
    """Check cheaply that a file can be written: its folder is writable and `path` is not a folder.

    Raises AudioFileError naming the path.
    """
    try:
        folder = path.resolve().parent
        if path.is_dir():
            raise AudioFileError(f"cannot write {str(path)!r}: it is a folder; name a file in it")
        if path.exists() and not path.is_file():
            raise AudioFileError(
                f"cannot write {str(path)!r}: it is not a regular file; choose another name"
            )
        if not folder.is_dir():
            raise AudioFileError(
                f"cannot write {str(path)!r}: the folder {str(folder)!r} does not exist; create it "
                "first"
            )
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # a name too long, a loop of links, a NUL in the name
        raise AudioFileError(f"cannot write {str(path)!r}: {error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise AudioFileError(
            f"cannot write {str(path)!r}: no permission to write in the folder {str(folder)!r}"
        )


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` beside `path` and rename it into place, with the permissions of the umask;
    `private`: for this user alone.

    When it is interrupted (a full disk, Ctrl-C), `path` keeps its content and no file is left
    beside it. A link is followed, so it stays a link; where the file is private, it is refused.
    Raises AudioFileError.
    """
    if private and path.is_symlink():
        raise AudioFileError(f"cannot write {str(path)!r}: it is a link; remove it")
    check_replaceable(path)
    target = path if private else path.resolve()
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(partial, flags, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(
                file.fileno()
            )  # else a power cut after the rename can leave an empty file under the final name
        partial.replace(target)
    except OSError as error:
        raise AudioFileError(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
