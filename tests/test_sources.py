"""Every section that a comment cites stands in docs/sources.md."""

from __future__ import annotations

import re

from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "sources.md").read_text(encoding="utf-8")
SECTIONS = set(re.findall(r"^#+ ((?:MOSS|Qwen3) [\d.]+)", PAGE, re.MULTILINE))
CITATION = re.compile(r"sources: ((?:MOSS|Qwen3) [\d.]*\d(?:(?:, | - | and )[\d.]*\d)*)")


def cited() -> set[tuple[str, str]]:
    """Sections and the files that cite them."""
    found = set()
    for folder in ("src", "tests", "training", "benchmarks"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            for citation in CITATION.findall(path.read_text(encoding="utf-8")):
                model, _, numbers = citation.partition(" ")
                found |= {
                    (f"{model} {number}", path.name) for number in re.findall(r"[\d.]*\d", numbers)
                }
    return found


def test_cited_sections_exist() -> None:
    assert len(cited()) > 60
    assert {(section, file) for section, file in cited() if section not in SECTIONS} == set()


def test_nothing_cites_a_page_that_the_repository_does_not_have() -> None:
    for folder in ("src", "tests", "training", "benchmarks", "docs"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in {".py", ".md"} and path.name != "test_sources.py":
                text = path.read_text(encoding="utf-8")
                assert not re.search("spec" + "/(moss|qwen3)", text), path
