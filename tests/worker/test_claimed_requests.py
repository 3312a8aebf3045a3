"""What is told of requests to who claims a worker: values in, values out."""

from pathlib import Path

import pytest

from shared.codec import encode
from shared.ids import ControllerId
from shared.messages.control import AttemptRef, ClaimedRequest
from shared.messages.dispatch import Continuation, Dispatch
from shared.messages.request_events import AttemptFailed, TokensEmitted
from tests.worker.test_giving_back import Scheduled
from tests.worker.values import CLIENT, OWNER, dispatched
from tests.worker.virtual_time import Clock
from worker.requests.active_request import ActiveRequest
from worker.requests.takeover import claim_requests, request_contents

HEIR = ControllerId("heir")
NO_LIMIT = 10**9


class Claimed:
    """A worker that a leader claims."""

    def __init__(self, folder: Path) -> None:
        self.worker = Scheduled(folder)
        self.scheduler = self.worker.scheduler

    def claim(
        self,
        leader: ControllerId = HEIR,
        *,
        ended_within_ms: int | None = None,
        max_bytes: int = NO_LIMIT,
    ) -> list[ClaimedRequest]:
        return claim_requests(
            self.scheduler.requests(), leader, ended_within_ms, max_bytes, self.scheduler.isolation
        )

    def states(self, *, ended_within_ms: int | None = None) -> dict[str, str]:
        told = self.claim(ended_within_ms=ended_within_ms)
        return {each.request_id: each.state for each in told}

    def contents(
        self, *request_ids: str, attempt: int = 0, max_bytes: int = NO_LIMIT
    ) -> list[Dispatch]:
        refs = [
            AttemptRef(client=CLIENT, request_id=dispatched(request_id).request_id, attempt=attempt)
            for request_id in request_ids
        ]
        return request_contents(
            self.scheduler.requests(), refs, max_bytes, self.scheduler.isolation
        )

    def cancel(self, request_id: str, attempt: int) -> bool:
        """As who got it back says that it did."""
        key = CLIENT, dispatched(request_id).request_id
        return self.scheduler.cancel(key, attempt, silent=True)

    def find(self, request_id: str) -> ActiveRequest:
        request = self.scheduler.find((CLIENT, dispatched(request_id).request_id))
        assert request is not None
        return request


@pytest.fixture
def claimed(tiny_model: Path) -> Claimed:
    return Claimed(tiny_model)


def test_each_is_told_with_what_tells_it_from_others(claimed: Claimed) -> None:
    before = Continuation(token_ids={0: [5]}, text_sent={0: 1})
    dispatch = dispatched("r", attempt=3, goes_on=before, session_id="s").model_copy(
        update={"retries": 2, "migrations": 1, "crashes": 1}
    )
    assert claimed.scheduler.accept(dispatch, OWNER) is None
    (told,) = claimed.claim()
    assert told == ClaimedRequest(
        client=CLIENT,
        request_id=dispatch.request_id,
        attempt=3,
        state="running",
        skill=dispatch.skill,
        model=dispatch.model,
        session_id="s",
        fingerprint=dispatch.request.fingerprint(),
        tokens=1,
        retries=2,
        migrations=1,
        crashes=1,
    )


def test_what_is_told_later_goes_to_the_leader_that_claimed_it_last(claimed: Claimed) -> None:
    claimed.worker.accept("r")
    claimed.worker.generate("r", 0)
    claimed.claim()
    claimed.worker.outgoing.clear()
    claimed.worker.generate("r", 1)
    (told,) = [told for outgoing in claimed.worker.outgoing for told in outgoing.events]
    request, event = told
    assert request.owner == HEIR and isinstance(event, TokensEmitted) and event.index == 1


def test_with_earlier_messages_before_its_own_its_fingerprint_is_that_of_the_clients_body(
    claimed: Claimed,
) -> None:
    dispatch = dispatched("r").model_copy(update={"fingerprint": "its own"})
    assert claimed.scheduler.accept(dispatch, OWNER) is None
    (told,) = claimed.claim()
    assert told.fingerprint == "its own"
    (contents,) = claimed.contents("r")
    assert contents.body_fingerprint == "its own"


# Given back.


def test_what_was_given_back_is_told_with_why_until_its_leader_has_it(claimed: Claimed) -> None:
    """Who led then may be gone, and hear it no more."""
    claimed.worker.accept("started", "not started")
    claimed.worker.generate("started")
    claimed.worker.die()
    for _ in range(2):  # the one that claims it may be gone before it has it, too
        assert claimed.states() == {"started": "returned", "not started": "returned"}
    told = {each.request_id: each for each in claimed.claim()}
    for request_id, tokens, suspect in (("started", 1, False), ("not started", 0, True)):
        one = told[dispatched(request_id).request_id]
        assert isinstance(one.failure, AttemptFailed)
        assert (one.failure.code, one.failure.suspect) == ("engine_crashed", suspect)
        assert one.tokens == tokens and not one.failure.terminal_sent
    begun, other = claimed.contents("started", "not started")
    assert begun.resume is not None and begun.resume.token_ids == {0: [7]}
    assert other.resume is None


