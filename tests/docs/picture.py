"""Makes docs/terminal.svg: commands typed at a real cluster, and what they print.

python -m tests.docs.picture
"""

import io
import os
import pty
import re
import subprocess
import sys

from rich.console import Console
from rich.text import Text

from tests.docs.blocks import ROOT
from tests.processes import SCRIPTS, cluster_process

TARGET = ROOT / "docs" / "terminal.svg"
COLUMNS = 100
_ERASE, _LINE_UP = "\x1b[2K", "\x1b[1A"
"""What is before them is not on the screen any more, as the progress of a request."""
TYPED = (
    'cluster run --temperature 0 "What is the capital of France?"',
    "cluster status",
)


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with cluster_process(workers=3, secured=False) as cluster:
        for command in TYPED:
            console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
            console.print(Text.from_ansi(shown(command, cluster.url)))
    picture = console.export_svg(title="three workers, one cluster", font_aspect_ratio=0.61)
    # Without the fonts, which a browser would download: it has one of its own.
    TARGET.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}\n")


def shown(command: str, url: str) -> str:
    """What a terminal shows of a command, with its colours."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", command],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(SCRIPTS), os.environ["PATH"]]),
            "CLUSTER__NATS__SERVERS": f'["{url}"]',
            "COLUMNS": str(COLUMNS),
            "TERM": "xterm-256color",
        },
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while piece := _read(ours):
        said += piece
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed: {said.decode()}")
    screen: list[str] = []
    for line in said.decode().replace("\r\n", "\n").split("\n"):
        del screen[max(0, len(screen) - line.count(_LINE_UP)) :]
        screen.append(line.rpartition(_ERASE)[2])
    whole = "\n".join(screen)
    return re.sub(r"\x1b\[[0-9;?]*[A-Zac-ln-z]", "", whole).strip() + "\n"


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other side is closed
        return b""


if __name__ == "__main__":
    main()
