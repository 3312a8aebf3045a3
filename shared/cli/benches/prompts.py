"""What agents are told, in the sizes of a load."""

from collections.abc import Callable
from functools import partial

from shared.cli.benches import texts
from shared.cli.benches.comparison import BenchLoad
from shared.client import Cluster

_CHARACTERS_PER_TOKEN = 3  # of the text that is counted first


class Prompts:
    """The same for both sides. Use it after `measure`."""

    def __init__(self, load: BenchLoad) -> None:
        self._load = load
        self._system_characters = 0
        self._turn_characters = 0

    async def measure(self, cluster: Cluster) -> None:
        """Have the model's tokenizer count texts, the first time.

        Raises:
            ClusterError: there is no answer.
        """
        if not self._turn_characters:
            load, told = self._load, partial(texts.told, 1, 2)
            self._system_characters = await _size(cluster, texts.system_prompt, load.system_tokens)
            self._turn_characters = await _size(cluster, told, load.turn_tokens)

    @property
    def system(self) -> str:
        return texts.system_prompt(self._system_characters)

    def told(self, agent: int, turn: int) -> str:
        return texts.told(agent, turn, self._turn_characters)


async def _size(cluster: Cluster, text: Callable[[int], str], tokens: int) -> int:
    """The characters of a text that has about so many tokens."""
    guess = tokens * _CHARACTERS_PER_TOKEN
    counted = await cluster.generate(prompt=text(guess), count_only=True)
    return max(1, round(guess * tokens / counted.usage.prompt_tokens))
