"""Build hook: makes the placeholder talker, so that an installed package speaks (babbles) without a download."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BabbleHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        target = root / "src/hocket/assets/mini"
        spec = importlib.util.spec_from_file_location("make_babble", root / "scripts/make_babble.py")
        assert spec is not None
        assert spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        script.make_babble(target)
