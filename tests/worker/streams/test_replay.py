"""Streams that are sent again, by value: in turns, and each wish once."""

from shared.ids import ClientName
from shared.messages.stream import ChunkMessage, StatusMessage
from shared.replay_queue import MAX_WAITING, ReplayQueue
from tests.worker.values import active
from worker.link.facts import SequenceOutput
from worker.requests.active_request import ActiveRequest
from worker.streams.outgoing import OutgoingMessage
from worker.streams.replay import Replay

SLICE = 64
ADA, EVE = ClientName("ada"), ClientName("eve")


def new_queue() -> ReplayQueue[Replay, OutgoingMessage]:
    return ReplayQueue()


def streamed(client: ClientName, tokens: int, request_id: str = "r") -> ActiveRequest:
    """A request that has generated some tokens, each sent alone."""
    request = active(request_id, client=client)
    for index in range(tokens):
        request.advance(request.choices[0], SequenceOutput(1, index, [7], "x"))
    return request


def indexes(messages: list[OutgoingMessage]) -> list[int]:
    return [
        each.message.output.index for each in messages if isinstance(each.message, ChunkMessage)
    ]


def test_a_stream_is_sent_in_slices_and_from_where_it_was_missed() -> None:
    queue = new_queue()
    queue.add(Replay(streamed(ADA, 100), "_INBOX.a", index=10))
    taken = []
    while queue:
        taken.append(queue.take(SLICE)[1])
    assert [len(each) for each in taken] == [SLICE, 90 - SLICE]
    assert indexes(taken[0] + taken[1]) == list(range(10, 100))


def test_from_the_start_it_says_first_that_it_was_accepted() -> None:
    queue = new_queue()
    queue.add(Replay(streamed(ADA, 1), "_INBOX.a"))
    accepted, chunk = queue.take(SLICE)[1]
    assert isinstance(accepted.message, StatusMessage) and accepted.message.status == "accepted"
    assert chunk.inboxes == ("_INBOX.a",) and not queue


def test_clients_take_turns() -> None:
    queue = new_queue()
    long, short = streamed(EVE, 10 * SLICE), streamed(ADA, 1)
    for number in range(5):
        queue.add(Replay(long, f"_INBOX.e{number}", index=1))
    queue.add(Replay(short, "_INBOX.a", index=0))
    first, second = queue.take(SLICE)[1], queue.take(SLICE)[1]
    assert {each.request.key[0] for each in first} == {EVE}
    assert {each.request.key[0] for each in second} == {ADA}


def test_who_asks_again_and_again_waits_once_for_each_inbox() -> None:
    queue = new_queue()
    request = streamed(EVE, 3)
    for index in (0, 0, 0, 2):
        queue.add(Replay(request, "_INBOX.e", index=index))
    assert indexes(queue.take(SLICE)[1]) == [2]
    assert not queue
    for number in range(2 * MAX_WAITING):
        queue.add(Replay(request, f"_INBOX.e{number}", index=2))
    taken = 0
    while queue:
        taken += len(queue.take(SLICE)[1])
    assert taken == MAX_WAITING


def test_what_an_answer_gained_while_it_waited_is_sent_too() -> None:
    queue = new_queue()
    request = streamed(ADA, 1)
    queue.add(Replay(request, "_INBOX.a", index=0))
    request.advance(request.choices[0], SequenceOutput(1, 1, [8], "y"))
    assert [replay.request for replay in queue] == [request]
    assert indexes(queue.take(SLICE)[1]) == [0, 1]
    assert list(queue) == []
