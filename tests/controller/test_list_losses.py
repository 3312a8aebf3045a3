"""What is done about parts of lists, and messages of theirs, that get lost; by value."""

import pytest

from shared.bus import IncomingMessage
from shared.messages.stream import ErrorDetails, FailedMessage
from tests.controller.driven_runner import RUNNER, DrivenRunner


def test_a_part_of_which_nothing_is_heard_is_asked_for_again(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    for part in (first, second):
        runner.say(part, "accepted")
    runner.run(first, second)
    runner.pass_time(2.75)
    runner.say(second, "prefill")
    assert runner.new_parts() == []
    runner.pass_time(1)
    (again,) = runner.new_parts()
    assert (again.key, again.fingerprint) == (first.key, first.fingerprint)


def test_a_gap_is_repaired_before_the_client_hears_of_it(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.say(first, "accepted")
    runner.speak(first, 0, 1)
    runner.speak(first, 2, 3)  # what was between them got lost
    runner.answer(second, 7)
    runner.pass_time(0.75)
    assert [part.key for part in runner.new_parts()] == [first.key]
    for index in range(3):
        runner.speak(first, index, index + 1)
    runner.end(first, 3)
    assert runner.tokens() == {0: [1, 2, 3], 1: [7]} and runner.done()


def test_pieces_that_do_not_fit_together_end_their_part(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.speak(first, 0, 1)
    runner.speak(first, 0, 1, 2)
    runner.answer(second, 7)
    assert runner.finished() == [(first.request_id, "stream_broken")]
    assert runner.errors()[0].code == "stream_broken" and runner.done()


@pytest.mark.parametrize(("talks", "code"), [(False, "stream_silent"), (True, "stream_broken")])
def test_a_part_of_which_something_is_missing_for_long_is_given_up(
    runner: DrivenRunner, talks: bool, code: str
) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.answer(second, 7)
    runner.speak(first, 0, 1)
    runner.speak(first, 2, 3)
    for _ in range(15):
        assert runner.finished() == []
        if talks:
            runner.say(first, "preempted")
        runner.pass_time(1)
    runner.pass_time(1)
    assert runner.finished() == [(first.request_id, code)]
    assert runner.errors()[0].code == code and runner.done()


def test_a_part_that_the_leader_knows_of_is_waited_for(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.answer(second, 7)
    runner.say(first, "accepted")
    runner.run(first)
    runner.pass_time(60)
    assert runner.finished() == [] and runner.errors() == {}
    assert {part.key for part in runner.new_parts()} == {first.key}


def test_a_part_whose_worker_lost_sight_of_us_is_asked_again(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.answer(second, 7)
    runner.speak(first, 0, 1)
    runner.fail(first, "client_gone")
    runner.pass_time(1)
    (again,) = runner.new_parts()
    assert again.request_id != first.request_id
    assert (again.contents.prompt, again.seed) == ("prompt 0", first.seed)
    runner.speak(again, 0, 1)
    assert len(runner.chunks()) == 2, "that was told before"
    runner.end(again, 1, 2)
    assert runner.tokens() == {0: [1, 2], 1: [7]} and runner.done()


def test_it_is_asked_again_so_often_and_then_fails(runner: DrivenRunner) -> None:
    runner.serve(2)
    part, other = runner.new_parts()
    runner.answer(other, 7)
    for _ in range(3):
        runner.fail(part, "client_gone")
        runner.pass_time(1)
        (part,) = runner.new_parts()
    runner.fail(part, "client_gone")
    assert runner.errors()[0].code == "stream_broken" and runner.done()


def test_what_cannot_be_read_does_no_harm(runner: DrivenRunner) -> None:
    runner.serve(2)
    first, second = runner.new_parts()
    runner.receive(IncomingMessage(f"{RUNNER}.parts", "", b"no message"))
    runner.hear(FailedMessage(None, 0, None, ErrorDetails.of("internal_error", "whose?")))
    for part in (first, second):
        runner.answer(part, 1)
    assert runner.done() and len(runner.ended()) == 1
