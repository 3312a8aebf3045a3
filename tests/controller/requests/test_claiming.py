"""Which workers a leader claims, what waits for their answers, and what answers that come late, or
again, mean."""

import pytest

from controller.lifecycle import client_queries
from controller.requests.events import EndRequests, LinkRestored, StatusOrCancelReceived
from controller.requests.instructions import SendControlOrder, SendRequestState
from shared.ids import BootId, ClientName, RequestId
from shared.messages.control import CancelRequest, ClaimReport
from shared.messages.dispatch import Continuation
from shared.messages.events import KeptPrefixes
from shared.messages.stream import ErrorDetails
from tests.controller.requests.claimed import failure_of, key_of, old_dispatch, tell
from tests.controller.requests.driven import LATER, Driven
from tests.controller.values import ADA

# Who has not answered.


def test_until_all_have_told_it_is_not_known_what_there_is() -> None:
    driven = Driven(term=2, unclaimed=["w1", "w2"])
    driven.claimed("w1")
    assert driven.query() is None, "who has not answered yet may have it"
    driven.claimed("w2")
    assert driven.state() == "unknown"


def test_a_cancel_that_comes_before_all_have_told_is_done_then() -> None:
    driven = Driven(term=2, unclaimed=["w1", "w2"])
    assert driven.query(cancel=True) is None
    tell(driven, "w1", old_dispatch())
    driven.orders()
    driven.claimed("w2")
    ((worker, order),) = driven.orders()
    assert isinstance(order, CancelRequest)
    assert (worker, order.request_id, order.silent) == ("w1", "r", False)
    (answer,) = driven.new(SendRequestState)
    assert (answer.reply, answer.state.state) == ("_INBOX.query", "running")


def test_cancels_of_one_client_that_come_before_all_have_told_displace_none_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_queries, "_MAX_EARLY_CANCELS", 3)
    driven = Driven(term=2, unclaimed=["w1"])
    assert driven.query(cancel=True) is None
    for number in range(5):
        key = ClientName("eve"), RequestId(f"e{number}")
        driven.on(StatusOrCancelReceived(key, "_INBOX.eve", cancel=True))
    driven.claimed("w1")
    told = [(each.reply, each.state.request_id) for each in driven.new(SendRequestState)]
    assert told == [("_INBOX.query", "r"), ("_INBOX.eve", "e3"), ("_INBOX.eve", "e4")]


def test_a_question_that_comes_before_all_have_told_is_to_be_asked_again() -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    assert driven.query() is None
    driven.claimed("w1")
    assert driven.new(SendRequestState) == []


def test_what_comes_before_all_have_told_waits_for_that() -> None:
    driven = Driven("w1", term=2, unclaimed=["w2"])
    driven.ask()
    driven.pass_time(0.9)
    assert (driven.sent(), driven.words()) == ([], ["leader_change"])
    driven.claimed("w2")
    assert driven.next_sent().dispatch.attempt == 1001


def test_where_a_worker_was_lost_before_the_term_turns_wait_for_those_it_had() -> None:
    driven = Driven("w1", term=2, turns_wait_s=3.5)
    driven.ask("turn", session_id="s", stream=False)
    driven.ask("r", stream=False)
    assert driven.next_sent().dispatch.request_id == "r"
    driven.pass_time(3.4)
    assert driven.sent() == []
    driven.ask("lost", session_id="s", stream=False, resume={"token_ids": [1]})
    driven.pass_time(0.2)
    assert driven.next_sent().dispatch.request_id == "lost"


def test_a_worker_that_does_not_answer_holds_up_turns_but_nothing_else_after_a_second() -> None:
    driven = Driven("w1", term=2, unclaimed=["w2"])
    driven.ask("turn", session_id="s", stream=False)
    driven.ask("r", stream=False)
    driven.pass_time(0.99)
    assert driven.sent() == []
    driven.pass_time(0.02)
    assert driven.next_sent().dispatch.request_id == "r"
    driven.ask("later", stream=False)
    driven.ask("later-turn", session_id="t", stream=False)
    assert driven.next_sent().dispatch.request_id == "later"
    driven.claimed("w2")
    ids = [each.request_id for sent in driven.sent() for each in sent.batch.dispatches]
    assert ids == ["turn", "later-turn"]


