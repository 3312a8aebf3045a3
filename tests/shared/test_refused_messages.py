"""What is refused is counted without end, and remembered and logged within bounds."""

import logging

import pytest

from shared.errors import DecodeError, InvalidSubject, OtherProtocol, WrongSender
from shared.refused_messages import RefusedMessages

WRONG, OTHER = WrongSender("of w2", b""), OtherProtocol("it has protocol 2, not 3", b"", 2)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refused(clock: Clock) -> RefusedMessages:
    return RefusedMessages(3.0, clock)


def named(refused: RefusedMessages) -> list[tuple[str, str, int]]:
    return [(each.kind, each.id, each.protocol) for each in refused.ignored()]


def test_each_kind_is_counted(refused: RefusedMessages) -> None:
    for error in (DecodeError("?", b""), WRONG, OTHER, InvalidSubject("?", b""), WRONG):
        refused.add(error, "mlx.event.worker.w1")
    assert refused.counts == {
        "undecodable": 1, "wrong_sender": 2, "other_protocol": 1, "invalid_subject": 1
    }  # fmt: skip


def test_a_kind_is_logged_once_for_a_subject_until_a_long_time_has_passed(
    refused: RefusedMessages, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(100):
        refused.add(WRONG, "mlx.event.worker.w1")
    refused.add(OTHER, "mlx.event.worker.w1")
    assert len(caplog.records) == 2
    clock.now = 601.0
    refused.add(WRONG, "mlx.event.worker.w1")
    assert len(caplog.records) == 3


def test_whoever_makes_up_subjects_fills_neither_the_log_nor_the_memory(
    refused: RefusedMessages, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for number in range(2000):
        refused.add(OTHER, f"mlx.event.worker.w{number}")
        refused.add(WRONG, f"mlx.infer.eve.\x1b[2J{number}" + "x" * 3000)
    assert len(caplog.records) == 256
    assert all(len(record.getMessage()) < 250 for record in caplog.records)
    assert "\x1b" not in caplog.text
    assert len(refused.ignored()) == 64


def test_processes_of_another_protocol_are_named_until_they_are_silent(
    refused: RefusedMessages, clock: Clock
) -> None:
    refused.add(OTHER, "mlx.event.worker.w1")
    refused.add(OTHER, "mlx.event.request.c-1.w1")
    refused.add(OTHER, "mlx.event.controller.c-0")
    refused.add(OTHER, "mlx.event.worker.a b")
    refused.add(WRONG, "mlx.event.worker.w2")
    clock.now = 2.0
    refused.add(OTHER, "mlx.event.kept.w3")
    assert named(refused) == [("controller", "c-0", 2), ("worker", "w1", 2), ("worker", "w3", 2)]
    clock.now = 4.0
    assert named(refused) == [("worker", "w3", 2)]
