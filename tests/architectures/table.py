"""The table of docs/models.md, and the lines of the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.architectures.judgement import Judgement, Outcome

_WORDS: dict[Outcome, str] = {
    "batched": "together",
    "alone": "one at a time",
    "refused": "refused",
    "wrong": "**wrong**",
}


def markdown(judgements: Iterable[Judgement]) -> str:
    """One line for each configuration, by name."""
    lines = ["| model | module | caches | rows | why |", "|---|---|---|---|---|"]
    for each in sorted(judgements, key=lambda each: each.name.lower()):
        caches = ", ".join(f"`{kind}`" for kind in each.caches)
        why = each.reason.replace("|", "\\|")
        lines.append(
            f"| {each.name} | `{each.module}` | {caches} | {_WORDS[each.outcome]} | {why} |"
        )
    return "\n".join(lines)


def summary(judgements: Sequence[Judgement]) -> str:
    counts = Counter(each.outcome for each in judgements)
    answers, ties = sum(each.answers for each in judgements), sum(each.ties for each in judgements)
    left_out = sum(each.left_out for each in judgements)
    fared = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _WORDS)
    counted = f"{answers} answers, {ties} ties, {left_out} left out"
    return f"{len(judgements)} configurations: {fared}; {counted}"


def line(each: Judgement) -> str:
    """For a terminal."""
    figures = f"gap {each.gap:.1e} of {each.allowed_gap:.1e}" if each.answers else ""
    ties = f", {each.ties} ties" if each.ties else ""
    left_out = f", {each.left_out} left out" if each.left_out else ""
    return f"{each.outcome:8} {each.name:28} {figures}{ties}{left_out} {each.reason}".rstrip()