@pytest.mark.parametrize("how", ["left", "started again"])
def test_a_worker_that_is_gone_holds_up_turns_for_a_moment_only(how: str) -> None:
    """A turn that ran there may be lost: its client asks again after three seconds of silence."""
    driven = Driven("w1", term=2, unclaimed=["w2"])
    driven.ask(session_id="s")
    driven.ask("alone", inbox="_INBOX.alone")
    if how == "left":
        driven.leave("w2")
    else:
        driven.hear("w2", "joined", boot="b2")
    assert driven.next_sent().dispatch.request_id == "alone"
    driven.pass_time(4.4)
    assert (driven.sent(), set(driven.words())) == ([], {"leader_change"})
    driven.pass_time(0.2)
    assert driven.next_sent().dispatch.request_id == "r"


def test_a_worker_that_comes_later_holds_up_nothing() -> None:
    driven = Driven("w1", term=2)
    driven.hear("w2", "joined")
    driven.ask(session_id="s")
    assert driven.next_sent().worker == "w1"


def test_what_a_worker_had_counts_for_its_client_when_its_contents_are_here() -> None:
    driven = Driven("w1", term=2, unclaimed=["w2"])
    tell(driven, "w2", old_dispatch(prompt="x" * 10_000))
    store = driven.machine._store
    assert 10_000 < store.memory_bytes(ADA) == store.memory_bytes() < 15_000
    driven.on(EndRequests((ADA, RequestId("r")), ErrorDetails.of("draining", "it shut down")))
    assert store.memory_bytes() == 0


def test_contents_that_come_after_the_end_of_their_request_change_nothing() -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(old_dispatch()))
    order = driven.last_order("contents", "w1")
    driven.on(EndRequests((ADA, RequestId("r")), ErrorDetails.of("draining", "it shut down")))
    assert driven.known().state == "lost"
    driven.answer(order, driven.reply("w1", contents=[old_dispatch()]))
    assert driven.known().state == "lost"


def test_contents_that_come_after_the_end_of_their_worker_change_nothing() -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    tell(driven, "w1", old_dispatch())
    driven.claimed("w1", key_of(old_dispatch(), tokens=7))  # it misses an event
    order, reply = driven.last_order("contents", "w1"), driven.reply("w1", contents=[])
    driven.leave("w1")
    assert driven.known().state == "backing_off"
    driven.answer(order, reply.model_copy(update={"contents": [old_dispatch()]}))
    assert driven.known().state == "backing_off"


# Late claims.


def test_what_began_here_meanwhile_is_ended_where_it_ran_before() -> None:
    driven = Driven("w1", term=2, unclaimed=["w2"])
    driven.pass_time(1.1)
    sent = driven.run()
    driven.claimed("w2", key_of(old_dispatch()))
    ((worker, order),) = driven.orders()
    assert isinstance(order, CancelRequest)
    assert (worker, order.attempt, order.silent) == ("w2", 3, True)
    driven.finish(sent)
    assert driven.state() == "finished"


def test_what_waits_for_a_worker_here_began_here() -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    driven.pass_time(1.1)
    driven.ask()
    assert driven.known().state == "queued"
    driven.claimed("w1", key_of(old_dispatch()))
    assert [order.verb for _, order in driven.orders()] == ["cancel"]
    driven.pass_time(0.1)
    assert driven.next_sent().dispatch.attempt == 1001


