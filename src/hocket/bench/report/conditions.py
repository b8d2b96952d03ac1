"""`--fail-if 'ttfa_p95_ms > 200'`: one figure, one comparison, one number; nothing is evaluated as
code.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hocket.bench.faults import FAULTS
from hocket.errors import ConfigError

_FORM = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]*)?(?:e-?[0-9]+)?)\s*")
_STATUS = re.compile(r"status_\d{3}")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a figure and a number that fails a run when it holds."""

    figure: str
    comparison: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `--fail-if`. Raises ConfigError."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"--fail-if {text!r}: write FIGURE > NUMBER, such as 'ttfa_p95_ms > 200'",
                param="fail_if",
            )
        return cls(found[1], found[2], float(found[3]))

    def holds(self, value: float) -> bool:
        """Whether the figure's `value` fails the run."""
        return _OPERATORS[self.comparison](value, self.number)

    def check_known(self, known: Collection[str]) -> None:
        """Raise ConfigError unless the figure is one of `known` or counts a fault that can
        occur.
        """
        kind = self.figure.removeprefix("fault_")
        if self.figure in known or (
            kind != self.figure and (kind in FAULTS or _STATUS.fullmatch(kind))
        ):
            return
        near = difflib.get_close_matches(self.figure, known, 3) or sorted(known)[:12]
        raise ConfigError(
            f"--fail-if: there is no figure {self.figure!r} here; there is {', '.join(near)}"
        )

    def __str__(self) -> str:
        return f"{self.figure} {self.comparison} {self.number:g}"
