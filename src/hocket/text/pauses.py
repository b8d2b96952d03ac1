"""The syntax of pauses: `[pause 1.5s]` in a text asks for that much silence (spec/moss 1.7)."""

from __future__ import annotations

import re

#: The group holds the seconds. Spaces and digits are bounded, so that a text that arrives in bits can be scanned.
PAUSE = re.compile(r"\[pause[ \t]{1,8}(\d{1,6}(?:\.\d{1,6})?)[ \t]{0,8}s\]", re.IGNORECASE)
#: No match of `PAUSE` is longer.
MAX_PAUSE_CHARACTERS = 40
