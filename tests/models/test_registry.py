"""The registry: families are found by name, imported only when they are needed, and named nowhere
else.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hocket import Engine, SpeechRequest
from hocket.bench.engine.random_model import random_models
from hocket.bench.engine.workload import read_workload
from hocket.config import EngineConfig
from hocket.errors import ConfigError
from hocket.models import registry
from hocket.models.registry import CODECS, TALKERS
from tests.support.paths import GOLDEN, REPOSITORY

SOURCE = REPOSITORY / "src/hocket"

VOICES_WITHOUT_TORCH = """
import sys
from pathlib import Path
from hocket.models import registry
families = [name for name in sys.modules if name.startswith("hocket.models.")]
assert families == ["hocket.models.registry"]
print(*registry.talker_extras(Path(sys.argv[1])).voices)
assert "torch" not in sys.modules
"""


def test_voices_are_found_without_torch() -> None:
    for folder, voice in (
        (SOURCE / "assets/mini", "default"),
        (GOLDEN / "qwen3_tts" / "custom_1b7", "vivian"),
    ):
        command = [sys.executable, "-c", VOICES_WITHOUT_TORCH, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert voice in done.stdout.split()


# ---- a new family

FAMILY = {
    "__init__.py": '"""A family that no code of the project knows."""\n',
    "config.py": """
from hocket.models.moss_local.config import MossLocalConfig

def read_config(raw):
    return MossLocalConfig.from_dict({**raw, "model_type": "moss_tts_local"})
""",
    "family.py": """
from dataclasses import replace

from hocket.models.moss_local.family import talker_plan as plan_of

def talker_plan(raw, dtype):
    plan = plan_of({**raw, "model_type": "moss_tts_local"}, dtype)
    return replace(plan, facts={**plan.facts, "made": "up"})
""",
}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkpoint of a family that is one folder and one entry of the registry."""
    package = tmp_path / "made_up_tts"
    package.mkdir()
    for name, text in FAMILY.items():
        (package / name).write_text(text)
    (package / "dimensions").mkdir()
    raw = json.loads((GOLDEN / "local_tiny/config.json").read_text()) | {"model_type": "made_up"}
    codec = json.loads((GOLDEN / "codec2_tiny/config.json").read_text())
    (package / "dimensions" / "made-up-1.json").write_text(
        json.dumps({"talker": raw, "codec": codec})
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TALKERS, "made_up", "made_up_tts")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for file in (GOLDEN / "local_tiny").iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(raw))
    yield folder
    for name in [name for name in sys.modules if name.startswith("made_up_tts")]:
        del sys.modules[name]


def test_a_family_is_one_folder_and_one_entry(made_up: Path) -> None:
    assert registry.checkpoint_kind(made_up)[0] == "talker"
    assert registry.talker_extras(made_up).voices.keys() == {"default"}
    assert registry.talker_plan(made_up, torch.float32).facts["made"] == "up"
    engine = Engine.load(
        made_up, GOLDEN / "codec2_tiny", config=EngineConfig(rows=1, max_context_rows=256)
    )
    speech = engine.generate(SpeechRequest(text="Hello.", seed=1, max_frames=3))
    assert len(speech.codes) <= 3


def test_its_dimensions_are_benchmarked_like_any_others(made_up: Path) -> None:
    assert "made-up-1" in registry.known_dimensions()
    talker, codec = random_models(
        "made-up-1", None, device=torch.device("cpu"), dtype=torch.float32, seed=0
    )
    assert len(read_workload(talker.talker.config, talker.prompt, 0)) == 1088
    assert codec.decode_whole(torch.zeros(2, 12, dtype=torch.int64)).isfinite().all()


def test_without_its_entry_it_is_refused(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TALKERS, "made_up")
    with pytest.raises(
        ConfigError, match="has model_type 'made_up'; Hocket knows the talkers moss_tts_local"
    ):
        registry.talker_plan(made_up, torch.float32)


# ---- names of families

#: By package, what code may call a family by: its package, its `model_type`, the beginning of its
#: classes' names.
NAMES = {
    package.rpartition(".")[2]: (
        package.rpartition(".")[2],
        model_type,
        "".join(word.capitalize() for word in package.rpartition(".")[2].split("_")),
    )
    for model_type, package in (TALKERS | CODECS).items()
}
#: The registry, and the list of golden checkpoints.
LISTS = {SOURCE / "models/registry.py", REPOSITORY / "benchmarks/gpu/golden.py"}


def code_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every name and string in a module, docstrings left out, with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield node.lineno, text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text):
                yield node.lineno, text
            case ast.FunctionDef(name=text) | ast.ClassDef(name=text):
                yield node.lineno, text
            case ast.ImportFrom(module=str(text)):
                yield node.lineno, text
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)


def owners_of(name: str) -> set[str]:
    """Packages of the families that a name or string in code may belong to."""
    return {package for package, names in NAMES.items() if any(own in name for own in names)}


def test_no_code_outside_a_family_names_it() -> None:
    found = {
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for root in (SOURCE, REPOSITORY / "benchmarks")
        for path in root.rglob("*.py")
        if path not in LISTS
        for line, name in code_of(path)
        if (owners := owners_of(name)) and not owners & set(path.parts)
    }
    assert not found
