"""Named voices: the built-in ones, and uploaded ones, each in one file that is replaced atomically.

An upload takes `draft` (all checks that need no sound), the front end's decoder, the model's
encoder, and `save`:

    draft = store.draft("anna", len(content), transcript=words)
    recording = await client.read(content)
    encoded = await client.prepare(recording)
    voice = store.save(draft, recording, encoded, info.reference_id)

`save` takes what the model read from the recording, so that a failure on the way leaves the old
voice as it was, and a request with the new one waits for nothing. A file is replaced by a rename:
readers in this and other processes see the old voice or the new one, and the later of two uploads
under one name wins. All methods may be called from any thread.

Voices in the folder itself are everybody's. `store.of(owner)` has also those of one owner, which
lie in a folder of their own. Folders and files are for the server's user alone. Only regular files
under the names that voices can have are voices: links, folders and whatever else are left alone.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from hocket.audio.codes_file import as_codes
from hocket.audio.files import write_atomically
from hocket.audio.io import FORMATS, decode_audio, encode_audio
from hocket.checkpoint.voices import BuiltinVoice, VoiceNotFoundError, Voices, voice_name
from hocket.core import (
    AudioArray,
    EncodedReference,
    EngineInfo,
    PreparedReference,
    Reference,
    StrictModel,
)
from hocket.errors import (
    AudioFileError,
    ConfigError,
    HocketError,
    InvalidRequestError,
    ReferenceAudioError,
)

MAX_DESCRIPTION_CHARACTERS = 1_000
MAX_TRANSCRIPT_CHARACTERS = 5_000
_SUFFIX = ".voice"
#: Beginning of the names of the owners' folders.
_OWNED = "of-"
#: Permissions of a file's group and of all other users.
_OTHERS = 0o077

_LOG = logging.getLogger("hocket.server")


@dataclass(frozen=True, slots=True)
class Voice:
    """An entry in the list of voices."""

    name: str
    kind: Literal["builtin", "uploaded", "broken"]
    description: str = ""
    transcript: str | None = None
    #: Length of the recording, if there is one.
    seconds: float | None = None
    #: Whether there is a recording to listen to.
    preview: bool = False
    #: Seconds since 1970.
    created: int | None = None
    #: Why an uploaded voice is broken.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class VoiceDraft:
    """A checked upload without its recording."""

    name: str
    description: str
    transcript: str | None


class _DamagedError(Exception):
    """The file holds no voice; the message has the reason."""


class _Metadata(StrictModel):
    """The metadata stored beside codes and recording."""

    description: str
    transcript: str | None
    created: int
    seconds: float | None
    #: `EngineInfo.reference_id` of the model that read the recording; None in older files.
    reference_id: str | None = None
    #: Older files: `EngineInfo.codec_id` of their codes, which are those of all codebooks.
    codec: str | None = None


class VoiceStore:
    """The voices in `folder`, and `builtin` ones, whose names cannot be taken."""

    def __init__(
        self,
        folder: Path,
        builtin: Voices,
        *,
        max_voices: int = 1_000,
        max_recording_bytes: int = 10 * 2**20,
        everybodys: VoiceStore | None = None,
    ) -> None:
        """Raises ConfigError when the folder cannot be made."""
        if everybodys is None:
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                _make_private(folder)
            except OSError as error:
                raise ConfigError(
                    f"the folder of voices {str(folder)!r} cannot be made: {error.strerror}; name "
                    "another",
                    param="voices_folder",
                ) from error
        self._folder = folder
        self._builtin = builtin
        self._max_voices = max_voices
        self._max_recording_bytes = max_recording_bytes
        #: Searched for names that are not in the owner's folder.
        self._everybodys = everybodys
        #: Number of skipped entries that the log has been told of, for each folder.
        self._skipped: dict[Path, int] = {} if everybodys is None else everybodys._skipped

    def of(self, owner: str) -> VoiceStore:
        """The voices of `owner`, and everybody's. New ones are the owner's.

        `owner` becomes a part of a folder's name, so it is a digest, or as plain as one. Raises
        HocketError where a link stands in the place of that folder.
        """
        folder = self._folder / f"{_OWNED}{owner}"
        if folder.is_symlink():
            raise HocketError("the folder of this key's voices is a link; remove it")
        return VoiceStore(
            folder,
            self._builtin,
            max_voices=self._max_voices,
            max_recording_bytes=self._max_recording_bytes,
            everybodys=self,
        )

    def listed(self) -> list[Voice]:
        """All voices by name, the built-in ones first, broken ones among the uploaded."""
        builtin = [_builtin_entry(name, voice) for name, voice in self._builtin.items()]
        stems = self._stems()
        names = [stem for stem in stems if self._is_voice(stem)]
        self._log_skipped(len(stems) - len(names))
        return builtin + [_stored(name, self._path_of(name)) for name in names]

    def names(self) -> Iterator[str]:
        """The names in `listed`, whose files are not opened, and looked at as they are needed."""
        yield from self._builtin
        yield from filter(self._is_voice, self._stems())

    def reference(self, name: str, info: EngineInfo) -> tuple[Reference, str | None]:
        """Reference and transcript of an upload, for the engine that `info` describes.

        The reference is what that engine's model read from the recording; for another one it is the
        recording, a file's bytes. Raises InvalidRequestError (`voice`) for a voice that is unknown,
        broken, or has codes of another model only.
        """
        name = voice_name(name, param="voice")
        with self._opened(name, "voice") as (metadata, file):
            if metadata.reference_id == info.reference_id:
                return _encoded(file), metadata.transcript
            has_codes = metadata.codec == info.codec_id and metadata.reference_id is None
            if has_codes and not info.voice_traits.hears_recordings:
                return EncodedReference(_codes(file)), metadata.transcript
            if metadata.seconds is None:
                raise InvalidRequestError(
                    f"the voice {name!r} consists of codes of another model; upload it again",
                    param="voice",
                )
            return _flac(file), metadata.transcript

    def builtin(self, name: str) -> BuiltinVoice | None:
        """The built-in voice called `name`, or None. Reads nothing from disk.

        Raises InvalidRequestError (`name`).
        """
        return self._builtin.get(voice_name(name))

    def preview(self, name: str) -> bytes:
        """The recording of an uploaded voice, as a wav file.

        Raises InvalidRequestError (`name`).
        """
        name = voice_name(name)
        recording = None
        if name not in self._builtin:
            with self._opened(name, "name") as (metadata, file):
                recording = None if metadata.seconds is None else _recording(metadata, file)
        if recording is None:
            raise VoiceNotFoundError(
                f"the voice {name!r} has no recording to listen to", param="name"
            )
        return encode_audio(FORMATS[".wav"], recording.samples, recording.sample_rate)

    def draft(
        self,
        name: str,
        recording_bytes: int,
        *,
        description: str = "",
        transcript: str | None = None,
    ) -> VoiceDraft:
        """Check all of an upload but the sound of its recording, a file of so many bytes.

        Raises InvalidRequestError and ReferenceAudioError, which name the field of the form.
        """
        name = self._free_name(name)
        _check_words(description, MAX_DESCRIPTION_CHARACTERS, "speaker_description")
        _check_words(transcript or "", MAX_TRANSCRIPT_CHARACTERS, "ref_text")
        if recording_bytes > self._max_recording_bytes:
            raise ReferenceAudioError(
                f"the recording has {recording_bytes} bytes; the limit is "
                f"{self._max_recording_bytes}, send less",
                param="audio_sample",
            )
        return VoiceDraft(name, description, transcript)

    def save(
        self,
        draft: VoiceDraft,
        recording: PreparedReference | None,
        encoded: EncodedReference,
        reference_id: str,
    ) -> Voice:
        """Store `draft` with its recording (None: there are codes only) and what the model of that
        `reference_id` read from it, in place of any voice of that name.

        Raises InvalidRequestError for too many voices (concurrent uploads may exceed the limit by
        one each) or impossible codes, HocketError when the disk refuses.
        """
        name = self._free_name(draft.name)
        if encoded.codes is not None:
            try:
                as_codes(encoded.codes, "the voice")
            except AudioFileError as error:
                raise InvalidRequestError(str(error), param="codes") from error
        metadata = _Metadata(
            description=draft.description,
            transcript=draft.transcript,
            created=int(time.time()),
            seconds=None
            if recording is None
            else recording.samples.shape[1] / recording.sample_rate,
            reference_id=reference_id,
        )
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(
                self._path(name), _file_bytes(metadata, encoded, recording), private=True
            )
        except (AudioFileError, OSError) as error:
            raise HocketError(
                f"the voice {name!r} could not be stored: the server's disk refuses it"
            ) from error
        return _entry(name, metadata)

    def delete(self, name: str) -> None:
        """Delete an uploaded voice, which may be broken. Raises InvalidRequestError (`name`)."""
        name = voice_name(name)
        if name in self._builtin:
            raise InvalidRequestError(
                f"the voice {name!r} comes with the model and cannot be deleted", param="name"
            )
        try:
            path = self._path_of(name)
            _check_regular(path)
            path.unlink()
        except FileNotFoundError:
            raise self._unknown(name, "name") from None
        except OSError as error:
            raise HocketError(
                f"the voice {name!r} could not be deleted: the server's disk refuses it"
            ) from error

    # ---- files

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"

    def _path_of(self, name: str) -> Path:
        """The owner's file of that name, else everybody's, if there is one."""
        path = self._path(name)
        if self._everybodys is None or os.path.lexists(path):
            return path
        return self._everybodys._path_of(name)

    def _stems(self) -> list[str]:
        """What the names of files that may be voices begin with, sorted; everybody's included."""
        shared = [] if self._everybodys is None else self._everybodys._own_stems()
        return sorted({*shared, *self._own_stems()})

    def _own_stems(self) -> list[str]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:  # an owner without voices
            return []
        return [
            name.removesuffix(_SUFFIX)
            for name in names
            if name.endswith(_SUFFIX) and not name.startswith(".")
        ]

    def _is_voice(self, stem: str) -> bool:
        path = self._path_of(stem)
        return self._can_be_stored(stem) and path.is_file() and not path.is_symlink()

    def _log_skipped(self, files: int) -> None:
        if files != self._skipped.get(self._folder, 0):
            self._skipped[self._folder] = files
            _LOG.warning(
                "event=voices_skipped files=%d folder=%s reason=links, folders, or names that no "
                "upload has; remove them",
                files,
                self._folder,
            )

    def _can_be_stored(self, name: str) -> bool:
        try:
            return voice_name(name) == name and name not in self._builtin
        except InvalidRequestError:
            return False

    def _free_name(self, name: str) -> str:
        name = voice_name(name)
        if name in self._builtin:
            raise InvalidRequestError(
                f"the name {name!r} belongs to a voice that comes with the model; choose another",
                param="name",
            )
        path = self._path(name)
        is_new = not os.path.lexists(path)
        if not is_new and (path.is_symlink() or not path.is_file()):
            raise InvalidRequestError(
                f"the name {name!r} is taken on the server's disk by what is no voice; choose "
                "another",
                param="name",
            )
        if is_new and len(self._own_stems()) >= self._max_voices:
            raise InvalidRequestError(
                f"there are {self._max_voices} voices, which is the limit; delete one first",
                param="name",
            )
        return name

    @contextmanager
    def _opened(self, name: str, param: str) -> Iterator[tuple[_Metadata, safe_open]]:
        try:
            with _opened_file(self._path_of(name)) as opened:
                yield opened
        except FileNotFoundError:
            raise self._unknown(name, param) from None
        except _DamagedError as error:
            raise InvalidRequestError(
                f"the voice {name!r} is broken: {error}; upload it again", param=param
            ) from error

    def _unknown(self, name: str, param: str) -> VoiceNotFoundError:
        return VoiceNotFoundError(
            f"there is no voice {name!r}; GET /v1/audio/voices lists them", param=param
        )


