"""The turns of sessions at the leader and its workers: in order, and whole even where only the new
one came."""

from typing import Any

import pytest

from shared.ids import ClientName
from shared.messages.events import KeptPrefixes
from shared.messages.prefixes import session_link
from tests.controller.inbox import Inbox
from tests.controller.running import Running
from tests.controller.simulated_worker import SimulatedWorker

pytestmark = pytest.mark.anyio

FIRST = {"role": "user", "content": "My name is Ada."}
ANSWER = {"role": "assistant", "content": "Hello Ada."}
NEXT = {"role": "user", "content": "What is my name?"}
SYSTEM = {"role": "system", "content": "Be brief."}


async def ask(cluster: Running, *messages: dict[str, str], **fields: Any) -> Inbox:
    body = {"prompt": None, "messages": messages, "session_id": "s", **fields}
    return await cluster.ask(**body)


async def served(
    cluster: Running, worker: SimulatedWorker, *messages: dict[str, str], **fields: Any
) -> list[dict[str, str]]:
    """Ask, and answer; the messages that the worker got."""
    inbox = await ask(cluster, *messages, **fields)
    dispatch = await worker.next_dispatch()
    await worker.finish(dispatch)
    await inbox.done()
    await cluster.settle()
    return dispatch.request.turns


async def why_rejected(cluster: Running, *messages: dict[str, str], **fields: Any) -> str:
    inbox = await ask(cluster, *messages, **fields)
    error = (await inbox.end()).error
    assert error.param == "session_id"
    return error.code


