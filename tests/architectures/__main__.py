"""Every model module of the installed mlx-lm, small and with random weights, through the engine.

    make architectures [ONLY="llama gemma2"]
    python -m tests.architectures [--only NAME ...] [--json | --markdown] [--keep] [--jobs 2]

Each is compared with what mlx-lm itself says of the same texts alone: served as equal with its rows
together (`batched`) or each alone (`alone`), `refused` with a sentence, or `wrong` with where.
docs/models.md says how. Ends with 1 where something is wrong.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from worker.engine.blas import load_fast_blas

load_fast_blas()  # before anything imports MLX

from tests.architectures.configurations import all_configurations, modules_without  # noqa: E402
from tests.architectures.judgement import Judgement  # noqa: E402
from tests.architectures.kept_verdicts import keep  # noqa: E402
from tests.architectures.processes import judge_all  # noqa: E402
from tests.architectures.table import line, markdown, summary  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the configurations")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each process")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print all that was found as JSON")
    output.add_argument("--markdown", action="store_true", help="print the table of docs/models.md")
    parser.add_argument("--keep", action="store_true", help="write worker/engine/verdicts.json")
    arguments = parser.parse_args()
    known = all_configurations()
    unknown = sorted(set(arguments.only or ()) - known.keys())
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [known[name] for name in arguments.only or known]
    lines_to = sys.stderr if arguments.json or arguments.markdown else sys.stdout
    judgements = _judge(
        judge_all(chosen, jobs=arguments.jobs, limit_s=arguments.limit_s), len(chosen), lines_to
    )
    if arguments.json:
        print(json.dumps([each.as_json() for each in judgements], indent=2))
    elif arguments.markdown:
        print(markdown(judgements))
    if arguments.keep:
        keep(judgements)
    print(summary(judgements), file=sys.stderr)
    if missing := [] if arguments.only else modules_without(known.values()):
        print(f"without a configuration: {', '.join(missing)}", file=sys.stderr)
    sys.exit(bool(missing) or any(each.outcome == "wrong" for each in judgements))


def _judge(judged: Iterator[Judgement], count: int, lines_to: TextIO) -> list[Judgement]:
    """All, by name; says of each how it fared, and how far all are."""
    began_at = time.monotonic()
    judgements: list[Judgement] = []
    for judgement in judged:
        judgements.append(judgement)
        _show_progress("")
        print(line(judgement), file=lines_to, flush=True)
        took_s = time.monotonic() - began_at
        left_s = took_s / len(judgements) * (count - len(judgements))
        _show_progress(f"{len(judgements)} of {count}, about {left_s:.0f} s to go")
    _show_progress("")
    return sorted(judgements, key=lambda each: each.name.lower())


def _show_progress(words: str) -> None:
    if sys.stderr.isatty():
        width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
        print(f"\r{words[:width]:{width}}", end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
