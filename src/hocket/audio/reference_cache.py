"""What was read from recordings, by their content: a bounded memory, and files when there is a
folder.

The engine asks it when it runs in the caller's process, the front end when it does not. Keys hold
the identity of the preparation (`EngineInfo.reference_id`), so an entry is never one of another
model, device or limit.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors

from hocket.audio.files import write_atomically
from hocket.config import ReferenceCacheConfig
from hocket.core import AudioArray, EncodedReference, PreparedReference
from hocket.errors import AudioFileError, ConfigError

Key = str

#: Larger files are not the cache's: a minute of 32 codebooks takes 200 kB.
_MAX_FILE_BYTES = 16 * 2**20
_DIGEST_BYTES = 20
_SUFFIX = ".reference"
#: Those of this cache and of its older versions, whose files are not read.
_SUFFIXES = (_SUFFIX, ".npy")
#: Permissions of group and others.
_OTHERS = 0o077

_LOG = logging.getLogger("hocket")


def content_key(preparation: str, content: bytes | AudioArray | PreparedReference) -> Key:
    """The key of a recording: the digest of a file's bytes as they came, or of samples and rate,
    and of `preparation`.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    if isinstance(content, bytes):
        digest.update(f"{preparation}\n".encode())
        digest.update(content)
    else:
        samples_CS = np.ascontiguousarray(content.samples)
        kind = type(content).__name__
        digest.update(
            f"{preparation}\n{kind} {samples_CS.dtype.str} {samples_CS.shape} "
            f"{content.sample_rate}\n".encode()
        )
        digest.update(samples_CS.data)
    return digest.hexdigest()


class ReferenceCache:
    """Least recently used entries leave the memory first; files stay. Keeps copies of the arrays.

    `recall` and `remember` belong to one thread; `load` and `store`, which wait for the disk, may
    run on any.
    """

    def __init__(self, config: ReferenceCacheConfig) -> None:
        """Raises ConfigError when the folder cannot be made."""
        if config.folder is not None:
            try:
                config.folder.parent.mkdir(parents=True, exist_ok=True)
                config.folder.mkdir(mode=0o700, exist_ok=True)
                _make_private(config.folder)
            except OSError as error:
                raise ConfigError(
                    f"the reference cache folder {str(config.folder)!r} cannot be made: "
                    f"{error.strerror}; name another",
                    param="folder",
                ) from error
        self._config = config
        self._held: OrderedDict[Key, EncodedReference] = OrderedDict()
        #: Bytes of the arrays in memory.
        self.nbytes = 0

    @property
    def has_folder(self) -> bool:
        """Whether `load` and `store` do anything."""
        return self._config.folder is not None

    # ---- memory

    def recall(self, key: Key) -> EncodedReference | None:
        """The entry in memory, which becomes the most recently used."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def remember(self, key: Key, encoded: EncodedReference) -> None:
        """Keep `encoded` in memory, in place of an older entry under that key."""
        old = self._held.pop(key, None)
        self.nbytes -= 0 if old is None else old.nbytes
        if encoded.nbytes > self._config.max_bytes:
            return
        self._held[key] = kept = EncodedReference(_own(encoded.codes), _own(encoded.voice))
        self.nbytes += kept.nbytes
        while self.nbytes > self._config.max_bytes:
            _, oldest = self._held.popitem(last=False)
            self.nbytes -= oldest.nbytes

    # ---- the folder

    def load(self, key: Key) -> EncodedReference | None:
        """The entry in the folder. A damaged file, or a link, is like none, with a warning."""
        if self._config.folder is None:
            return None
        path = self._config.folder / f"{key}{_SUFFIX}"
        try:
            return _from_bytes(_read(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            _LOG.warning("%s in the reference cache is damaged and is made again: %s", path, reason)
            return None

    def store(self, key: Key, encoded: EncodedReference) -> None:
        """Write the entry's file, for this user alone. A disk that refuses costs a warning, no
        request.
        """
        if self._config.folder is None:
            return
        path = self._config.folder / f"{key}{_SUFFIX}"
        try:
            write_atomically(path, _to_bytes(encoded), private=True)
        except AudioFileError as error:
            _LOG.warning("the reference cache keeps an entry in memory only: %s", error)


def _make_private(folder: Path) -> None:
    """Close a folder of an older version, or of the user's making, to other users; one that holds
    other things, too, stays as it is.
    """
    if not folder.stat().st_mode & _OTHERS:
        return
    if all(path.suffix in _SUFFIXES or path.name.startswith(".") for path in folder.iterdir()):
        folder.chmod(0o700)
    else:
        _LOG.warning(
            "event=reference_cache_open folder=%s reason=it holds other things, too, so it stays "
            "open to other users; name a folder for the cache alone",
            folder,
        )


def _own(array: NDArray[Any] | None) -> Any:
    """A copy that holds no larger buffer alive and that nobody can change."""
    if array is None:
        return None
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


# --------------------------------------------------------------------------------------------------
# a file: the digest of the rest, then safetensors with `codes` int64 [F, N] and `voice` float32 [D]


def _to_bytes(encoded: EncodedReference) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}
    if encoded.codes is not None:
        arrays["codes"] = np.ascontiguousarray(encoded.codes, np.int64)
    if encoded.voice is not None:
        arrays["voice"] = np.ascontiguousarray(encoded.voice, np.float32)
    payload = to_safetensors(arrays)
    return _digest(payload) + payload


def _from_bytes(data: bytes) -> EncodedReference:
    """Raises ValueError saying what is wrong."""
    payload = data[_DIGEST_BYTES:]
    if _digest(payload) != data[:_DIGEST_BYTES]:
        raise ValueError("its content is not what was written")
    try:
        arrays = from_safetensors(payload)
    except SafetensorError as error:
        raise ValueError("it holds no arrays") from error
    codes, voice = arrays.get("codes"), arrays.get("voice")
    if codes is not None and (codes.dtype != np.int64 or codes.ndim != 2 or not codes.size):
        raise ValueError("it holds codes of another shape")
    if voice is not None and (voice.dtype != np.float32 or voice.ndim != 1):
        raise ValueError("it holds a vector of another shape")
    return EncodedReference(codes, voice)


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES, person=b"hocket-ref-1").digest()


def _read(path: Path) -> bytes:
    """The bytes of a regular file of this user. Raises OSError, also for a link."""
    # Without O_NONBLOCK the opening of a pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "it belongs to another user")
        return file.read(_MAX_FILE_BYTES)
