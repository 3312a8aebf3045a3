"""Reads what deploy/README.md has people type."""

import re
from collections.abc import Sequence

from tests.deploy.examples import DEPLOY

PAGE = DEPLOY / "README.md"


def typed(heading: str) -> Sequence[str]:
    """The lines of the shell blocks below a heading, up to the next one."""
    text = PAGE.read_text()
    begin = re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE)
    assert begin is not None, f"no heading {heading!r}"
    rest = text[begin.end() :]
    prose = re.sub(r"```.*?```", lambda block: "`" * len(block[0]), rest, flags=re.DOTALL)
    end = re.search(r"^#", prose, re.MULTILINE)
    section = rest[: end.start()] if end else rest
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = [line.partition("  #")[0].rstrip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]
