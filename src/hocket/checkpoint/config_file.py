"""Shared parts of the families' `config.json` readers: checked sections, errors that name a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hocket.errors import ConfigError, requirement

#: Bounds far beyond any model, so that a damaged file is refused.
Size = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=1, le=1024)]
Id = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """A section of the file; keys without effect here (dropout, labels, ...) are ignored.

    All other keys are checked. A field has a default only where released models rely on the
    official class's default.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class RopeSection(Section):
    """Parameters of rotary positions, under either of their names in a file."""

    rope_theta: PositiveFloat | None = None
    rope_type: Literal["default"] = "default"
    #: Older name of `rope_type`.
    type: Literal["default"] = "default"


ModelT = TypeVar("ModelT", bound=BaseModel)


def read_file(model: type[ModelT], raw: Mapping[str, Any]) -> ModelT:
    """The parsed `config.json` as `model`. Raises ConfigError naming the first wrong key."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise config_error(error) from None


def config_error(error: ValidationError, file: str = "config.json") -> ConfigError:
    """The first error that pydantic found, in one line."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    message = requirement(first) if first["type"] == "value_error" else first["msg"]
    # The input of a missing key, or of an inconsistent section, is the whole section.
    given = "" if isinstance(first["input"], Mapping) else f", got {first['input']!r}"
    return ConfigError(f"{file}: {key + ': ' if key else ''}{message}{given}", param=key or None)


def same(names: str, one: object, other: object) -> None:
    """Raise ValueError when both values are given and differ."""
    if one is not None and other is not None and one != other:
        raise ValueError(f"{names} contradict each other")
