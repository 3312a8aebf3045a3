"""How two prompts begin alike, told without a tokenizer: chained hashes of what they are made of.

A link of the chain stands for everything up to it, so two prompts share as many links as their
chains have in common at the front.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from shared.ids import ModelId
from shared.messages.request import InferenceRequest

LINK_BYTES = 1024
_DIGEST_BYTES = 8

PrefixChain = tuple[bytes, ...]


def prefix_chain(
    model: ModelId,
    request: InferenceRequest,
    messages: Sequence[Mapping[str, str]] | None = None,
) -> PrefixChain:
    """A link for each whole KiB of a message, and for its end; of a plain prompt likewise. Of
    several prompts the first counts; prompts of different models have nothing in common.

    Args:
        messages: of the request, as the model gets to read them: `role` and `content`; by default
            as they came.
    """
    if messages is None:
        messages = request.turns
    hashed = hashlib.blake2b(model.encode(), digest_size=_DIGEST_BYTES)
    chain = []
    for kind, content in _parts(request, messages):
        hashed.update(b"%s:" % kind)
        whole = len(content) - len(content) % LINK_BYTES
        for start in range(0, whole, LINK_BYTES):
            hashed.update(content[start : start + LINK_BYTES])
            chain.append(hashed.digest())
        hashed.update(b"%s:%d;" % (content[whole:], len(content)))
        chain.append(hashed.digest())
    return tuple(chain)


def _parts(
    request: InferenceRequest, messages: Sequence[Mapping[str, str]]
) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each part."""
    for message in messages:
        yield message["role"].encode(), message["content"].encode(errors="surrogatepass")
    for prompt in request.prompts[:1]:
        if isinstance(prompt, str):
            yield b"text", prompt.encode(errors="surrogatepass")
        else:
            yield b"ids", array("q", prompt).tobytes()


class PrefixIndex:
    """The chains of several prompts, to see how much of another one is among them."""

    def __init__(self) -> None:
        self._links: Counter[bytes] = Counter()

    def add(self, chain: PrefixChain) -> None:
        self._links.update(chain)

    def remove(self, chain: PrefixChain) -> None:
        """Take out a chain that was added."""
        self._links.subtract(chain)
        for link in chain:
            if self._links[link] <= 0:
                del self._links[link]

    def shared(self, chain: PrefixChain) -> int:
        """How many links from the front are in the index."""
        for count, link in enumerate(chain):
            if link not in self._links:
                return count
        return len(chain)