def test_a_turn_that_has_not_begun_goes_on_where_it_was() -> None:
    driven = Driven("w1", term=2, unclaimed=["w2"])
    driven.ask(inbox=LATER, session_id="s")
    driven.pass_time(2)
    tell(driven, "w2", old_dispatch(session_id="s"))
    assert (driven.sent(), driven.known().worker) == ([], "w2")
    assert "attach" in [order.verb for _, order in driven.orders()]


# Something may have been missed.


def test_what_a_worker_has_no_more_is_forgotten_and_its_client_asks_again() -> None:
    driven = Driven("w1")
    driven.run()
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1")
    assert (driven.state(), driven.machine.active, driven.words()) == ("unknown", 0, [])


def test_nothing_is_counted_any_more_of_what_is_forgotten() -> None:
    driven = Driven("w1", circuit_breaker={"failure_threshold": 1, "recovery_timeout_ms": 1000})
    driven.requeue(driven.run("a"), "engine_crashed")
    driven.cancel("a")
    driven.pass_time(1.1)
    driven.run("b")
    breaker = driven.view("w1").breaker
    assert breaker is not None and not breaker.admits(driven.now), "one is tried at a time"
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1")
    assert driven.machine.active == 0 and driven.view("w1").load == 0
    assert breaker.admits(driven.now)


def test_what_came_to_it_since_it_was_asked_is_not_forgotten() -> None:
    driven = Driven("w1")
    driven.pass_time(2)
    driven.on(LinkRestored())
    claim = driven.last_order("claim", "w1")
    driven.run()
    driven.answer(claim, driven.reply("w1", claimed=ClaimReport(term=1)))
    assert driven.state() == "running"


@pytest.mark.parametrize(
    ("state", "told"), [("running", "running"), ("finished", "finished"), ("failed", "failed")]
)
def test_what_was_missed_is_caught_up_with(state: str, told: str) -> None:
    driven = Driven("w1")
    sent = driven.run()
    driven.emit(sent, 0, 1)
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1", key_of(sent.dispatch, state, tokens=1))
    assert driven.state() == told and driven.given() == []


def test_an_answer_that_was_missed_is_caught_up_with() -> None:
    driven = Driven("w1", dispatch={"ack_timeout_ms": 60_000})
    driven.pass_time(2)
    driven.ask()
    sent = driven.next_sent()
    driven.on(LinkRestored())
    driven.claimed("w1", key_of(sent.dispatch))
    assert driven.state() == "running"
    driven.finish(sent)
    assert driven.view("w1").load == 0


def test_tokens_that_were_missed_are_asked_for() -> None:
    driven = Driven("w1", "w2")
    sent = driven.run()
    driven.emit(sent, 0, 1)
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1", key_of(sent.dispatch, tokens=3))
    (asked,) = driven.given()
    resume = Continuation(token_ids={0: [1, 2, 3]}, text_sent={0: 3})
    now = sent.dispatch.model_copy(update={"resume": resume})
    driven.answer(asked, driven.reply("w1", contents=[now]))
    driven.leave("w1")
    dispatch = driven.next_sent().dispatch
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [1, 2, 3]}


def test_that_a_worker_gave_it_back_was_missed() -> None:
    driven = Driven("w1", "w2")
    sent = driven.run()
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1", key_of(sent.dispatch, "returned", failure=failure_of(sent.dispatch)))
    driven.pass_time(0.2)
    assert driven.next_sent().worker == "w2"


def test_a_worker_of_which_nothing_is_heard_for_some_seconds_is_asked() -> None:
    driven = Driven("w1")
    sent = driven.run()
    driven.pass_time(2)
    driven.emit(sent, 0, 1)
    driven.new(SendControlOrder)
    driven.pass_time(2.9)
    assert driven.new(SendControlOrder) == []
    driven.pass_time(0.2)
    (claim,) = driven.new(SendControlOrder)
    assert (claim.worker, claim.order.verb) == ("w1", "claim")


