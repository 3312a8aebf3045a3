"""What a client asks when it hears nothing, as a machine of values and a clock in hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shared.client.recovery import RecoveryInputs, Step, StreamRecovery
from shared.errors import StreamFailed, StreamSilent, Unavailable
from shared.messages.control import RequestStateName, ResendStateName

_START = 100.0
_CALM = RecoveryInputs(
    connected=True, connections=1, received_any=True, started=True, worker_known=True, missing=False
)
_WAITING = replace(_CALM, started=False, worker_known=False)
_UNHEARD = replace(_WAITING, received_any=False)


class Simulated:
    """A stream's loop around the rules: look, wait as told, look again."""

    def __init__(self, situation: RecoveryInputs = _CALM) -> None:
        self.now = _START
        self.situation = situation
        self.recovery = StreamRecovery(self.now, 1)
        self.asked: list[tuple[float, Step]] = []
        self.answers: dict[Step, Callable[[], None]] = {}
        """What happens at once when something is asked."""

    @property
    def elapsed_s(self) -> float:
        return self.now - _START

    def look(self) -> Step | None:
        step = self.recovery.next_step(self.now, self.situation)
        if step is not None:
            self.asked.append((self.elapsed_s, step))
            if answer := self.answers.get(step):
                answer()
        return step

    def run(self, seconds: float) -> list[tuple[float, Step]]:
        """What is asked within that time, and when."""
        seen, end = len(self.asked), self.now + seconds - 1e-6
        while self.now < end:
            wait_s = self.recovery.wait_s(self.now, self.situation)
            assert wait_s > 0
            self.now = min(self.now + wait_s, end + 1e-6)
            self.look()
        return self.asked[seen:]

    def hear(self) -> None:
        self.recovery.on_message(self.now)

    def state(self, state: RequestStateName, *, at_a_worker: bool = True) -> None:
        self.recovery.on_state(state, at_a_worker, self.now)


def check(asked: list[tuple[float, Step]], *expected: tuple[float, Step]) -> None:
    """The loop looks twenty times a second at most, so each may come a little late."""
    assert [step for _, step in asked] == [step for _, step in expected]
    assert [when for when, _ in asked] == pytest.approx([when for when, _ in expected], abs=0.25)


# Before anything is heard.


def test_what_is_not_heard_of_is_published_again_each_second_and_given_up_after_15() -> None:
    stream = Simulated(_UNHEARD)
    check(stream.run(14.5), *((float(second), "publish") for second in range(1, 15)))
    with pytest.raises(StreamSilent) as caught:
        stream.run(1)
    assert caught.value.code == "stream_silent"
    assert 15 <= stream.elapsed_s < 15.1


def test_where_no_controller_takes_requests_it_is_tried_again_4_times_a_second_for_15_s() -> None:
    stream = Simulated(_UNHEARD)
    stream.recovery.on_no_controller(stream.now)
    stream.answers["publish"] = lambda: stream.recovery.on_no_controller(stream.now)
    check(stream.run(14.9), *((quarter / 4, "publish") for quarter in range(1, 60)))
    with pytest.raises(Unavailable) as caught:
        stream.run(1)
    assert caught.value.code == "no_controller"


def test_that_there_is_no_controller_is_the_reason_also_if_it_was_heard_late() -> None:
    stream = Simulated(_UNHEARD)
    stream.run(0.9)
    stream.recovery.on_no_controller(stream.now)
    with pytest.raises(Unavailable) as caught:
        stream.run(15.5)
    assert caught.value.code == "no_controller"


def test_a_controller_that_comes_in_time_is_enough() -> None:
    stream = Simulated(_UNHEARD)
    stream.recovery.on_no_controller(stream.now)
    stream.run(1)
    stream.hear()
    stream.situation = _CALM
    assert stream.recovery.wait_s(stream.now, stream.situation) == 1.0
    assert stream.run(2.9) == []


# Silence.


@pytest.mark.parametrize(
    ("situation", "then"),
    [(_CALM, "ask_resend"), (replace(_WAITING, worker_known=True), "ask_resend"),
     (_WAITING, "publish"), (replace(_CALM, worker_known=False), "publish")],
)  # fmt: skip
def test_after_3_s_of_silence_the_leader_and_others_are_asked_in_turn(
    situation: RecoveryInputs, then: Step
) -> None:
    stream = Simulated(situation)
    turns: list[Step] = ["ask_status", then]
    check(stream.run(14.5), *((3.0 + 1.05 * turn, turns[turn % 2]) for turn in range(11)))
    with pytest.raises(StreamSilent):
        stream.run(1)
    assert 15 <= stream.elapsed_s < 15.1


def test_whatever_is_heard_counts_from_then() -> None:
    stream = Simulated()
    for _ in range(10):
        assert stream.run(2.9) == []
        stream.hear()
    check(stream.run(3.1), (32.0, "ask_status"))


