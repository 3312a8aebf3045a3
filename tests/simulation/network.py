"""A cluster of NATS servers in memory.

What one connection sends to another arrives in the order in which it was sent, once at most;
nothing is known of the order of what others send. Links are slow, connections are cut, servers die:
then what is on its way is lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Protocol

from shared.bus import IncomingMessage

LATENCY_S = 0.001
SERVERS = ("s-1", "s-2", "s-3")


class Receiver(Protocol):
    """A subscription, as the servers see it."""

    subject: str
    queue: str

    @property
    def connection(self) -> str: ...

    @property
    def reachable(self) -> bool: ...

    def take(self, message: IncomingMessage) -> None: ...


@dataclass(slots=True, eq=False)
class _Link:
    """From one connection to another.

    Attributes:
        free_at: when all has arrived that is on its way.
    """

    free_at: float = 0.0
    on_its_way: deque[tuple[Receiver, IncomingMessage] | None] = field(default_factory=deque)


class Network:
    """
    Attributes:
        lost: what was for somebody who was cut off, or listened no more.
        on_publish: called with the connection, subject and payload of all that is published.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = Context()
        self._exact: dict[str, list[Receiver]] = {}
        self._wild: dict[str, list[Receiver]] = {}  # by what is before the first wildcard
        self._left: dict[tuple[str, str], None] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self.lost: list[IncomingMessage] = []
        self.on_publish: list[Callable[[str, str, bytes], None]] = []

    def add(self, receiver: Receiver) -> None:
        self._known(receiver.subject).append(receiver)

    def remove(self, receiver: Receiver) -> None:
        self._known(receiver.subject).remove(receiver)
        self._left[receiver.connection, receiver.subject] = None

    def _known(self, subject: str) -> list[Receiver]:
        if _is_wild(subject):
            return self._wild.setdefault(_literal(subject), [])
        return self._exact.setdefault(subject, [])

    def slow(self, sender: str, receiver: str, latency_s: float) -> None:
        """From now on messages take so long, and none overtakes those before it. An empty name
        stands for all."""
        self._slow[sender, receiver] = latency_s

    def hasten(self) -> None:
        """No link is slow any more."""
        self._slow.clear()

    def publish(self, connection: str, subject: str, payload: bytes, reply: str) -> None:
        for told in self.on_publish:
            told(connection, subject, payload)
        receivers = self._chosen(subject)
        for receiver in receivers:
            self._send(connection, receiver, IncomingMessage(subject, reply, payload))
        if reply and not receivers:
            self._say_that_nobody_listens(connection, subject, reply)
            self.lost.append(IncomingMessage(subject, reply, payload))

    def echo(self, connection: str, called: Callable[[], None]) -> None:
        """Call back when all has arrived that was sent to a connection before."""
        free_at = [link.free_at for (_, to), link in self._links.items() if to == connection]
        ways = (connection, ""), ("", connection)
        latency_s = max(self._slow.get(way, LATENCY_S) for way in ways)
        at = max([*free_at, self._loop.time() + 2 * latency_s])
        self._loop.call_at(at, called, context=self._context)

    def drop_all(self, connection: str) -> None:
        """What is on its way to it, and from it, does not arrive."""
        for ends, link in self._links.items():
            if connection in ends:
                self.lost += [entry[1] for entry in link.on_its_way if entry is not None]
                link.on_its_way = deque([None] * len(link.on_its_way))

    def _say_that_nobody_listens(self, connection: str, subject: str, reply: str) -> None:
        """After all that those said who listened before."""
        free_at = [
            link.free_at
            for gone, pattern in self._left
            if (link := self._links.get((gone, connection))) is not None
            and matches(pattern, subject)
        ]
        message = IncomingMessage(reply, "", b"", no_responders=True)
        for receiver in self._chosen(reply):
            if receiver.connection == connection:
                self._send("", receiver, message, not_before=max(free_at, default=0.0))

    def _chosen(self, subject: str) -> list[Receiver]:
        """Those who get a message: of each queue group one."""
        reachable = [r for r in self._exact.get(subject, ()) if r.reachable]
        end = subject.rfind(".")
        while end > 0:
            wild = self._wild.get(subject[:end], ())
            reachable += [r for r in wild if r.reachable and matches(r.subject, subject)]
            end = subject.rfind(".", 0, end)
        if not any(r.queue for r in reachable):
            return reachable
        groups = {receiver.queue: receiver for receiver in reversed(reachable)}
        return [r for r in reachable if not r.queue or groups[r.queue] is r]

    def _send(
        self, sender: str, receiver: Receiver, message: IncomingMessage, not_before: float = 0.0
    ) -> None:
        to = receiver.connection
        link = self._links.get((sender, to))
        if link is None:
            link = self._links[sender, to] = _Link()
        latency_s = LATENCY_S
        if self._slow:
            ways = (sender, to), (sender, ""), ("", to)
            latency_s = max(self._slow.get(way, LATENCY_S) for way in ways)
        link.free_at = max(link.free_at, self._loop.time() + latency_s, not_before)
        link.on_its_way.append((receiver, message))
        self._loop.call_at(link.free_at, self._arrive, link, context=self._context)

    def _arrive(self, link: _Link) -> None:
        if (arrived := link.on_its_way.popleft()) is None:
            return
        receiver, message = arrived
        if receiver.reachable:
            receiver.take(message)
        else:
            self.lost.append(message)


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` hears of `subject`."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    return all(want in ("*", got) for want, got in zip(wanted, given, strict=False))


def _is_wild(subject: str) -> bool:
    return "*" in subject or subject.endswith(">")


def _literal(subject: str) -> str:
    """What is before its first wildcard."""
    tokens = subject.split(".")
    return ".".join(tokens[: next(i for i, token in enumerate(tokens) if token in "*>")])
