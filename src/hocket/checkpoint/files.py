"""Opens the files of a checkpoint, which may come from anybody: a pipe, a device or a file without
end is refused, where reading would wait or fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

#: The largest JSON file of a known checkpoint, a tokenizer, has 11 MB.
_MAX_SMALL_BYTES = 64 * 2**20


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, as the hub's cache has them. Raises OSError."""
    # Without O_NONBLOCK the opening of a pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return os.fdopen(descriptor, "rb")


def read_small(path: Path) -> bytes:
    """The bytes of a file of at most 64 MiB. Raises OSError."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _MAX_SMALL_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {_MAX_SMALL_BYTES >> 20} MiB")
        return file.read(_MAX_SMALL_BYTES)
