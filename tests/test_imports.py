"""Who may import whom: the rules of docs/architecture.md, checked on everything that an import
reaches.
"""

from __future__ import annotations

import pytest

from tests.support.import_graph import circles, imported, modules, reachable

#: The rooms from the bottom to the top. A module imports from its own room and from rooms below it.
FLOORS = (
    ("errors",),
    ("core", "progress"),
    ("config",),
    ("audio", "text"),
    ("kernels", "checkpoint"),
    ("models",),
    ("engine",),
    ("worker",),
    ("info",),
    ("server",),
    ("bench",),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FRONT_END = [
    *(name for name in modules() if name.startswith("hocket.server")),
    "hocket.worker.client",
    "hocket.worker.pool",
]


def room_of(module: str) -> str | None:
    """The folder or root module of `hocket` that `module` belongs to; None for the package itself
    and foreign code.
    """
    parts = module.split(".")
    return parts[1] if parts[0] == "hocket" and len(parts) > 1 else None


def below(room: str) -> list[str]:
    return [name for name in modules() if room_of(name) == room]


def test_every_room_has_a_floor() -> None:
    assert {room_of(name) for name in modules()} - {None} == FLOOR_OF.keys()


@pytest.mark.parametrize("room", FLOOR_OF)
def test_no_room_imports_one_above_it(room: str) -> None:
    upward = {
        f"{module} imports {target}"
        for module in below(room)
        for target in imported(module)
        if (other := room_of(target)) is not None
        and other != room
        and FLOOR_OF[other] >= FLOOR_OF[room]
    }
    assert not upward


def test_no_module_is_in_a_circle() -> None:
    assert circles() == []


def test_the_package_imports_neither_training_nor_benchmarks() -> None:
    for module in (name for name in modules() if name.startswith("hocket")):
        assert not {
            target
            for target in imported(module)
            if target.startswith(("training", "benchmarks", "tests"))
        }


@pytest.mark.parametrize("module", below("engine"))
def test_the_scheduler_and_its_nouns_need_no_torch(module: str) -> None:
    if module.startswith("hocket.engine.scheduling") or module == "hocket.engine.runners.padding":
        assert "torch" not in reachable(module)


@pytest.mark.parametrize("module", FRONT_END)
def test_the_front_end_loads_no_model_and_no_kernel(module: str) -> None:
    loaded = {name for name in reachable(module) if room_of(name) in {"models", "kernels"}}
    assert not loaded


def test_the_load_generator_and_its_judges_are_clients() -> None:
    for module in below("bench"):
        if module.startswith(("hocket.bench.load", "hocket.bench.judge", "hocket.bench.report")):
            loaded = {room_of(name) for name in reachable(module)}
            assert not loaded & {"engine", "models", "kernels", "worker"}, module


def test_only_config_reads_the_environment() -> None:
    for name, path in modules().items():
        if name.startswith("hocket.") and name != "hocket.config":
            text = path.read_text(encoding="utf-8")
            assert "os.environ" not in text, path
            assert "getenv" not in text, path


def test_every_folder_says_its_role() -> None:
    for path in modules().values():
        if path.name == "__init__.py" and "src" in path.parts:
            assert path.read_text(encoding="utf-8").startswith('"""'), path
