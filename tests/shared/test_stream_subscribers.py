"""Who listens to a stream, from probes and their answers at given times."""

import math

import pytest

from shared.messages.dispatch import MAX_INBOXES
from shared.stream_subscribers import PROBE_INTERVAL_S, StreamSubscribers

_TOO_SOON_S = 0.5  # for a second answer to count
_STEP_S = 1 / 16  # without rounding
_BETWEEN_PROBES_S = math.ceil(PROBE_INTERVAL_S / _STEP_S) * _STEP_S


class Probed:
    """The inboxes of one stream, probed as messages go out sixteen times a second."""

    def __init__(self, *inboxes: str, latency_s: float = 0.0) -> None:
        self.now = 100.0
        self.inboxes = StreamSubscribers(inboxes, self.now)
        self.latency_s = latency_s
        self.probes: list[float] = []
        self._answers: list[tuple[float, str]] = []

    def run(self, seconds: float, *, absent: str = "") -> None:
        """Let messages go out; nobody listens to `absent` meanwhile."""
        for _ in range(round(seconds / _STEP_S)):
            self.now += _STEP_S
            for inbox in self.inboxes:
                if self.inboxes.should_probe(inbox, self.now):
                    self.probes.append(self.now)
                    if inbox == absent:
                        self._answers.append((self.now + self.latency_s, inbox))
            while self._answers and self._answers[0][0] <= self.now:
                self.inboxes.on_missed(self._answers.pop(0)[1], self.now)


def test_inboxes_keep_their_order_and_none_is_there_twice() -> None:
    inboxes = StreamSubscribers(["b", "a", "b"], 0.0)
    inboxes.add("a", 1.0)
    inboxes.add("c", 1.0)
    assert list(inboxes) == ["b", "a", "c"]
    assert len(inboxes) == 3 and bool(inboxes)


def test_of_too_many_inboxes_the_oldest_goes() -> None:
    inboxes = StreamSubscribers([], 0.0)
    for number in range(MAX_INBOXES + 2):
        inboxes.add(str(number), 0.0)
    assert list(inboxes) == [str(number) for number in range(2, MAX_INBOXES + 2)]


def test_a_probe_goes_out_now_and_then_and_not_with_every_message() -> None:
    probed = Probed("a")
    probed.run(10)
    assert 15 < len(probed.probes) < 30
    apart = [b - a for a, b in zip(probed.probes, probed.probes[1:], strict=False)]
    assert min(apart) >= PROBE_INTERVAL_S - 1e-6
    assert list(probed.inboxes) == ["a"]


def test_just_after_it_was_made_or_added_an_inbox_is_not_probed() -> None:
    inboxes = StreamSubscribers(["a"], 100.0)
    assert not inboxes.should_probe("a", 100.3)
    inboxes.add("b", 100.3)
    assert inboxes.should_probe("a", 100.5)
    assert not inboxes.should_probe("b", 100.5)


def test_an_unknown_inbox_is_neither_probed_nor_missed() -> None:
    inboxes = StreamSubscribers(["a"], 0.0)
    assert not inboxes.should_probe("b", 10.0)
    for now in (10.0, 20.0):
        inboxes.on_missed("b", now)
    assert list(inboxes) == ["a"] and not inboxes.doubtful


@pytest.mark.parametrize("latency_s", [0.0, 0.3, 0.6])
def test_who_left_is_forgotten_within_2_s_and_others_stay(latency_s: float) -> None:
    probed = Probed("gone", "here", latency_s=latency_s)
    probed.run(1)
    probed.run(_TOO_SOON_S, absent="gone")
    assert list(probed.inboxes) == ["gone", "here"]
    probed.run(2 - _TOO_SOON_S, absent="gone")
    assert list(probed.inboxes) == ["here"]


def test_a_single_false_answer_does_no_harm_however_often_it_comes() -> None:
    probed = Probed("a")
    for _ in range(20):
        probed.run(_BETWEEN_PROBES_S, absent="a")
        assert probed.inboxes.doubtful
        probed.run(2 * _BETWEEN_PROBES_S)
        assert not probed.inboxes.doubtful
    assert list(probed.inboxes) == ["a"]


def test_two_answers_close_together_are_not_enough() -> None:
    inboxes = StreamSubscribers(["a"], 0.0)
    inboxes.on_missed("a", 1.0)
    inboxes.on_missed("a", 1.0 + _TOO_SOON_S)
    assert list(inboxes) == ["a"]
    inboxes.on_missed("a", 2.0)
    assert list(inboxes) == [] and not inboxes