def test_after_a_new_connection_all_are_asked_but_not_twice_within_a_second() -> None:
    driven = Driven("w1", "w2")
    driven.new(SendControlOrder)
    driven.on(LinkRestored())
    assert driven.new(SendControlOrder) == []
    driven.pass_time(1)
    for _ in range(2):
        driven.on(LinkRestored())
    assert [order.worker for order in driven.new(SendControlOrder)] == ["w1", "w2"]


# Who is claimed.


def test_nothing_goes_to_a_worker_that_has_not_told_what_it_has() -> None:
    driven = Driven()
    driven.hear("w1", "joined")
    driven.ask()
    assert driven.sent() == [] and driven.known().state == "queued"
    driven.claimed("w1")
    driven.pass_time(0.1)
    assert driven.next_sent().worker == "w1"


def test_a_worker_that_does_not_answer_is_asked_again_when_it_is_heard_again() -> None:
    driven = Driven()
    driven.hear("w1", "joined")
    claim = driven.last_order("claim")
    driven.answer(claim, None)
    driven.new(SendControlOrder)
    driven.hear("w1")
    assert driven.new(SendControlOrder) == [], "within a second"
    driven.pass_time(1)
    driven.hear("w1")
    assert len(driven.new(SendControlOrder)) == 1


def test_a_worker_that_tells_of_another_term_for_some_seconds_is_claimed_again() -> None:
    """Heartbeats that left before it answered do not count."""
    driven = Driven("w1", term=2)
    driven.new(SendControlOrder)
    driven.pass_time(2.9)
    driven.hear("w1", term=1)
    assert driven.new(SendControlOrder) == []
    driven.pass_time(0.2)
    driven.hear("w1", term=2)
    assert driven.new(SendControlOrder) == []
    driven.hear("w1", term=1)
    assert [order.order.verb for order in driven.new(SendControlOrder)] == ["claim"]


def test_what_a_boot_says_that_is_gone_does_not_count_for_the_next_one() -> None:
    driven = Driven()
    driven.hear("w1", "joined")
    claim, reply = driven.last_order("claim"), driven.reply("w1", claimed=ClaimReport(term=1))
    driven.hear("w1", "joined", boot="b2")
    driven.answer(claim, reply)
    assert not driven.view("w1").claimed


def test_what_a_worker_keeps_of_prompts_is_told_with_its_claim() -> None:
    driven = Driven()
    worker = driven.hear("w1", "joined")
    kept = KeptPrefixes(worker=worker, boot_id=BootId("b1"), number=1, links={"00": "memory"})
    told = ClaimReport(term=1, kept=kept)
    driven.answer(driven.last_order("claim"), driven.reply("w1", claimed=told))
    assert driven.kept.links(worker) == {"00": "memory"}


def test_who_lacks_the_tokens_that_an_ended_request_was_resumed_from_gets_it_anew() -> None:
    driven = Driven("w1", term=2, unclaimed=["w2"])
    old = old_dispatch()
    claim = key_of(old, "finished").model_copy(update={"resumed_tokens": 2, "tokens": 4})
    driven.claimed("w2", claim)
    driven.orders()
    driven.ask(inbox=LATER)
    assert [order.verb for _, order in driven.orders()] == []
    driven.pass_time(0.01)
    assert driven.next_sent().dispatch.inboxes == [LATER]


def test_who_lacks_the_tokens_that_a_running_request_was_resumed_from_gets_it_anew() -> None:
    driven = Driven("w1", term=2, unclaimed=["w2"])
    driven.ask(inbox=LATER)
    claim = key_of(old_dispatch()).model_copy(update={"resumed_tokens": 2, "tokens": 4})
    driven.claimed("w2", claim)
    ((worker, order),) = driven.orders()
    assert isinstance(order, CancelRequest)
    assert (worker, order.attempt, order.silent) == ("w2", claim.attempt, True)
    again = driven.next_sent().dispatch
    assert again.attempt > claim.attempt and again.inboxes == [LATER]