def _check_words(words: str, max_characters: int, param: str) -> None:
    if len(words) > max_characters:
        raise InvalidRequestError(
            f"{param} has {len(words)} characters; the limit is {max_characters}", param=param
        )
    if any(unicodedata.category(character) == "Cs" or character == "\0" for character in words):
        raise InvalidRequestError(
            f"{param} holds a NUL or half a surrogate pair; fix its encoding", param=param
        )


def _entry(name: str, metadata: _Metadata) -> Voice:
    return Voice(
        name,
        "uploaded",
        description=metadata.description,
        transcript=metadata.transcript,
        seconds=metadata.seconds,
        preview=metadata.seconds is not None,
        created=metadata.created,
    )


def _stored(name: str, path: Path) -> Voice:
    try:
        with _opened_file(path) as (metadata, _):
            return _entry(name, metadata)
    except FileNotFoundError:
        return Voice(name, "broken", problem="it has just been deleted")
    except _DamagedError as error:
        return Voice(name, "broken", problem=str(error))


def _builtin_entry(name: str, voice: BuiltinVoice) -> Voice:
    has_codes = voice.codes is not None
    return Voice(
        name,
        "builtin",
        description=voice.description,
        transcript=voice.transcript,
        preview=has_codes,
    )


# --------------------------------------------------------------------------------------------------
# a voice's file is safetensors: codes int64 [F, N]; voice float32 [D]; flac uint8, a file of that
# format; the metadata as JSON in the metadata. Each array may be missing.


