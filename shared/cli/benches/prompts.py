"""The prompts of agents in the sizes of a load."""

from collections.abc import Callable
from functools import partial

from shared.cli.benches import generated_text
from shared.cli.benches.comparison import BenchLoad
from shared.client import Cluster

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
            load, prompt = self._load, partial(generated_text.user_prompt, 1, 2)
            self._system_characters = await _size(
                cluster, generated_text.system_prompt, load.system_tokens
            )
            self._turn_characters = await _size(cluster, prompt, load.turn_tokens)

    @property
    def system(self) -> str:
        return generated_text.system_prompt(self._system_characters)

    def user_prompt(self, agent: int, turn: int) -> str:
        return generated_text.user_prompt(agent, turn, self._turn_characters)


async def _size(cluster: Cluster, text: Callable[[int], str], tokens: int) -> int:
    """Return the length in characters of a text with about so many tokens."""
    guess = tokens * _CHARACTERS_PER_TOKEN
    counted = await cluster.generate(prompt=text(guess), count_only=True)
    return max(1, round(guess * tokens / counted.usage.prompt_tokens))
