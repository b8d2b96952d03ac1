"""Files of a checkpoint folder that only Hocket reads: `hocket.json` and `voices/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator

from hocket.checkpoint.files import read_small
from hocket.checkpoint.voices import ONLY_DEFAULT, Voices, load_voices
from hocket.core import Sampling, StrictModel, TextNormalizer
from hocket.errors import CheckpointError


class _HocketFile(StrictModel):
    """`hocket.json`."""

    #: Normalizer of texts; for models that were trained on words alone, without digits and symbols.
    text_front: TextNormalizer | None = None
    #: Longest text the model handles well; callers split longer input. None: no limit but the
    #: engine's.
    segment_characters: Annotated[int, Field(ge=20, strict=True)] | None = None
    #: Recommended values; they replace the family's.
    sampling: Sampling = Sampling()

    @field_validator("sampling")
    @classmethod
    def _of_codes(cls, value: Sampling) -> Sampling:
        if value.stop_temperature != 1.0:
            raise ValueError("stop_temperature cannot be recommended: every request says its own")
        return value


@dataclass(frozen=True, slots=True)
class Extras:
    """Contents of these files; the defaults are those of a folder without them."""

    text_front: TextNormalizer | None = None
    segment_characters: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    voices: Voices = field(default_factory=lambda: ONLY_DEFAULT)


def load_extras(
    folder: Path, *, n_vq: int, codebook_sizes: Sequence[int], speakers: Iterable[str] = ()
) -> Extras:
    """Extras in `folder` for a talker of `n_vq` codebooks of these sizes that knows `speakers`.

    Raises CheckpointError.
    """
    file = _load_hocket_file(folder / "hocket.json")
    return Extras(
        text_front=file.text_front,
        segment_characters=file.segment_characters,
        sampling=file.sampling,
        voices=load_voices(folder, n_vq=n_vq, codebook_sizes=codebook_sizes, speakers=speakers),
    )


def _load_hocket_file(path: Path) -> _HocketFile:
    try:
        return _HocketFile.model_validate_json(read_small(path))
    except FileNotFoundError:
        return _HocketFile()
    except OSError as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise CheckpointError(
            f"{str(path)!r}: {f'{key}: ' if key else ''}{problem['msg']}; correct it"
        ) from error
