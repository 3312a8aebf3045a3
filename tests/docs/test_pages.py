"""Our pages: short enough lines, a short README, links that lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages

PAGES = [*pages(), ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
MAX_WIDTH = 120
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_line_but_a_row_of_a_table_is_too_long(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), start=1)
    wide = [number for number, line in lines if len(line) > MAX_WIDTH and line[:1] != "|"]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_its_links_lead_to_files(page: Path) -> None:
    without_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = {target for target in _LINK.findall(without_code) if not target.startswith("http")}
    assert {target for target in targets if not (page.parent / target).exists()} == set()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_the_modules_that_structure_names_exist() -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)`", (ROOT / "docs" / "structure.md").read_text()))
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("shared", "controller", "worker")
        for path in (ROOT / package).rglob("*.py")
    }
    unknown = {name for name in named if not any(f"/{one}".endswith(f"/{name}") for one in modules)}
    assert len(named) > 100 and unknown == set()
