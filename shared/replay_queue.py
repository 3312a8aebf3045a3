"""Streams that are sent again: to who missed a part of one, or listens late."""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from shared.ids import ClientName

MAX_WAITING = 1000
"""Of one client. It asks again for what it does not get."""

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Replayable(Protocol[M_co]):
    """A stream that is to be sent to an inbox once more, or a part of it."""

    @property
    def client(self) -> ClientName: ...

    @property
    def key(self) -> Hashable:
        """Which stream goes where: of replays with the same key only the last one waits."""

    @property
    def is_whole(self) -> bool:
        """Whether `messages` has all that is sent meanwhile of the stream."""

    def messages(self) -> Sequence[M_co]:
        """Return what is there of the stream now."""


R = TypeVar("R", bound=Replayable[object])


@dataclass(slots=True)
class _Lane(Generic[R, M]):
    """What one client waits for: the rest of the replay that has begun, and the others."""

    begun: R | None = None
    rest: deque[M] = field(default_factory=deque)
    waiting: OrderedDict[Hashable, R] = field(default_factory=OrderedDict)


class ReplayQueue(Generic[R, M]):
    """Replays in turns between clients, slice by slice. A client asks as often as it likes, and
    each time for megabytes: of a stream for an inbox only the last wish waits, and its messages are
    made when its turn comes."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[ClientName, _Lane[R, M]] = OrderedDict()  # none is empty

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[R]:
        """The replays that have begun or wait."""
        for lane in self._lanes.values():
            if lane.begun is not None:
                yield lane.begun
            yield from lane.waiting.values()

    def add(self, replay: R) -> None:
        """Add a replay; one too many of its client is dropped."""
        lane = self._lanes.setdefault(replay.client, _Lane())
        if replay.key in lane.waiting or len(lane.waiting) < MAX_WAITING:
            lane.waiting[replay.key] = replay

    def follow(self, client: ClientName, key: Hashable, message: M) -> bool:
        """Have a new message of a stream come after its replay to the same place, so that the end
        of a stream is the last of it. Return False if there is none that it must follow."""
        lane = self._lanes.get(client)
        if lane is None:
            return False
        waiting = lane.waiting.get(key)
        if waiting is not None and waiting.is_whole:
            return True
        if lane.begun is None or lane.begun.key != key:
            return False
        lane.rest.append(message)
        return True

    def take(self, most: int) -> tuple[R, list[M]]:
        """Remove and return the next messages, at most so many, and whose they are; there must be a
        replay."""
        client, lane = next(iter(self._lanes.items()))
        if lane.begun is None:
            _, lane.begun = lane.waiting.popitem(last=False)
            lane.rest.extend(lane.begun.messages())  # type: ignore[arg-type]
        replay = lane.begun
        messages = [lane.rest.popleft() for _ in range(min(most, len(lane.rest)))]
        if not lane.rest:
            lane.begun = None
        if lane.begun is None and not lane.waiting:
            del self._lanes[client]
        else:
            self._lanes.move_to_end(client)
        return replay, messages
