"""How two prompts begin alike, told without a tokenizer: chained hashes of what they are made of.

A link of the chain stands for everything up to it, so two prompts share as many links as their
chains have in common at the front.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shared.ids import ClientName, ModelId
from shared.messages.request import InferenceRequest, Turn

LINK_BYTES = 1024
_DIGEST_BYTES = 8

PrefixChain = tuple[bytes, ...]


def prefix_chain(
    model: ModelId,
    request: InferenceRequest,
    messages: Sequence[Mapping[str, Any]] | None = None,
) -> PrefixChain:
    """A link for each whole KiB of a message, and for its end; of a plain prompt likewise. Of
    several prompts the first counts; prompts of different models have nothing in common.

    Args:
        messages: of the request, as the model gets to read them; by default as they came.
    """
    return tuple(link for link, _ in _links(model, _parts(request, messages)))


def prefix_links(
    model: ModelId,
    request: InferenceRequest,
    messages: Sequence[Mapping[str, Any]] | None = None,
    answer: Turn | None = None,
) -> list[tuple[bytes, float]]:
    """The links of `prefix_chain`, each with the share of the prompt up to there, from 0 to 1;
    then those of the answer to a conversation, from 1 to 2."""
    links = _shares(_links(model, _parts(request, messages)))
    if not (request.messages and answer):
        return links
    turns = [*(request.turns if messages is None else messages)]
    parts = [*_parts(request, turns)]
    whole = _links(model, [*parts, *_turns([answer])])
    after = [link for number, link in enumerate(whole) if number >= len(links)]
    before = sum(len(content) for _, content in parts)
    return links + _shares([(link, size - before) for link, size in after], 1.0)


def conversation_links(
    model: ModelId, messages: Sequence[Mapping[str, Any]]
) -> list[tuple[bytes, float]]:
    """The links of a conversation, each with the share of it up to there."""
    return _shares(_links(model, _turns(messages)))


def session_link(client: ClientName, session_id: str) -> bytes:
    """What stands for a session where workers say which they know."""
    named = f"{client}\0{session_id}".encode()
    return hashlib.blake2b(named, digest_size=_DIGEST_BYTES).digest()


def _shares(links: Iterable[tuple[bytes, int]], first: float = 0.0) -> list[tuple[bytes, float]]:
    links = list(links)
    total = max(1, links[-1][1]) if links else 1
    return [(link, first + size / total) for link, size in links]


def _links(model: ModelId, parts: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, int]]:
    """Each link, and the bytes of content up to there."""
    hashed, size = hashlib.blake2b(model.encode(), digest_size=_DIGEST_BYTES), 0
    for kind, content in parts:
        hashed.update(b"%s:" % kind)
        whole = len(content) - len(content) % LINK_BYTES
        for start in range(0, whole, LINK_BYTES):
            hashed.update(content[start : start + LINK_BYTES])
            yield hashed.digest(), size + start + LINK_BYTES
        hashed.update(b"%s:%d;" % (content[whole:], len(content)))
        size += len(content)
        yield hashed.digest(), size


def _parts(
    request: InferenceRequest, messages: Sequence[Mapping[str, Any]] | None
) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each part."""
    if tools := request.tools_json:
        yield b"tools", tools
    yield from _turns(request.turns if messages is None else messages)
    for prompt in request.prompts[:1]:
        if isinstance(prompt, str):
            yield b"text", prompt.encode(errors="surrogatepass")
        else:
            yield b"ids", array("q", prompt).tobytes()


def _turns(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[bytes, bytes]]:
    """Reasoning is left out: templates leave it out of earlier turns."""
    for message in messages:
        yield message["role"].encode(), message["content"].encode(errors="surrogatepass")
        for call in message.get("tool_calls", ()):
            called = call["function"]
            said = called["name"] + called["arguments"]
            yield b"call", said.encode(errors="surrogatepass")


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
