"""Public data types, the nouns: the request that a caller makes and the speech that comes back.

Fields of one family stand here too, because they are public: a family that has no use for a field
refuses it. They are `TaskType`, `task_type`, `streaming_text` and `predictor_*` (Qwen3-TTS), and
`quality`, `sound_event`, `ambient_sound` and `tokens` (MOSS-TTS-Local).

Tensor shape letters used across the project: B rows of a batch, T positions (or frames), N
codebooks (`n_vq`), V entries of a codebook, D channels of a hidden vector, H heads, C audio
channels, S samples.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hocket.errors import HocketError

FinishReason = Literal["stop", "length", "runaway", "cancelled", "error"]

#: The language whose numbers, abbreviations and symbols are read out as words.
TextNormalizer = Literal["en"]

#: Format of an engine's samples: float32 around [-1, 1] (not clipped, since a codec may overshoot),
#: or their int16 form (`audio.io.to_int16`).
SampleFormat = Literal["float32", "int16"]
Samples = NDArray[np.float32 | np.int16]

#: Seeds are 63-bit so that they fit every JSON reader's and database's signed 64-bit integer.
MAX_SEED = 2**63 - 1


def drawn_seed() -> int:
    """Random seed for requests without one; below 2**53, so that JSON clients can echo it."""
    return secrets.randbelow(2**53)


#: Longest text in characters. It is far more than any context holds, and bounds the time that
#: tokenizing takes.
MAX_TEXT_CHARACTERS = 100_000


class StrictModel(BaseModel):
    """Frozen model in which an unknown key or a wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True
    )


Temperature = Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)]
Mass = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
#: Multiplies or divides, so it must not be 0.
PositiveFactor = Annotated[float, Field(gt=0.0, le=100.0, allow_inf_nan=False)]


class SamplingFields(StrictModel):
    """Parameters of drawing codes (sources: MOSS 1.6), in requests and in a checkpoint's files.

    Names, bounds and help are written here once, also for HTTP bodies and the command line. `None`
    means the model's own recommendation. Fields that begin with `predictor_` apply to the codes
    after the first in families that draw them with their own parameters (Qwen3-TTS, sources: Qwen3
    7); other families refuse them.
    """

    temperature: Temperature | None = Field(default=None, description="0 is greedy.")
    top_p: Mass | None = Field(default=None, description="Nucleus mass; 0 and 1 disable.")
    top_k: Count | None = Field(default=None, description="Codes kept; 0 disables.")
    #: Applies per codebook, over the frames generated so far.
    repetition_penalty: PositiveFactor | None = Field(default=None, description="1 disables.")
    #: Defaults to 0 when `temperature` is 0.
    predictor_temperature: Temperature | None = Field(
        default=None, description="For Qwen3-TTS's codes after the first."
    )
    predictor_top_p: Mass | None = Field(default=None, description="Likewise.")
    predictor_top_k: Count | None = Field(default=None, description="Likewise.")


class Sampling(SamplingFields):
    """How the codes of a request are drawn."""

    #: Temperature of the two-way stop decision; ignored when `temperature` is 0.
    stop_temperature: PositiveFactor = 1.0


@dataclass(frozen=True, slots=True)
class AudioArray:
    """Decoded audio: float32 `samples` [C, S] in [-1, 1] at `sample_rate` Hz."""

    samples: NDArray[np.float32]
    sample_rate: int

    @property
    def seconds(self) -> float:
        return self.samples.shape[-1] / self.sample_rate


@dataclass(frozen=True, slots=True)
class PreparedReference:
    """A recording that `prepare_reference` has checked, resampled and levelled for the codec.

    float32 `samples` [C, S] at the codec's `sample_rate`. Front ends prepare recordings, so that
    the engine's thread does not have to resample.
    """

    samples: NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True, slots=True, eq=False)
class EncodedReference:
    """What a model reads from a recording; valid for engines of one `EngineInfo.reference_id`.

    Front ends send these to their workers, and caches keep them. A part that the model does not
    read, or that was not made, is None.
    """

    #: int64 [F, N]: codes of the model's own codec.
    codes: NDArray[np.int64] | None = None
    #: float32 [D]: the speaker vector.
    voice: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return sum(array.nbytes for array in (self.codes, self.voice) if array is not None)


#: A recording: a file, the bytes of a file, or decoded audio.
Recording = Path | str | bytes | AudioArray | PreparedReference

#: A reference voice: a recording, codes [frames, >= n_vq] of the model's own codec, or what an
#: engine of the same model has read from a recording.
Reference = Recording | EncodedReference | NDArray[np.int64]