@pytest.mark.parametrize("state", ["running", "finished"])
def test_what_a_worker_has_is_asked_of_it_at_once(state: RequestStateName) -> None:
    stream = Simulated()
    stream.answers["ask_status"] = lambda: stream.state(state)
    check(stream.run(3), (3.0, "ask_status"))
    assert stream.look() == "ask_resend"
    assert stream.run(2.9) == []


@pytest.mark.parametrize(
    ("state", "at_a_worker"), [("finished", False), ("failed", False), ("failed", True)]
)
def test_an_end_that_no_worker_keeps_is_had_by_publishing_again(
    state: RequestStateName, at_a_worker: bool
) -> None:
    stream = Simulated()
    stream.state(state, at_a_worker=at_a_worker)
    assert stream.look() == "publish"
    assert stream.look() is None


def test_an_end_that_went_with_its_worker_is_had_by_publishing_again() -> None:
    stream = Simulated()
    stream.answers["ask_status"] = lambda: stream.state("finished")
    stream.answers["ask_resend"] = stream.recovery.on_no_worker
    check(
        stream.run(4.2),
        (3.0, "ask_status"), (3.25, "ask_resend"), (3.5, "ask_status"), (3.75, "publish"),
    )  # fmt: skip


@pytest.mark.parametrize("state", ["accepted", "dispatching"])
def test_a_request_that_waits_in_its_controller_is_waited_for(state: RequestStateName) -> None:
    stream = Simulated(_WAITING)
    stream.answers["ask_status"] = lambda: stream.state(state, at_a_worker=False)
    check(stream.run(7.2), (3.0, "ask_status"), (6.0, "ask_status"))


@pytest.mark.parametrize(
    ("situation", "then"),
    [(_CALM, "resume"), (replace(_CALM, worker_known=False), "resume"), (_WAITING, "publish")],
)
def test_what_neither_the_leader_nor_any_worker_has_is_published_again_at_once(
    situation: RecoveryInputs, then: Step
) -> None:
    """From what is here on, where the answer has begun."""
    stream = Simulated(situation)
    stream.answers["ask_status"] = lambda: stream.state("unknown", at_a_worker=False)
    check(stream.run(3), (3.0, "ask_status"))
    assert stream.look() == then
    assert stream.look() is None


def test_that_the_leader_does_not_know_it_is_no_sign_of_life() -> None:
    stream = Simulated()
    stream.answers["ask_status"] = lambda: stream.state("unknown", at_a_worker=False)
    stream.run(14.9)
    with pytest.raises(StreamSilent):
        stream.run(0.2)


def test_an_answer_about_an_earlier_silence_does_not_shorten_the_next_round() -> None:
    stream = Simulated()
    stream.run(3)
    stream.state("accepted", at_a_worker=False)
    check(stream.run(4.5), (6.0, "ask_status"), (7.0, "ask_resend"))


@pytest.mark.parametrize(
    ("situation", "step"), [(_CALM, "resume"), (replace(_CALM, started=False), "publish")]
)
def test_what_the_worker_does_not_know_is_published_again_at_once(
    situation: RecoveryInputs, step: Step
) -> None:
    """With what was received of it: it goes before turns that have not begun."""
    stream = Simulated(situation)
    stream.run(4.1)
    stream.recovery.on_resend_state("unknown", stream.now)
    assert stream.look() == step


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_worker_that_answers_was_heard(state: ResendStateName) -> None:
    stream = Simulated()
    stream.run(4.1)
    stream.recovery.on_resend_state(state, stream.now)
    assert stream.run(2.9) == []
    assert stream.run(0.3) != []


def test_each_silence_begins_with_asking_the_leader() -> None:
    stream = Simulated()
    check(stream.run(3.1), (3.0, "ask_status"))
    stream.hear()
    check(stream.run(3.1), (6.1, "ask_status"))


def test_a_worker_that_is_gone_makes_it_ask_the_leader_at_once() -> None:
    stream = Simulated()
    stream.run(4.1)
    stream.recovery.on_no_worker()
    assert stream.look() == "ask_status"
    assert stream.look() is None


def test_a_worker_that_is_gone_before_the_leader_knows_is_not_asked_without_a_pause() -> None:
    stream = Simulated()
    stream.answers["ask_status"] = lambda: stream.state("running")
    stream.answers["ask_resend"] = stream.recovery.on_no_worker
    stream.now += 3
    for _ in range(100):  # answers within a hundredth of a second
        stream.look()
        stream.now += 0.01
    assert len(stream.asked) <= 6


def test_where_no_leader_answers_and_its_worker_is_gone_it_is_published_again() -> None:
    waiting = Simulated(replace(_WAITING, worker_known=True))
    waiting.answers["ask_resend"] = waiting.recovery.on_no_worker
    steps = [step for _, step in waiting.run(14.9)]
    assert "publish" in steps and "resume" not in steps


