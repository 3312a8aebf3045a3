"""Common prefixes of prompts, detected without a tokenizer: chained hashes of their content.

A link of the chain is a hash of everything up to it, so the common prefix of two prompts has as
many links as the common prefix of their chains.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shared.ids import ClientName, ModelId
from shared.messages.conversation import Turn
from shared.messages.request import InferenceRequest

LINK_BYTES = 1024
_DIGEST_BYTES = 8

PrefixChain = tuple[bytes, ...]


def prefix_chain(
    model: ModelId,
    request: InferenceRequest,
    messages: Sequence[Mapping[str, Any]] | None = None,
) -> PrefixChain:
    """Return a link for each whole KiB of a message or plain prompt, and for its end. Of several
    prompts only the first is used; prompts of different models have no links in common.

    Args:
        messages: of the request, as the model reads them; by default as they were sent.
    """
    return tuple(link for link, _ in _links(model, _parts(request, messages)))


def prefix_links(
    model: ModelId,
    request: InferenceRequest,
    messages: Sequence[Mapping[str, Any]] | None = None,
    answer: Turn | None = None,
) -> list[tuple[bytes, float]]:
    """Return the links of `prefix_chain`, each with the share of the prompt up to the link, from 0
    to 1; then the links of the answer to a conversation, from 1 to 2."""
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
    """Return the links of a conversation, each with its share of the conversation up to the
    link."""
    return _shares(_links(model, _turns(messages)))


def session_link(client: ClientName, session_id: str) -> bytes:
    """Return the key of a session in the reports of workers."""
    named = f"{client}\0{session_id}".encode()
    return hashlib.blake2b(named, digest_size=_DIGEST_BYTES).digest()


def _shares(links: Iterable[tuple[bytes, int]], first: float = 0.0) -> list[tuple[bytes, float]]:
    links = list(links)
    total = max(1, links[-1][1]) if links else 1
    return [(link, first + size / total) for link, size in links]


def _links(model: ModelId, parts: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, int]]:
    """Yield each link, and the bytes of content up to the link."""
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
    """Yield kind and content of each part."""
    if tools := request.tools_json:
        yield b"tools", tools
    yield from _turns(request.turns if messages is None else messages)
    for prompt in request.prompts[:1]:
        if isinstance(prompt, str):
            yield b"text", prompt.encode(errors="surrogatepass")
        else:
            yield b"ids", array("q", prompt).tobytes()


def _turns(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content; without reasoning, which templates leave out of earlier turns."""
    for message in messages:
        yield message["role"].encode(), message["content"].encode(errors="surrogatepass")
        for call in message.get("tool_calls", ()):
            function = call["function"]
            text = function["name"] + function["arguments"]
            yield b"call", text.encode(errors="surrogatepass")


class PrefixChainSet:
    """The chains of several prompts, to find the longest prefix of another prompt among them."""

    def __init__(self) -> None:
        self._links: Counter[bytes] = Counter()

    def add(self, chain: PrefixChain) -> None:
        self._links.update(chain)

    def remove(self, chain: PrefixChain) -> None:
        """Remove a chain that was added."""
        self._links.subtract(chain)
        for link in chain:
            if self._links[link] <= 0:
                del self._links[link]

    def shared(self, chain: PrefixChain) -> int:
        """Return how many of the first links are in the index."""
        for count, link in enumerate(chain):
            if link not in self._links:
                return count
        return len(chain)
