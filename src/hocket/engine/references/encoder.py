"""Reference recordings to codes: several at once, in bounded parts, once per content.

Encoding a minute of audio in one call would stall every running stream, so a streaming encoder
takes a few frames per step. Streaming is exact: the parts give the codes of the whole.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.audio.codes_file import read_codes, write_codes
from hocket.config import ReferenceCacheConfig
from hocket.errors import AudioFileError, ConfigError
from hocket.models.codec import Codec

#: Recordings in a call of the encoder, and frames of each: 4 x 16 frames are 5 s of audio per step.
ENCODER_ROWS = 4
ENCODER_CHUNK_FRAMES = 16

Key = str

_LOG = logging.getLogger("hocket")


@dataclass(slots=True, eq=False)
class _Encoding:
    """A recording that is being encoded: `samples` [C, S]; `done` of its `frames` frames have
    `codes`.
    """

    key: Key
    samples: torch.Tensor
    frames: int
    row: int
    done: int
    codes: list[NDArray[np.int64]]


class ReferenceEncoder:
    """Encodes prepared recordings with the first `n_codebooks` codebooks and caches the codes by
    content.
    """

    def __init__(
        self, codec: Codec, *, n_codebooks: int, config: ReferenceCacheConfig, fixed_batch: bool
    ) -> None:
        """Raises ConfigError when the cache folder cannot be made."""
        if config.folder is not None:
            try:
                config.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"the reference cache folder {str(config.folder)!r} cannot be made: "
                    f"{error.strerror}; name another",
                    param="folder",
                ) from error
        self._codec = codec
        self._n_codebooks = n_codebooks
        self._config = config
        self._device = next(codec.parameters()).device
        self._fixed_batch = fixed_batch
        self._state = codec.new_encoder_state(ENCODER_ROWS, ENCODER_CHUNK_FRAMES)
        self._salt = _fingerprint(codec, n_codebooks, self._device, fixed_batch)
        self._waiting: OrderedDict[Key, torch.Tensor] = OrderedDict()
        self._active: list[_Encoding] = []
        self._codes: OrderedDict[Key, NDArray[np.int64]] = OrderedDict()
        self._bytes = 0
        self.hits = 0
        self.misses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the encoder's state."""
        return self._state.nbytes

    def submit(self, samples_CS: NDArray[np.float32]) -> tuple[Key, NDArray[np.int64] | None]:
        """The codes [F, N] of a prepared recording if they are cached; otherwise a later `step`
        returns them by key.

        Equal recordings are encoded once.
        """
        frames = self._codec.config.reference_frames(samples_CS.shape[1])
        whole = np.ascontiguousarray(samples_CS[:, : frames * self._codec.config.frame_samples])
        key = hashlib.blake2b(self._salt + whole.tobytes(), digest_size=20).hexdigest()
        codes = self._find(key, frames)
        if (
            codes is not None
            or key in self._waiting
            or any(item.key == key for item in self._active)
        ):
            self.hits += 1
        else:
            self.misses += 1
            self._waiting[key] = torch.from_numpy(whole)
        return key, codes

    @torch.inference_mode()
    def step(self, wanted: Set[Key]) -> dict[Key, NDArray[np.int64]]:
        """Encode the next part of up to `ENCODER_ROWS` recordings; returns the codes of those that
        are complete.

        Recordings that are no longer `wanted` are dropped.
        """
        for key in self._waiting.keys() - wanted:
            del self._waiting[key]
        self._active = [item for item in self._active if item.key in wanted]
        free = sorted(set(range(ENCODER_ROWS)) - {item.row for item in self._active})
        while self._waiting and free:
            key, samples = self._waiting.popitem(last=False)
            item = _Encoding(
                key,
                samples,
                self._codec.config.reference_frames(samples.shape[1]),
                free.pop(0),
                0,
                [],
            )
            self._state.reset(torch.tensor([item.row], device=self._device))
            self._active.append(item)
        if not self._active:
            return {}
        self._encode_piece()
        done = [item for item in self._active if item.done == item.frames]
        self._active = [item for item in self._active if item not in done]
        finished = {item.key: np.concatenate(item.codes) for item in done}
        for key, codes in finished.items():
            self._keep(key, codes)
        return finished

    def _encode_piece(self) -> None:
        items = self._active
        frame_samples = self._codec.config.frame_samples
        counts = [min(ENCODER_CHUNK_FRAMES, item.frames - item.done) for item in items]
        rows = [item.row for item in items]
        frames = max(counts)
        if self._fixed_batch:
            frames = ENCODER_CHUNK_FRAMES
            others = [row for row in range(ENCODER_ROWS) if row not in rows]
            rows += others
        chunk_BCS = torch.zeros(len(rows), items[0].samples.shape[0], frames * frame_samples)
        lengths = [0] * len(rows)
        for i, item in enumerate(items):
            first = item.done * frame_samples
            piece = item.samples[:, first : first + counts[i] * frame_samples]
            chunk_BCS[i, :, : piece.shape[1]] = piece
            lengths[i] = piece.shape[1]
        rows_B, lengths_B = torch.tensor([rows, lengths], device=self._device)
        codes_BTN = self._codec.encode(
            chunk_BCS.to(self._device), self._state, rows_B, lengths_B, self._n_codebooks
        )
        host = codes_BTN.cpu().numpy()
        for i, item in enumerate(items):
            item.codes.append(host[i, : counts[i]].copy())
            item.done += counts[i]

    # ---- the cache: in memory, and in a folder when one is configured

    def _find(self, key: Key, frames: int) -> NDArray[np.int64] | None:
        if key in self._codes:
            self._codes.move_to_end(key)
            return self._codes[key]
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            codes = read_codes(path)
        except AudioFileError as error:
            _log_damage(path, str(error))
            return None
        if (
            codes.shape != (frames, self._n_codebooks)
            or codes.max() >= self._codec.config.codebook_size
        ):
            _log_damage(path, "it holds codes of something else")
            return None
        self._remember(key, codes)
        return codes

    def _keep(self, key: Key, codes: NDArray[np.int64]) -> None:
        self._remember(key, codes)
        path = self._path(key)
        if path is not None:
            try:
                write_codes(path, codes)
            except AudioFileError as error:  # a full disk must not end requests
                _LOG.warning("the reference cache keeps these codes in memory only: %s", error)

    def _remember(self, key: Key, codes: NDArray[np.int64]) -> None:
        self._codes[key] = codes
        self._bytes += codes.nbytes
        while self._bytes > self._config.max_bytes:
            _, oldest = self._codes.popitem(last=False)
            self._bytes -= oldest.nbytes

    def _path(self, key: Key) -> Path | None:
        return None if self._config.folder is None else self._config.folder / f"{key}.npy"


def _log_damage(path: Path, reason: str) -> None:
    # Treated like a missing file: the recording is encoded again and the file is replaced.
    _LOG.warning("%s in the reference cache is damaged and is made again: %s", path, reason)


def _fingerprint(codec: Codec, n_codebooks: int, device: torch.device, fixed_batch: bool) -> bytes:
    """Identifies interchangeable codes: those of one codec with one rounding, which depends on
    device and shapes.
    """
    facts = f"{codec_fingerprint(codec)} {n_codebooks} {device.type} {fixed_batch}"
    return hashlib.blake2b(facts.encode(), digest_size=20).digest()


def codec_fingerprint(codec: Codec) -> str:
    """Identifies a codec by its configuration and a sample of its weights: its codes are noise to
    any other codec.
    """
    digest = hashlib.blake2b(repr(codec.config).encode(), digest_size=20)
    for parameter in codec.parameters():
        digest.update(parameter.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()