@pytest.mark.parametrize(("attempt", "kept"), [(0, False), (-1, False), (1, True)])
def test_what_its_leader_got_back_is_told_no_more(
    claimed: Claimed, attempt: int, kept: bool
) -> None:
    claimed.worker.accept("r")
    claimed.worker.die()
    assert not claimed.cancel("r", attempt)
    assert bool(claimed.states()) is kept
    assert bool(claimed.contents("r")) is kept


def test_what_comes_again_was_not_given_back(claimed: Claimed) -> None:
    claimed.worker.accept("r")
    claimed.worker.die()
    claimed.worker.engine.state = "running"
    before = Continuation(token_ids={0: [5, 6]}, text_sent={0: 2}, first_token_ms=9.0)
    again = dispatched("r", attempt=1, goes_on=before)
    assert claimed.scheduler.accept(again, OWNER) is None
    (told,) = claimed.claim()
    assert (told.attempt, told.state, told.failure) == (1, "running", None)
    (contents,) = claimed.contents("r", attempt=1)
    assert contents.resume == before.model_copy(update={"cached_tokens": 0})
    assert claimed.contents("r", attempt=0) == [], "that attempt is over"


# Ended.


def test_a_leader_that_claims_again_is_told_what_has_ended_since(
    claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it asks; it knows since when."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    claimed.worker.accept("early", "late", "later")
    claimed.worker.finish("early")
    clock.now += 10
    claimed.worker.finish("late")
    clock.now += 0.9
    assert claimed.states() == {"early": "finished", "late": "finished", "later": "running"}
    clock.now += 1
    claimed.worker.finish("later")
    assert claimed.states(ended_within_ms=2000) == {"late": "finished", "later": "finished"}
    clock.now += 5
    assert claimed.states(ended_within_ms=6000) == {"later": "finished"}
    assert claimed.states(ended_within_ms=4000) == {}
    assert claimed.states() == {"early": "finished", "late": "finished", "later": "finished"}
    assert claimed.contents("early", "late", "later") == [], "their clients have all of it"


def test_what_has_ended_here_runs_until_its_client_is_told(claimed: Claimed) -> None:
    """Else the next turn of its session would begin before."""
    claimed.worker.accept("r")
    claimed.worker.finish("r", published=False)
    assert claimed.states() == {"r": "running"}
    (contents,) = claimed.contents("r")
    assert contents.resume == Continuation(
        token_ids={0: [7]}, finish_reasons={0: "stop"},
        first_token_ms=contents.resume and contents.resume.first_token_ms, cached_tokens=0,
    )  # fmt: skip
    (ended,) = claimed.scheduler.requests().ended
    ended.end_published = True
    assert claimed.states() == {"r": "finished"} and claimed.contents("r") == []


def test_of_those_that_ended_as_many_are_told_as_fit_the_last_ones(claimed: Claimed) -> None:
    for number in range(20):
        claimed.worker.accept(f"ended-{number}")
        claimed.worker.generate(f"ended-{number}", 0)
        claimed.worker.finish(f"ended-{number}")
    claimed.worker.accept("runs")
    one = len(encode(claimed.claim()[0]))
    told = [each.request_id for each in claimed.claim(max_bytes=6 * one)]
    assert told[0] == "runs" and 3 < len(told) < 8
    assert told[1:] == [f"ended-{number}" for number in range(19, 20 - len(told), -1)]
    assert [each.request_id for each in claimed.claim(max_bytes=1)] == ["runs"]


def test_what_went_back_and_what_ended_is_forgotten_after_half_a_minute(
    claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    claimed.worker.accept("ended", "back")
    claimed.worker.finish("ended")
    claimed.worker.die()
    clock.now += 30
    claimed.scheduler.tick()
    assert claimed.states() == {"back": "returned", "ended": "finished"}
    clock.now += 0.1
    claimed.scheduler.tick()
    assert claimed.states() == {}


# Contents in pages.


def test_as_many_are_told_as_fit_and_in_the_order_in_which_they_were_asked(
    claimed: Claimed,
) -> None:
    names = ["a", "b", "c"]
    claimed.worker.accept(*names)
    (one,) = claimed.contents("a")
    told = claimed.contents(*reversed(names), max_bytes=5 * len(encode(one)) // 2)
    assert [each.request_id for each in told] == ["c", "b"]
    assert [each.request_id for each in claimed.contents(*names, max_bytes=1)] == ["a"]


def test_what_is_not_here_is_left_out(claimed: Claimed) -> None:
    claimed.worker.accept("a", "b")
    told = claimed.contents("a", "nobody's", "b")
    assert [each.request_id for each in told] == ["a", "b"]
    assert claimed.contents("a", attempt=1) == []


def test_who_listens_since_is_told_with_the_contents(claimed: Claimed) -> None:
    claimed.worker.accept("r")
    claimed.scheduler.attach(claimed.find("r"), "_INBOX.later")
    (told,) = claimed.contents("r")
    assert told.inboxes == ["_INBOX.r", "_INBOX.later"]
