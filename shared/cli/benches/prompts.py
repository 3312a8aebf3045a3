"""The prompts of agents in the sizes of a load."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import orjson

from shared.cli.benches.comparison import BenchLoad
from shared.client import Cluster

_ROLE = """You are an agent of the back office. Work on the task that you are given, one step at a
time. After each result say in a sentence or two what it means, and which tool you call next, with
its arguments. Call only the tools below. Never invent a record: what you have not read, you do not
know. These are the tools:
"""
_VERBS = {
    "list": "List {} that match a filter, newest first. At most 50 are returned at once.",
    "read": "Read one of the {} by its id, with all fields and the history of its changes.",
    "create": "Create one of the {}. Fails when a required field is missing or the name is taken.",
    "update": "Change fields of one of the {}. Fields that are not given stay as they are.",
    "delete": "Delete one of the {}. It can be restored for thirty days, by an administrator only.",
    "search": "Search the text of {}. The words may come in any order; quotes keep them together.",
    "export": "Write {} into a table, a line for each, and return the address of the file.",
}
_NOUNS = (
    "invoices", "orders", "customers", "shipments", "tickets", "contracts", "products", "suppliers",
    "payments", "reminders", "warehouses", "employees", "projects", "meetings", "reports", "files",
)  # fmt: skip
_TOWNS = ("Basel", "Bremen", "Gent", "Graz", "Lyon", "Malmo", "Parma", "Porto", "Turku", "Utrecht")
_STATES = ("open", "paid", "late", "blocked", "returned", "disputed", "in transit", "closed")


def system_prompt(characters: int) -> str:
    """Return a system prompt of so many characters; a shorter one is a prefix of a longer one."""
    return _cut(itertools.chain([_ROLE], _tools()), characters)


def user_prompt(agent: int, turn: int, characters: int) -> str:
    """Return the user message of a turn: a task in turn 1, then tool results. Both count from 1."""
    rng = random.Random(f"agent {agent}, turn {turn}")
    noun = rng.choice(_NOUNS)
    head = f"Result of read_{noun}:\n" if turn > 1 else f"Task {agent}: find what is wrong here.\n"
    return _cut(itertools.chain([head], _records(rng)), characters)


def _tools() -> Iterator[str]:
    for version in itertools.count(1):
        for noun, (verb, what) in itertools.product(_NOUNS, _VERBS.items()):
            name = f"{verb}_{noun}" if version == 1 else f"{verb}_{noun}_v{version}"
            parameters = {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": f"Which of the {noun}."},
                    "filter": {"type": "string", "description": "Words, or field:value."},
                },
            }
            tool = {"name": name, "description": what.format(noun), "parameters": parameters}
            yield orjson.dumps(tool).decode() + "\n"


def _records(rng: random.Random) -> Iterator[str]:
    while True:
        record = {
            "id": rng.randint(1000, 9999),
            "town": rng.choice(_TOWNS),
            "state": rng.choice(_STATES),
            "amount": rng.randint(100, 99_999) / 100,
        }
        yield orjson.dumps(record).decode() + "\n"


def _cut(lines: Iterator[str], characters: int) -> str:
    text = ""
    while len(text) < characters:
        text += next(lines)
    return text[:characters]


_CHARACTERS_PER_TOKEN = 3  # of the first guess


class BenchPrompts:
    """Prompts, equal for both sides; available after `measure`."""

    def __init__(self, load: BenchLoad) -> None:
        self._load = load
        self._system_characters = 0
        self._turn_characters = 0

    async def measure(self, cluster: Cluster) -> None:
        """Measure characters per token with the model's tokenizer; later calls do nothing.

        Raises:
            ClusterError: the request failed.
        """
        if not self._turn_characters:
            load, prompt = self._load, partial(user_prompt, 1, 2)
            self._system_characters = await _size(cluster, system_prompt, load.system_tokens)
            self._turn_characters = await _size(cluster, prompt, load.turn_tokens)

    @property
    def system(self) -> str:
        return system_prompt(self._system_characters)

    def user_prompt(self, agent: int, turn: int) -> str:
        return user_prompt(agent, turn, self._turn_characters)


async def _size(cluster: Cluster, text: Callable[[int], str], tokens: int) -> int:
    """Return the length in characters of a text with about so many tokens."""
    guess = tokens * _CHARACTERS_PER_TOKEN
    counted = await cluster.generate(prompt=text(guess), count_only=True)
    return max(1, round(guess * tokens / counted.usage.prompt_tokens))