#: Purpose of a Qwen3-TTS checkpoint, in its authors' words: cloning, named speakers, described
#: voices.
TaskType = Literal["Base", "CustomVoice", "VoiceDesign"]


@dataclass(frozen=True, slots=True)
class VoiceTraits:
    """How a checkpoint takes voices."""

    #: Purpose of the checkpoint; None for families without `TaskType`.
    task_type: TaskType | None = None
    #: Cloning needs the reference audio; its codes alone are not enough.
    hears_recordings: bool = False
    #: Reference recordings are normalised to one loudness.
    levels_references: bool = True


#: Default traits.
PLAIN_VOICES = VoiceTraits()


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is, for callers and front ends; built once, when the engine is loaded.

    It crosses the process boundary field by field (`hocket.worker.messages.Ready`): a change here
    changes the protocol.
    """

    #: The talker's checkpoint, as the caller named it; None is the built-in model.
    model: str | None
    #: Format of the generated audio: Hz, channels, and seconds per frame.
    sample_rate: int
    channels: int
    frame_seconds: float
    #: Requests that run at once, requests that may wait, and the longest prompt and speech together
    #: in K/V rows.
    rows: int
    max_waiting: int
    context_rows: int
    #: Codec fingerprint: codes are valid only for the same id. Empty without a codec.
    codec_id: str
    #: Identity of the preparation of recordings: an `EncodedReference` is valid only for the same
    #: id.
    reference_id: str
    #: `ReferenceLimits`: front ends prepare reference recordings.
    reference_min_seconds: float
    reference_max_seconds: float
    reference_min_rms: float
    reference_max_file_bytes: int
    #: Language of the text normalizer; None leaves texts unchanged.
    text_front: TextNormalizer | None = None
    #: Longest text that the model handles well; callers split longer input. None: the checkpoint
    #: does not say.
    segment_characters: int | None = None
    voice_traits: VoiceTraits = PLAIN_VOICES
    #: Sample format of the generated audio.
    samples: SampleFormat = "float32"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Device memory of an engine: bytes by owner, and the sizes they follow from."""

    rows: int
    #: Longest prompt and speech together, in K/V rows.
    context_rows: int
    #: K/V pages, the scratch page included.
    pages: int
    weight_bytes: int
    kv_bytes: int
    #: Codec state: the decoder's rows, the reference encoder's, and one row of each for
    #: conversions.
    ring_bytes: int
    #: Hidden states, codes, penalty history and sampling parameters.
    row_bytes: int
    #: Keys and values of one layer with all rows full, which the reference attention gathers from
    #: their pages.
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return (
            self.weight_bytes
            + self.kv_bytes
            + self.ring_bytes
            + self.row_bytes
            + self.workspace_bytes
        )