def _file_bytes(
    metadata: _Metadata, encoded: EncodedReference, recording: PreparedReference | None
) -> bytes:
    tensors: dict[str, NDArray[np.int64] | NDArray[np.float32] | NDArray[np.uint8]] = {}
    if encoded.codes is not None:
        tensors["codes"] = np.ascontiguousarray(encoded.codes, np.int64)
    if encoded.voice is not None:
        tensors["voice"] = np.ascontiguousarray(encoded.voice, np.float32)
    if recording is not None:
        flac = encode_audio(FORMATS[".flac"], recording.samples, recording.sample_rate)
        tensors["flac"] = np.frombuffer(flac, np.uint8)
    return to_safetensors(tensors, {"voice": metadata.model_dump_json()})


@contextmanager
def _opened_file(path: Path) -> Iterator[tuple[_Metadata, safe_open]]:
    """Metadata and content of a voice's file, even if it is replaced meanwhile.

    Raises FileNotFoundError, _DamagedError.
    """
    _check_regular(path)
    try:
        with safe_open(path, framework="np") as file:
            yield _Metadata.model_validate_json((file.metadata() or {}).get("voice", "")), file
    except FileNotFoundError:
        raise
    except (SafetensorError, AudioFileError, OSError) as error:
        raise _DamagedError("its file is damaged or cannot be read") from error
    except ValidationError as error:
        raise _DamagedError("this version does not understand its file") from error


