"""A scripted model for tests of APIs: it thinks, calls tools and answers."""

from pathlib import Path

from tests.scripted.families import TEMPLATES
from tests.scripted.folders import make_scripted_model
from tests.worker.answer.families import FAMILIES

THOUGHT = "Hm, 2 < 3."
ARGUMENTS = {"city": 'Paris 東京 👩‍👩‍👧 "x" </tool_call>', "days": 3}
PATCH = '*** Begin\n+"é" \\ 東京\n'
_THINKS = f"<think>\n{THOUGHT}\n</think>\n\n"
_DOES_NOT = "<think>\n\n</think>\n\n"
_FAMILY = "hermes"


def make_assistant(folder: Path, tokenizer_of: Path) -> Path:
    """Write its folder. It has the tools `get_weather` and `now`; what the last turn holds says
    what it does. Where it is told not to think, it only knows what comes at once."""
    (family,) = [each for each in FAMILIES if each.name == _FAMILY]
    one = family.write([("get_weather", ARGUMENTS)])
    two = family.write([("get_weather", ARGUMENTS), ("now", {})])
    custom = family.write([("patch", {"input": PATCH})])
    spaced = family.write([("mcp__fetch", {"url": "a"})])
    scripts = {
        "custom call": f"{_THINKS}{custom}",
        "spaced call": f"{_THINKS}{spaced}",
        "one call": f"{_THINKS}{one}",
        "two calls": f"{_THINKS}Let me see.\n{two}",
        "at once": f"{_DOES_NOT}It is nine.",
        "quick call": f"{_DOES_NOT}{one}",
        "0815": f"{_DOES_NOT}It is cold.",
        "nine": f"{_THINKS}It is nine.",
        "4711": f"{_THINKS}It is warm.",
        "forever": f"{_THINKS}{'It goes on. ' * 10_000}",
    }
    return make_scripted_model(folder, tokenizer_of, TEMPLATES[_FAMILY], scripts)