async def test_turns_of_a_session_go_one_after_another(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.said = []
    inboxes = [await ask(cluster, FIRST, request_id=f"r{turn}") for turn in range(3)]
    await ask(cluster, FIRST, session_id="other", request_id="other")
    first, other = await worker.next_dispatch(), await worker.next_dispatch()
    assert (first.request_id, other.request_id) == ("r0", "other")
    await cluster.settle()
    assert worker.unread == (0, 0)
    await worker.fail(first, terminal_sent=True)
    second = await worker.next_dispatch()
    assert second.request_id == "r1"
    await worker.finish(second)
    await inboxes[1].done()
    assert (await worker.next_dispatch()).request_id == "r2"


async def test_a_turn_that_is_cancelled_while_it_waits_ends_at_once(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.said = []
    await ask(cluster, FIRST, request_id="r0")
    waiting = await ask(cluster, FIRST, request_id="r1")
    await ask(cluster, FIRST, request_id="r2")
    first = await worker.next_dispatch()
    assert (await cluster.query("cancel", "r1")).request_id == "r1"
    assert (await waiting.done()).outputs[0].finish_reason == "cancelled"
    await worker.finish(first)
    assert (await worker.next_dispatch()).request_id == "r2"


async def test_a_turn_that_comes_alone_is_put_behind_what_was_said(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    assert await served(cluster, worker, FIRST) == [FIRST]
    worker.said = [FIRST, ANSWER]
    assert await served(cluster, worker, NEXT) == [FIRST, ANSWER, NEXT]
    assert await served(cluster, worker, NEXT, history="kept") == [FIRST, ANSWER, NEXT]
    assert await served(cluster, worker, FIRST, history="kept") == [FIRST, ANSWER, FIRST]


@pytest.mark.parametrize(
    "messages",
    [
        (FIRST, ANSWER, NEXT),  # resent
        (FIRST,),  # the first turn again
        (SYSTEM, NEXT),  # begun anew
        (NEXT, ANSWER, NEXT),  # cut short by its client
    ],
)
async def test_a_conversation_that_comes_whole_stays_as_it_is(
    cluster: Running, messages: tuple[dict[str, str], ...]
) -> None:
    worker = await cluster.worker("w1")
    await served(cluster, worker, FIRST)
    worker.said = [FIRST, ANSWER]
    assert await served(cluster, worker, *messages) == list(messages)


async def test_who_says_that_all_was_sent_gets_no_more(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    await served(cluster, worker, FIRST)
    worker.said = [FIRST, ANSWER]
    for fields in ({"history": "sent"}, {"session_id": "auto-1"}, {"session_id": "new"}):
        assert await served(cluster, worker, NEXT, **fields) == [NEXT]


async def test_what_is_not_known_is_not_made_up(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    assert await why_rejected(cluster, NEXT, history="kept") == "unknown_session"
    await served(cluster, worker, FIRST)
    worker.said = None  # it was forgotten there
    assert await why_rejected(cluster, NEXT) == "unknown_session"
    assert await served(cluster, worker, FIRST, ANSWER, NEXT) == [FIRST, ANSWER, NEXT]
    worker.said = []  # its turns never come alone
    assert await served(cluster, worker, NEXT) == [NEXT]
    assert await why_rejected(cluster, NEXT, history="kept") == "unknown_session"
    await worker.vanish()
    assert await why_rejected(cluster, NEXT) == "unknown_session"
    assert worker.unread == (0, 0)


async def test_a_session_that_moved_is_forgotten_where_it_was(cluster: Running) -> None:
    first = await cluster.worker("w1")
    await served(cluster, first, FIRST)
    first.said = [FIRST, ANSWER]
    second = await cluster.worker("w2")
    await first.say("heartbeat", active_requests=9)
    await cluster.settle()
    assert await served(cluster, second, NEXT) == [FIRST, ANSWER, NEXT]
    order = await first.next_forgotten()
    assert (order.client, order.session_id, order.drop) == ("local", "s", False)
    second.said = [FIRST, ANSWER, NEXT, ANSWER]
    assert len(await served(cluster, second, NEXT)) == 5


async def test_another_worker_gets_the_whole_conversation_too(cluster: Running) -> None:
    first = await cluster.worker("w1")
    await served(cluster, first, FIRST)
    first.said = [FIRST, ANSWER]
    second = await cluster.worker("w2", active_requests=5)
    await ask(cluster, NEXT)
    dispatch = await first.next_dispatch()
    await first.fail(dispatch, terminal_sent=False)
    assert (await second.next_dispatch()).request.turns == [FIRST, ANSWER, NEXT]


async def test_the_same_turn_published_again_is_the_same_request(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    await served(cluster, worker, FIRST)
    worker.said = [FIRST, ANSWER]
    for _ in range(2):
        await ask(cluster, NEXT, request_id="r")
    await worker.next_dispatch()
    await cluster.settle()
    assert worker.unread == (0, 0)


async def test_a_conversation_too_large_for_a_message_is_rejected(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    await served(cluster, worker, FIRST)
    long = "x" * (cluster.bus.max_payload // 8)
    worker.said = [FIRST, {"role": "assistant", "content": long}]
    next = {"role": "user", "content": "y" * (cluster.bus.max_payload // 8)}
    assert await why_rejected(cluster, next) == "payload_too_large"
    assert await served(cluster, worker, NEXT) == [*worker.said, NEXT]


async def test_a_leader_that_served_no_turn_hears_where_a_session_is(cluster: Running) -> None:
    old = await cluster.worker("w1")
    old.said = [NEXT]
    new = await cluster.worker("w2", state="draining")
    new.said = [FIRST, ANSWER]
    link = session_link(ClientName("local"), "s").hex()
    await old.tell_kept(1, sessions={link: 1})
    await new.tell_kept(1, sessions={link: 2})
    await cluster.settle()
    assert await served(cluster, old, NEXT) == [FIRST, ANSWER, NEXT]


async def test_a_worker_of_which_something_was_missed_is_asked(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.said = [FIRST, ANSWER]
    links = [session_link(ClientName("local"), name).hex() for name in ("s", "t")]
    await worker.tell_kept(1, sessions={links[0]: 1})
    worker.kept = KeptPrefixes(
        worker=worker.id, boot_id=worker.boot, number=3, whole=True, sessions={links[1]: 1}
    )
    await worker.tell_kept(3, gone=["0000"])
    await worker.was_asked()
    await cluster.settle()
    assert await served(cluster, worker, NEXT) == [NEXT], "it is gone, as the whole says"
    assert await served(cluster, worker, NEXT, session_id="t") == [FIRST, ANSWER, NEXT]


async def test_what_strangers_say_is_not_taken(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    stranger = SimulatedWorker(cluster.bus, "w0")
    link = session_link(ClientName("local"), "s").hex()
    await stranger.tell_kept(1, sessions={link: 9})
    await cluster.settle()
    assert await served(cluster, worker, NEXT) == [NEXT]


async def test_what_a_worker_had_goes_with_it(cluster: Running) -> None:
    first = await cluster.worker("w1")
    link = session_link(ClientName("local"), "s").hex()
    await first.tell_kept(1, sessions={link: 1})
    await cluster.settle()
    await first.say("left")
    await cluster.settle()
    second = await cluster.worker("w2")
    assert await served(cluster, second, NEXT) == [NEXT]