class SpeechRequest(StrictModel):
    """One text to synthesise.

    `reference` alone clones its voice(s). With `reference_text`, the transcript of exactly one
    reference, the model continues that recording (sources: MOSS 1.7). `voice` names one of the
    checkpoint's own voices.
    """

    text: str
    #: Whether numbers, abbreviations and symbols of `text` and `reference_text` are replaced by
    #: English words before the model sees them; `None` = the engine's setting.
    text_front: bool | None = None
    language: str | None = None
    instruction: str | None = None
    quality: str | None = None
    sound_event: str | None = None
    ambient_sound: str | None = None
    #: Requested length in frames.
    tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    #: A checkpoint of another type refuses the request; `None` = any type.
    task_type: TaskType | None = None
    #: Whether a Qwen3-TTS model reads one text token per frame or the whole text up front; `None` =
    #: its authors' choice.
    streaming_text: bool | None = None
    voice: str | None = None
    reference: Any = None
    reference_text: str | None = None
    #: Separator between `reference_text` and `text`; `None` = one space where the scripts use
    #: spaces and neither side has one.
    join: str | None = None

    sampling: Sampling = Sampling()
    #: `None` = drawn at admission and reported with the result.
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    #: Hard cap on new frames; `None` = the engine's default.
    max_frames: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    #: Frames before which the model may not stop.
    min_frames: Annotated[int, Field(ge=0, le=1_000_000)] = 0

    @field_validator(
        "text",
        "language",
        "instruction",
        "quality",
        "sound_event",
        "ambient_sound",
        "voice",
        "reference_text",
        "join",
    )
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if len(value) > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"has {len(value):,} characters; {MAX_TEXT_CHARACTERS:,} is the most, split it"
            )
        if "\x00" in value:
            raise ValueError("contains a NUL character; remove it")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                "contains a lone surrogate, which is not a character; fix the text's encoding"
            ) from None
        return value

    @field_validator("text", "reference_text")
    @classmethod
    def _not_blank(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("is empty; give at least one character that is not white space")
        return value

    @field_validator("reference")
    @classmethod
    def _reference_kinds(cls, value: Any) -> tuple[Reference, ...]:
        items = (
            () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
        )
        for item in items:
            if not isinstance(
                item,
                Path | str | bytes | AudioArray | PreparedReference | EncodedReference | np.ndarray,
            ):
                raise ValueError(
                    f"is a {type(item).__name__}; give a path, the bytes of a file, an AudioArray "
                    "or an array of codes"
                )
        return items

    @model_validator(mode="after")
    def _one_voice(self) -> SpeechRequest:
        if self.voice is not None and (self.references or self.reference_text is not None):
            raise ValueError("voice and reference both say who speaks; give one of them")
        if self.reference_text is not None and len(self.references) != 1:
            raise ValueError(
                f"reference_text needs exactly one reference, got {len(self.references)}; "
                "leave the transcript out to clone from several recordings"
            )
        return self

    @model_validator(mode="after")
    def _min_is_not_above_max(self) -> SpeechRequest:
        if self.max_frames is not None and self.min_frames > self.max_frames:
            raise ValueError(
                f"min_frames {self.min_frames} is above max_frames {self.max_frames}; lower it"
            )
        return self

    @property
    def references(self) -> tuple[Reference, ...]:
        """The references as a tuple; empty without any."""
        return self.reference or ()

    @property
    def is_continuation(self) -> bool:
        return self.reference_text is not None


@dataclass(frozen=True, slots=True)
class ReferenceNeeds:
    """Inputs that a prompt needs from each of its reference recordings."""

    #: The codec's codes, int64 [F, N].
    codes: bool
    #: The speaker vector, float32 [D].
    voice: bool


@dataclass(frozen=True, slots=True)
class PromptRows:
    """A request as the talker reads it, and the codes that prime the codec."""

    #: int64 [L, 1 + N]: the text id, then the codes (or the family's placeholder in rows without
    #: codes).
    rows: NDArray[np.int64]
    #: int64 [F, N]: codes of the recording that the new frames continue; F is 0 without one.
    prefix_codes: NDArray[np.int64]
    #: int64 [Q]: text ids of the first Q new frames; later frames have the family's
    #: `frame_text_id`.
    frame_texts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    #: float32 [D]: the speaker vector; [0] in families without one.
    voice: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the request was added; NaN for an event that did not happen."""

    #: The request got a row.
    admitted_seconds: float = math.nan
    #: Its whole prompt was computed.
    prefilled_seconds: float = math.nan
    #: Its first audio was on the host.
    first_audio_seconds: float = math.nan
    total_seconds: float = math.nan
    #: Longest stall of a player that starts with the first audio.
    late_seconds: float = 0.0
    #: Length of the generated speech, by its frames.
    speech_seconds: float = 0.0

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds since admission per second of speech; NaN without either."""
        if self.speech_seconds == 0.0:
            return math.nan
        return (self.total_seconds - self.admitted_seconds) / self.speech_seconds


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request ended."""

    finish_reason: FinishReason
    #: Seed that was given or drawn; the same request with it gives the same speech.
    seed: int
    timings: Timings
    #: Set if and only if the reason is `error`.
    error: HocketError | None = None
    #: Rows of its prompt: template, text and references; 0 for a request that ended without a
    #: prompt.
    prompt_rows: int = 0


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """The next part of a request's audio: `samples` [C, S], decoded from `codes`."""

    request_id: str
    samples: Samples
    sample_rate: int
    codes: NDArray[np.int64]
    #: Set on the last chunk only, which has no samples (and no codes, unless the engine has no
    #: codec).
    end: RequestEnd | None = None


@dataclass(frozen=True, slots=True)
class Speech:
    """A finished request."""

    #: [C, S] in the format of `EngineConfig.samples`; [C, 0] when the engine has no codec.
    samples: Samples
    sample_rate: int
    #: int64 [frames, N]: new frames only, without the reference's.
    codes: NDArray[np.int64]
    finish_reason: FinishReason
    seed: int
    timings: Timings = field(default_factory=Timings)

    @property
    def seconds(self) -> float:
        return self.samples.shape[-1] / self.sample_rate
