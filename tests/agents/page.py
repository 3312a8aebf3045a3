"""What docs/clients.md says to type, for tests to type it."""

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
_ADDRESS = "http://127.0.0.1:8000"


def _found(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """The text under a heading."""
    found = _found(rf"^#{{1,3}} {re.escape(title)}\n(.*?)(?=^##|\Z)", _PAGE.read_text())
    assert found is not None, f"docs/clients.md has no section {title!r}"
    return found[1]


def block(title: str, language: str, url: str, model: str) -> str:
    """The first block of a language in a section, for the gateway and model of a test."""
    found = _found(rf"^```{language}\n(.*?)^```", section(title))
    assert found is not None, f"the section {title!r} has no block of {language}"
    text = found[1].replace(_ADDRESS, url)
    return re.sub(r"(?<![\w/.])chat(?![\w/])|(?<=/)chat\b", model, text)


def exports(title: str, url: str, model: str) -> dict[str, str]:
    """The variables that a section exports."""
    lines = block(title, "sh", url, model).splitlines()
    exported = (line.removeprefix("export ") for line in lines if line.startswith("export "))
    return dict(line.split("=", 1) for line in exported)


def fields(title: str) -> set[str]:
    """The names that a section has in code."""
    return set(re.findall(r"`([a-z_.]+)`", section(title)))
