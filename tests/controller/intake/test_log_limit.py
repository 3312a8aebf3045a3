"""A flood of bad messages is no flood of log lines."""

import logging

import pytest

from controller.intake.log_limit import LogLimit

_LOGGER = logging.getLogger(__name__)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_client_has_a_line_a_minute_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    limit = LogLimit(_LOGGER, clock)
    assert [limit.allows(client) for client in ("ada", "eve", "eve", "ada")] == [
        True, True, False, False
    ]  # fmt: skip
    clock.now = 59.0
    assert not limit.allows("eve") and caplog.messages == []
    clock.now = 60.0
    assert limit.allows("eve")
    assert caplog.messages == ["3 more messages of clients were ignored"]
    clock.now = 121.0
    assert limit.allows("eve")
    assert len(caplog.messages) == 1


def test_a_client_with_many_names_gets_no_more_than_a_hundred_lines() -> None:
    limit = LogLimit(_LOGGER, Clock())
    assert sum(limit.allows(str(number)) for number in range(1000)) == 100
