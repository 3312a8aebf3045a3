"""The code blocks of our pages.

A block of ```` ```sh run ```` or ```` ```python run ```` is run by a test, as it stands, against a
real cluster; the commands of the others are only parsed.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_BLOCK = re.compile(r"^```(sh|python)( run)?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
_OPERATORS = frozenset({"|", "||", "&&", ";"})


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """
    Attributes:
        page: relative to the project's folder.
        number: among the blocks of its page.
        runs: whether it is marked to be run.
    """

    page: str
    number: int
    language: str
    runs: bool
    code: str

    @property
    def name(self) -> str:
        return f"{self.page} {self.number}"


def pages() -> list[Path]:
    return [
        ROOT / "README.md",
        ROOT / "deploy" / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]


def code_blocks() -> list[CodeBlock]:
    return [
        CodeBlock(page.relative_to(ROOT).as_posix(), number, language, bool(runs), code)
        for page in pages()
        for number, (language, runs, code) in enumerate(_BLOCK.findall(page.read_text()))
    ]


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command of a shell block, without comments, pipes and redirections."""
    for line in re.sub(r"\\\n", " ", code).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*_words(lexer), ";"]:
            if word in _OPERATORS:
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def _words(lexer: shlex.shlex) -> list[str]:
    try:
        return list(lexer)
    except ValueError:  # a quoted text over several lines
        return []
