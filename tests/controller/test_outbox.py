"""What a controller passes on to clients, on a real server."""

from dataclasses import replace

import pytest

from controller.outbox import Letter, Outbox
from shared.bus import Bus, Message
from shared.ids import RequestId
from shared.inboxes import Inboxes
from shared.messages.stream import ChoiceOutput, Chunk, decode
from tests.processes import MAX_PAYLOAD_BYTES

pytestmark = pytest.mark.anyio


class Client:
    """One inbox, and what came there."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.inbox = bus.new_inbox()
        self.arrived: list[Message] = []

    async def open(self) -> "Client":
        await self.bus.subscribe(self.inbox, self._take)
        return self

    async def _take(self, message: Message) -> None:
        self.arrived.append(message)

    def indexes(self) -> list[list[int]]:
        """Of the chunks in each message."""
        found = []
        for message in self.arrived:
            chunks = decode(message.payload)
            found.append([one.output.index for one in chunks if isinstance(one, Chunk)])
        return found


def chunk(index: int, text: str = "x") -> Chunk:
    return Chunk(RequestId("r"), 0, None, ChoiceOutput(0, index, [1], text))


async def never(inbox: str) -> None:
    raise AssertionError(f"{inbox} was missed")


async def sent(bus: Bus, *letters: Letter) -> None:
    outbox = Outbox(bus, never)
    await outbox.open()
    for letter in letters:
        outbox.put(letter)
    await outbox.flush()
    await bus.flush()


async def test_letters_come_in_their_order_each_as_a_message(bus: Bus) -> None:
    one, other = await Client(bus).open(), await Client(bus).open()
    both = (one.inbox, other.inbox)
    letters = [Letter(chunk(index), both, False, None) for index in range(3)]
    await sent(bus, *letters, Letter(chunk(9), (other.inbox,), False, None))
    assert one.indexes() == [[0], [1], [2]]
    assert other.indexes() == [[0], [1], [2], [9]]


async def test_multiplexed_letters_that_are_there_together_come_together(bus: Bus) -> None:
    client = await Client(bus).open()
    letters = [Letter(chunk(index), (client.inbox,), True, None) for index in range(300)]
    await sent(bus, *letters)
    assert [len(indexes) for indexes in client.indexes()] == [128, 128, 44]
    assert [index for message in client.indexes() for index in message] == list(range(300))


async def test_letters_that_are_too_large_together_come_one_by_one(bus: Bus) -> None:
    client = await Client(bus).open()
    text = "x" * (MAX_PAYLOAD_BYTES // 3)
    letters = [Letter(chunk(index, text), (client.inbox,), True, None) for index in range(4)]
    await sent(bus, *letters)
    assert client.indexes() == [[0], [1], [2], [3]]


async def test_a_letter_of_a_stream_asks_now_and_then_whether_anybody_listens(bus: Bus) -> None:
    client = await Client(bus).open()
    listeners = Inboxes([client.inbox], 0.0)  # long ago
    letter = Letter(chunk(0), (client.inbox,), False, listeners)
    await sent(bus, letter, letter, replace(letter, listeners=None))
    assert [bool(message.reply) for message in client.arrived] == [True, False, False]


async def test_who_left_is_told_by_the_inbox_that_was_missed(bus: Bus) -> None:
    missed: list[str] = []

    async def note(inbox: str) -> None:
        missed.append(inbox)

    outbox = Outbox(bus, note)
    await outbox.open()
    inbox = bus.new_inbox()
    outbox.put(Letter(chunk(0), (inbox,), False, Inboxes([inbox], 0.0)))
    await outbox.flush()
    for _ in range(2):
        await bus.flush()
    assert missed == [inbox]
