"""Loads a `settings.Profile` from a profile file, `--set` and flags, and remembers the origin of
every value.

A profile file is YAML with the keys of `settings.Profile` and, if it builds on another, `extends:
NAME or FILE`. The folder `profiles/` beside this module holds those that ship with Hocket. Later
layers win: built-in values, the file's bases, the file, environment, `--set`, flags.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from hocket.errors import ConfigError, requirement
from hocket.server.settings import Profile

_FOLDER = Path(__file__).parent / "profiles"
#: Secrets, which are never printed.
_HIDDEN = "server.api_keys"


@dataclass(frozen=True, slots=True)
class Layer:
    """Values by dotted key, and the name of their origin for messages."""

    origin: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LoadedProfile:
    """A profile and the origin of every value, by dotted key."""

    profile: Profile
    origins: Mapping[str, str]

    def table(self) -> str:
        """A line for each setting: key, value, origin."""
        rows = [
            (key, _shown(key, value), self.origins[key]) for key, value in _leaves(self.profile)
        ]
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        return "\n".join(
            f"{key:<{widths[0]}}  {value:<{widths[1]}}  # {origin}" for key, value, origin in rows
        )


def load_profile(name: str, *layers: Layer) -> LoadedProfile:
    """The shipped profile called `name`, or the file of that name, under `layers`.

    Raises ConfigError.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys((key for key, _ in _leaves(Profile())), "built in")
    for layer in [*_chain(name, ()), *layers]:
        for key, value in layer.values.items():
            if key not in origins:
                raise ConfigError(
                    f"{key} is not a setting ({layer.origin}){_guess(key, origins)}", param=key
                )
            values[key], origins[key] = value, layer.origin
    try:
        profile = Profile.model_validate_json(json.dumps(_nested(values), default=str))
    except ValidationError as error:
        raise _refusal(error, origins) from None
    return LoadedProfile(profile, origins)


def parse_settings(items: Sequence[str]) -> Layer:
    """`key=value` pairs, values as in YAML. Raises ConfigError."""
    values: dict[str, object] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not (equals and key):
            raise ConfigError(
                f"--set {item!r} is not key=value; write for instance --set engine.rows=32"
            )
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(
                f"--set {key} has the value {text!r}, which is not YAML; quote it", param=key
            ) from None
    return Layer("--set", values)


def profile_names() -> list[str]:
    """The profiles that ship with Hocket."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def _chain(name: str, above: tuple[Path, ...]) -> list[Layer]:
    """The layers of a profile, its bases first."""
    beside = above[-1].parent if above else Path()
    path = _FOLDER / f"{name}.yaml" if name in profile_names() else beside / name
    if path in above:
        raise ConfigError(
            f"the profile {name!r} extends itself ({' -> '.join(p.name for p in [*above, path])})"
        )
    document = _read(path)
    base = document.pop("extends", None)
    if not isinstance(base, str | None):
        raise ConfigError(
            f"extends is {base!r} in the profile {path.name!r}; name one profile or file"
        )
    layer = Layer(f"profile {path.stem}", dict(_flat(document)))
    return [*(_chain(base, (*above, path)) if base is not None else []), layer]


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        shipped = ", ".join(profile_names())
        raise ConfigError(
            f"cannot read the profile {str(path)!r}: {error.strerror}; shipped ones: {shipped}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where is not None else ""
        raise ConfigError(f"the profile {str(path)!r} is not YAML{line}; correct it") from None
    if not isinstance(document, dict):
        raise ConfigError(f"the profile {str(path)!r} holds no settings; write key: value lines")
    return document


def _flat(document: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = value
    return tree


def _leaves(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(key: str, value: object) -> str:
    if key == _HIDDEN:
        return f"({len(value) if isinstance(value, tuple) else 0} hidden)"
    return json.dumps(value, default=str)


def _guess(key: str, known: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; --print-config shows them all"


def _refusal(error: ValidationError, origins: Mapping[str, str]) -> ConfigError:
    problem = error.errors()[0]
    key = ".".join(
        part for part in problem["loc"] if isinstance(part, str)
    )  # numbers are indices of a list
    origin = f" ({origins[key]})" if key in origins else ""
    if problem["type"] == "value_error":
        return ConfigError(f"{key}{origin}: {requirement(problem)}", param=key)
    shown = "" if key == _HIDDEN else f" is {problem['input']!r}"
    return ConfigError(f"{key}{shown}{origin}: it {requirement(problem)}", param=key)
