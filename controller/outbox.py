"""Messages of streams that a controller passes on, to the inboxes of clients."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from shared.bus import Bus, Message
from shared.clock import awake_or_asleep
from shared.errors import BusError
from shared.inboxes import Inboxes
from shared.messages.stream import Done, Failed, StreamMessage, encode, encode_multiplexed

logger = logging.getLogger(__name__)

_MOST_TOGETHER = 128
_FORGIVING_S = 3.0
"""So long after a new connection a 503 says nothing: clients reconnect too."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message of a stream, for some inboxes.

    Attributes:
        listeners: who listens to the stream; None where it is not looked after whether anybody
            does.
    """

    message: StreamMessage
    inboxes: tuple[str, ...]
    multiplex: bool
    listeners: Inboxes | None


class Outbox:
    """Publishes letters in the order in which they were put.

    Args:
        on_missed: awaited with an inbox that nobody listens to.
    """

    def __init__(self, bus: Bus, on_missed: Callable[[str], Awaitable[None]]) -> None:
        self._bus = bus
        self._on_missed = on_missed
        self._waiting: list[Letter] = []
        self._sending = asyncio.Lock()
        self._probes = bus.new_inbox()
        self._connection = bus.connections
        self._forgiving_until = 0.0

    async def open(self) -> None:
        await self._bus.subscribe(f"{self._probes}.>", self._on_probe_answer)

    def put(self, letter: Letter) -> None:
        self._waiting.append(letter)

    async def flush(self) -> None:
        """Return once all that was put before is published."""
        async with self._sending:
            while self._waiting:
                letters, self._waiting = self._waiting, []
                for inbox, group in _by_inbox(letters):
                    await self._send(inbox, group)

    async def _send(self, inbox: str, letters: list[Letter]) -> None:
        """Letters to one inbox: as one message where they are multiplexed."""
        if not letters[0].multiplex:
            for letter in letters:
                await self._publish(inbox, encode(letter.message), [letter])
            return
        remaining = iter(letters)
        while together := list(islice(remaining, _MOST_TOGETHER)):
            payload = encode_multiplexed([letter.message for letter in together])
            if len(payload) <= self._bus.max_payload:
                await self._publish(inbox, payload, together)
                continue
            for letter in together:
                await self._publish(inbox, encode(letter.message, multiplex=True), [letter])

    async def _publish(self, inbox: str, payload: bytes, letters: list[Letter]) -> None:
        try:
            await self._bus.publish(inbox, payload, reply=self._probe(inbox, letters))
        except BusError as error:
            # Indexes reveal the gap, and clients ask again.
            logger.warning("a message to a client was lost: %s", error.message)

    def _probe(self, inbox: str, letters: list[Letter]) -> str:
        """A reply subject that tells whether somebody listens, when it is time for that."""
        now = awake_or_asleep()
        due = [
            letter.listeners.should_probe(inbox, now)
            for letter in letters
            if letter.listeners is not None and not isinstance(letter.message, Done | Failed)
        ]
        return f"{self._probes}.{inbox}" if any(due) else ""

    async def _on_probe_answer(self, message: Message) -> None:
        now = awake_or_asleep()
        if self._bus.connections != self._connection:
            self._connection = self._bus.connections
            self._forgiving_until = now + _FORGIVING_S
        if message.no_responders and now > self._forgiving_until:
            await self._on_missed(message.subject.removeprefix(f"{self._probes}."))


def _by_inbox(letters: Iterable[Letter]) -> Iterator[tuple[str, list[Letter]]]:
    """The letters to each inbox, in order; those that are multiplexed apart from others."""
    groups: dict[tuple[str, bool], list[Letter]] = {}
    for letter in letters:
        for inbox in letter.inboxes:
            groups.setdefault((inbox, letter.multiplex), []).append(letter)
    for (inbox, _), group in groups.items():
        yield inbox, group