def _check_regular(path: Path) -> None:
    """Raises FileNotFoundError where there is no file, or a link, a folder or anything else."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise FileNotFoundError(errno.ENOENT, "it is a link, or not a file", str(path))


def _make_private(folder: Path) -> None:
    """Take the voices in `folder` from the machine's other users, as older versions did not.

    A folder that holds other things, too, stays as it is, with a warning. Raises OSError.
    """
    entries = list(folder.iterdir())
    files = [path for path in entries if path.suffix == _SUFFIX and _is_open(path)]
    for path in files:
        path.chmod(0o600)
    if files:
        _LOG.info("event=voices_made_private files=%d folder=%s", len(files), folder)
    if not folder.stat().st_mode & _OTHERS:
        return
    if all(path.suffix == _SUFFIX or path.name.startswith((".", _OWNED)) for path in entries):
        folder.chmod(0o700)
    else:
        _LOG.warning(
            "event=voices_folder_open folder=%s reason=it holds other things, too, so it stays "
            "open to other users; name a folder for voices alone",
            folder,
        )


def _is_open(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) and bool(mode & _OTHERS)


def _tensor(file: safe_open, name: str) -> NDArray[Any]:
    tensor: NDArray[Any] = file.get_tensor(name)  # type: ignore[no-untyped-call]
    return tensor


def _codes(file: safe_open) -> NDArray[np.int64]:
    return as_codes(_tensor(file, "codes"), "the voice")


def _encoded(file: safe_open) -> EncodedReference:
    names = file.keys()  # type: ignore[no-untyped-call]
    voice = _tensor(file, "voice") if "voice" in names else None
    if voice is not None and (voice.dtype != np.float32 or voice.ndim != 1):
        raise _DamagedError("its speaker vector is none")
    return EncodedReference(_codes(file) if "codes" in names else None, voice)


def _flac(file: safe_open) -> bytes:
    return _tensor(file, "flac").tobytes()


def _recording(metadata: _Metadata, file: safe_open) -> AudioArray:
    assert metadata.seconds is not None
    flac = _flac(file)
    return decode_audio(flac, max_bytes=len(flac), max_seconds=metadata.seconds + 1)
