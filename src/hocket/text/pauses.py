"""The syntax of pauses: `[pause 1.5s]` in a text requests that much silence (sources: MOSS 1.7)."""

from __future__ import annotations

import re

#: The group holds the seconds. Spaces and digits are bounded, so that text which arrives in parts
#: can be scanned.
PAUSE = re.compile(r"\[pause[ \t]{1,8}(\d{1,6}(?:\.\d{1,6})?)[ \t]{0,8}s\]", re.IGNORECASE)
#: Upper bound of the length of a match of `PAUSE`.
MAX_PAUSE_CHARACTERS = 40
