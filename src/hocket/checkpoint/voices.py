"""Built-in voices: a checkpoint's `voices/` folder, read and checked when it is loaded.

    voices/NAME.json    description of the voice (`_VoiceFile`)
    voices/NAME.npy     its codes, integers [frames, codebooks], as
                        `hocket codec encode --as-reference` writes them

The voice `default` always exists and has no codes: the model chooses. `voices/default.json` may
describe it. Speakers that a model knows by name are voices too.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from hocket.audio.codes_file import read_codes
from hocket.checkpoint.files import read_small
from hocket.core import SpeechRequest, StrictModel
from hocket.errors import AudioFileError, CheckpointError, InvalidRequestError, requirement

_LOG = logging.getLogger("hocket")
#: Voice of requests that name none: the model's own choice.
DEFAULT_VOICE = "default"
#: Use of a voice's codes in the prompt: a recording to clone, or the beginning of the model's own
#: output, whose words are the transcript (sources: MOSS 1.7).
VoiceMode = Literal["clone", "continuation"]

MAX_NAME_BYTES = 64
#: A minute at 12.5 frames a second, as for reference recordings.
_MAX_FRAMES = 750

_Line = Annotated[str, Field(min_length=1, max_length=200)]


class VoiceNotFoundError(InvalidRequestError):
    """No voice has that name, or the voice has no recording."""

    http_status = 404


class _VoiceFile(StrictModel):
    """`voices/NAME.json`."""

    #: How it sounds, for users who choose a voice.
    description: _Line
    #: English name of its language.
    language: _Line | None = None
    #: Words spoken in the codes.
    transcript: Annotated[str, Field(min_length=1, max_length=5_000)] | None = None
    #: Origin of the recording, and the licence for its use.
    source: _Line
    licence: _Line
    mode: VoiceMode = "clone"

    @model_validator(mode="after")
    def _continuation_has_words(self) -> _VoiceFile:
        if self.mode == "continuation" and self.transcript is None:
            raise ValueError("mode is continuation, which needs the transcript")
        return self


@dataclass(frozen=True, slots=True)
class BuiltinVoice:
    """A voice that comes with a checkpoint."""

    description: str
    #: The model knows the voice by name and needs no codes (sources: Qwen3).
    is_speaker: bool = False
    #: int64 [F, at least n_vq]; None: no reference, the model chooses the voice.
    codes: NDArray[np.int64] | None = None
    transcript: str | None = None
    mode: VoiceMode = "clone"
    language: str | None = None
    source: str | None = None
    licence: str | None = None

    @property
    def reference_text(self) -> str | None:
        """Transcript that a request sends with the codes: only a recording to continue has one."""
        return self.transcript if self.mode == "continuation" else None


#: Voices by name: `default` first, then in alphabetical order.
Voices = Mapping[str, BuiltinVoice]

#: Voices of a checkpoint without any of its own.
ONLY_DEFAULT: Voices = {DEFAULT_VOICE: BuiltinVoice("The model's own choice")}


def load_voices(
    checkpoint: Path, *, n_vq: int, codebook_sizes: Sequence[int], speakers: Iterable[str] = ()
) -> Voices:
    """The voices of a checkpoint whose talker makes `n_vq` codes a frame and knows `speakers`.

    Speakers whose name no voice can have are left out, with a warning. Raises CheckpointError.
    """
    folder = checkpoint / "voices"
    try:
        files = (
            sorted(path for path in folder.iterdir() if not path.name.startswith("."))
            if folder.is_dir()
            else []
        )
    except OSError as error:
        raise CheckpointError(f"cannot read {str(folder)!r}: {error.strerror}") from error
    known: dict[str, BuiltinVoice] = {}
    for name in sorted(speakers):
        try:
            known[voice_name(name)] = BuiltinVoice("A speaker of the model", is_speaker=True)
        except InvalidRequestError as error:
            _LOG.warning("event=speaker_left_out reason=%s", f"config.json, spk_id: {error}")
    voices = {**ONLY_DEFAULT, **known}
    for path in files:
        if path.suffix == ".json":
            voices[_name_of(path)] = _load_voice(path, n_vq, codebook_sizes)
        elif path.suffix != ".npy":
            raise CheckpointError(
                f"{str(path)!r} is no part of a voice; a voice is NAME.json and NAME.npy"
            )
        elif not path.with_suffix(".json").is_file():
            raise CheckpointError(
                f"{str(path)!r} has no {path.stem}.json beside it, which says what the voice is"
            )
    return voices


def find_voice(voices: Voices, name: str) -> BuiltinVoice:
    """The voice called `name`, in any spelling. Raises InvalidRequestError (`voice`)."""
    voice = voices.get(voice_name(name, param="voice"))
    if voice is None:
        raise VoiceNotFoundError(
            f"there is no voice {name!a}; there are {', '.join(voices)}", param="voice"
        )
    return voice


def with_reference_of_voice(request: SpeechRequest, voices: Voices) -> SpeechRequest:
    """`request` with its voice's reference in place of the name; a speaker's name stays.

    Raises InvalidRequestError (`voice`).
    """
    if request.voice is None:
        return request
    voice = find_voice(voices, request.voice)
    if voice.is_speaker:
        return request
    references = () if voice.codes is None else (voice.codes,)
    return request.model_copy(
        update={"voice": None, "reference": references, "reference_text": voice.reference_text}
    )


def voice_name(name: str, *, param: str = "name") -> str:
    """A voice's name in lower case and NFC. Raises InvalidRequestError (`param`).

    Letters and digits of any script with their marks, and `-`, `_`, `.` after the first; at most 64
    bytes of UTF-8. Names differ in more than case, because some file systems ignore it.
    """
    spelt = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    if (
        not spelt
        or not _is_initial(spelt[0])
        or not all(_is_initial(c) or _is_inner(c) for c in spelt)
    ):
        shown = ascii(name[:MAX_NAME_BYTES])
        raise InvalidRequestError(
            f"{shown} is no voice name; use letters and digits, and behind the first also '-', '_' "
            "and '.'",
            param=param,
        )
    if len(spelt.encode()) > MAX_NAME_BYTES:
        raise InvalidRequestError(
            f"a voice name has {MAX_NAME_BYTES} bytes at most, this one {len(spelt.encode())}; "
            "shorten it",
            param=param,
        )
    return spelt


def _is_initial(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "L" or category == "Nd"


def _is_inner(character: str) -> bool:
    return character in "-_." or unicodedata.category(character)[0] == "M"


# --------------------------------------------------------------------------------------------------
# files


def _name_of(path: Path) -> str:
    name = unicodedata.normalize("NFC", path.stem)
    try:
        if voice_name(name) == name:
            return name
    except InvalidRequestError as error:
        raise CheckpointError(f"{str(path)!r}: {error}") from error
    raise CheckpointError(
        f"{str(path)!r}: names of voices have small letters; rename it to {voice_name(name)}.json"
    )


def _load_voice(path: Path, n_vq: int, codebook_sizes: Sequence[int]) -> BuiltinVoice:
    try:
        facts = _VoiceFile.model_validate_json(read_small(path))
    except OSError as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        reason = requirement(problem) if problem["type"] == "value_error" else problem["msg"]
        raise CheckpointError(
            f"{str(path)!r} describes no voice: {f'{key}: ' if key else ''}{reason}"
        ) from error
    codes_path = path.with_suffix(".npy")
    codes_FN = None
    if path.stem != DEFAULT_VOICE:
        codes_FN = _load_codes(codes_path, n_vq, codebook_sizes)
    elif codes_path.exists() or facts.transcript is not None:
        raise CheckpointError(
            f"{str(path)!r}: the voice {DEFAULT_VOICE!r} is the model's own and has no codes and "
            "no transcript; give a voice with codes another name"
        )
    return BuiltinVoice(codes=codes_FN, **facts.model_dump())


def _load_codes(path: Path, n_vq: int, codebook_sizes: Sequence[int]) -> NDArray[np.int64]:
    try:
        codes_FN = read_codes(path)
    except AudioFileError as error:
        raise CheckpointError(f"the codes of a voice: {error}") from error
    frames, codebooks = codes_FN.shape
    if frames > _MAX_FRAMES:
        raise CheckpointError(
            f"{str(path)!r} has {frames} frames; a voice has {_MAX_FRAMES} at most"
        )
    if codebooks < n_vq or (codes_FN[:, :n_vq] >= np.array(codebook_sizes[:n_vq])).any():
        raise CheckpointError(
            f"{str(path)!r} has codes up to {codes_FN.max()} in {codebooks} codebooks, the model "
            f"{n_vq} codebooks of {max(codebook_sizes)} codes; encode its recording with the "
            "model's own codec"
        )
    return codes_FN
