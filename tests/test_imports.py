"""Who may import whom: the rules of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

SOURCE = REPOSITORY / "src/hocket"
NO_TORCH = [*(SOURCE / "engine/scheduling").glob("*.py"), SOURCE / "engine/runners/padding.py"]


def imported(path: Path) -> set[str]:
    """Modules that `path` imports, wherever in the file, except for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def reachable(path: Path, seen: set[Path] | None = None) -> set[str]:
    """What `path` imports, directly or through the project's own modules."""
    seen = seen if seen is not None else set()
    if path in seen:
        return set()
    seen.add(path)
    modules = imported(path)
    for module in list(modules):
        if module.startswith("hocket."):
            file = SOURCE.parent / (module.replace(".", "/") + ".py")
            if file.exists():
                modules |= reachable(file, seen)
    return modules


@pytest.mark.parametrize("path", NO_TORCH, ids=lambda path: path.stem)
def test_the_scheduler_and_its_nouns_need_no_torch(path: Path) -> None:
    assert "torch" not in {module.split(".")[0] for module in reachable(path)}


def test_models_do_not_know_the_engine() -> None:
    for path in (SOURCE / "models").rglob("*.py"):
        assert not any(module.startswith(("hocket.engine", "hocket.server")) for module in imported(path)), path


def test_the_server_knows_no_model_and_no_kernel() -> None:
    for path in (SOURCE / "server").rglob("*.py"):
        assert not any(module.startswith(("hocket.models", "hocket.kernels")) for module in imported(path)), path


def test_only_config_reads_the_environment() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.name != "config.py":
            text = path.read_text(encoding="utf-8")
            assert "os.environ" not in text, path
            assert "getenv" not in text, path
