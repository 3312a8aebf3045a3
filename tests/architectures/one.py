"""One configuration in a process of its own, because some end theirs.

`python -m tests.architectures.one` reads it from stdin and prints whose turn it is, and then the
judgement, a line of JSON each.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from worker.engine.blas import load_fast_blas

load_fast_blas()  # before anything imports MLX

from tests.architectures.configurations import Configuration  # noqa: E402
from tests.architectures.judgement import judge_configuration  # noqa: E402


def main() -> None:
    configuration = Configuration.from_json(sys.stdin.read())
    with tempfile.TemporaryDirectory() as folder:
        judgement = judge_configuration(
            configuration, Path(folder) / "model", lambda stage: _print({"stage": stage})
        )
    _print(judgement.as_json())


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
