"""The import graph of the project's own code, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.paths import REPOSITORY

#: Import name of each tree, and the folder that holds it.
ROOTS = {"hocket": REPOSITORY / "src", "training": REPOSITORY, "benchmarks": REPOSITORY}


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its import name; a package stands for its `__init__`."""
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
        for root, folder in ROOTS.items()
        for path in sorted((folder / root).rglob("*.py"))
    }


@cache
def imported(module: str) -> frozenset[str]:
    """Modules that `module` imports anywhere in its file, also inside functions, but for type
    checking only.
    """
    return frozenset(_imported(module))


def _imported(module: str) -> Iterator[str]:
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    for node in _run_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below `node` that may run."""
    if (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _run_nodes(child)


def with_packages(module: str) -> Iterator[str]:
    """`module` and the packages that Python loads before it.

    The root is left out: it hands out its public names on first use and loads nothing by itself.
    """
    parts = module.split(".")
    if parts == ["hocket"]:
        return
    for end in range(min(2, len(parts)), len(parts) + 1):
        yield ".".join(parts[:end])


def reachable(*starts: str) -> set[str]:
    """Modules that importing `starts` may load, directly or through others, foreign ones
    included.
    """
    seen: set[str] = set()
    waiting = [name for start in starts for name in with_packages(start)]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module in modules():
            waiting += [name for target in imported(module) for name in with_packages(target)]
    return seen


def circles() -> list[list[str]]:
    """Groups of modules that import each other in a circle (strongly connected, by Tarjan's
    algorithm).
    """
    found: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in imported(module) & modules().keys():
            if target not in index:
                visit(target)
            if target in stack:
                low[module] = min(low[module], low[target])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1 or module in imported(module):
                found.append(sorted(group))

    for module in modules():
        if module not in index:
            visit(module)
    return found