def test_what_has_begun_goes_on_where_no_leader_answers_and_its_worker_is_gone() -> None:
    begun = Simulated()
    begun.answers["ask_resend"] = begun.recovery.on_no_worker
    asked = begun.run(5.5)
    check(asked, (3, "ask_status"), (4, "ask_resend"), (4.5, "ask_status"), (5.5, "resume"))
    steps = [step for _, step in begun.run(9.4)]
    assert "publish" not in steps
    with pytest.raises(StreamSilent):
        begun.run(0.2)


def test_what_has_begun_does_not_go_on_while_its_worker_is_there() -> None:
    begun = Simulated()
    assert "resume" not in [step for _, step in begun.run(14.9)]


def test_who_stood_still_itself_asks_before_it_gives_up() -> None:
    stream = Simulated()
    stream.run(1)
    stream.now += 60  # what came meanwhile waits in the socket
    assert stream.look() == "ask_status"
    stream.hear()
    assert stream.run(2.9) == []


# Gaps.


def test_a_gap_is_asked_for_at_once_and_then_twice_a_second() -> None:
    stream = Simulated()
    stream.run(1)
    stream.situation = replace(_CALM, missing=True)
    assert stream.look() == "ask_resend"
    check(stream.run(1.5), (1.5, "ask_resend"), (2.0, "ask_resend"), (2.5, "ask_resend"))


def test_a_gap_without_a_worker_is_asked_of_the_leader() -> None:
    stream = Simulated(replace(_CALM, missing=True, worker_known=False))
    check(stream.run(0.5), (0.5, "ask_status"))


def test_what_is_missing_of_a_stream_that_a_controller_passes_on_is_had_by_publishing_again() -> (
    None
):
    stream = Simulated(replace(_CALM, missing=True, worker_known=False))
    stream.answers["ask_status"] = lambda: stream.state("running", at_a_worker=False)
    check(stream.run(0.9), (0.5, "ask_status"), (0.5, "publish"))


def test_a_stream_that_a_controller_passes_on_is_left_alone_where_nothing_is_missing() -> None:
    stream = Simulated(replace(_CALM, worker_known=False))
    stream.answers["ask_status"] = lambda: stream.state("running", at_a_worker=False)
    check(stream.run(7.2), (3.0, "ask_status"), (6.0, "ask_status"))


def test_a_gap_that_stays_for_15_s_breaks_the_stream_though_messages_come() -> None:
    stream = Simulated(replace(_CALM, missing=True))
    with pytest.raises(StreamFailed) as caught:
        for _ in range(70):
            stream.hear()
            stream.run(0.25)
    assert (caught.value.code, caught.value.retryable) == ("stream_broken", True)
    assert 15 <= stream.elapsed_s <= 15.5


def test_a_gap_that_closes_is_forgotten() -> None:
    stream = Simulated()
    for _ in range(5):
        for missing, seconds in ((True, 12.0), (False, 1.0)):
            stream.situation = replace(_CALM, missing=missing)
            stream.hear()
            stream.run(seconds)


# The connection.


def test_without_a_connection_nothing_is_asked_and_5_s_after_the_last_message_it_ends() -> None:
    stream = Simulated()
    stream.run(1)
    stream.hear()
    stream.situation = replace(_CALM, connected=False)
    assert stream.run(4.9) == []
    with pytest.raises(StreamSilent) as caught:
        stream.run(1)
    assert (caught.value.code, caught.value.retryable) == ("disconnected", True)
    assert stream.elapsed_s < 7


@pytest.mark.parametrize(
    ("situation", "first"),
    [(_CALM, "ask_status"), (_WAITING, "ask_status"), (_UNHEARD, "publish")],
)
def test_a_new_connection_asks_once_and_at_once(situation: RecoveryInputs, first: Step) -> None:
    stream = Simulated(situation)
    stream.run(0.3)
    stream.situation = replace(stream.situation, connections=2)
    assert [stream.look(), stream.look()] == [first, None]


def test_what_was_planned_while_the_connection_was_gone_is_asked_when_it_is_back() -> None:
    stream = Simulated()
    stream.situation = replace(_CALM, connected=False)
    stream.recovery.on_resend_state("unknown", stream.now)
    assert stream.look() is None
    stream.situation = replace(_CALM, connections=2)
    assert stream.look() == "resume"


# Turns of a session.


def test_behind_a_lost_turn_nothing_is_published_again_until_that_is_heard_of() -> None:
    stream = Simulated(replace(_WAITING, behind=True))
    asked = [step for _, step in stream.run(6)]
    assert "publish" not in asked and "ask_status" in asked
    stream.situation = _WAITING
    assert "publish" in [step for _, step in stream.run(1.5)]


def test_a_stream_is_lost_when_it_was_silent_and_for_two_seconds() -> None:
    stream = Simulated()
    at = [stream.recovery.is_lost(_START + seconds) for seconds in (0.0, 2.9, 3.0, 4.9, 5.0, 60.0)]
    assert at == [False, False, True, True, False, False]
    stream.now = _START + 4
    stream.hear()
    assert not stream.recovery.is_lost(_START + 4.5)
