"""A worker's right to write into its streams, with a clock in hand."""

from tests.worker.virtual_time import Clock
from worker.streams.publish_lease import PublishLease


def held(clock: Clock, connection: int = 1) -> PublishLease:
    lease = PublishLease(3.0, clock)
    lease.restore(connection)
    return lease


def test_nobody_has_it_before_the_streams_were_checked() -> None:
    lease = PublishLease(3.0, Clock())
    assert not lease.is_valid(1)
    lease.renew(1000.0, 1)
    assert not lease.is_valid(1)


def test_it_lasts_for_its_duration_and_no_longer() -> None:
    clock = Clock()
    lease = held(clock)
    clock.now += 2.9
    assert lease.is_valid(1)
    clock.now += 0.1
    assert not lease.is_valid(1)


def test_a_heartbeat_that_arrived_renews_it_from_when_it_was_sent() -> None:
    clock = Clock()
    lease = held(clock)
    clock.now += 2
    lease.renew(1001.0, 1)
    clock.now = 1003.9
    assert lease.is_valid(1)
    clock.now = 1004.0
    assert not lease.is_valid(1)


def test_an_old_heartbeat_does_not_shorten_it() -> None:
    clock = Clock()
    lease = held(clock)
    lease.renew(990.0, 1)
    clock.now += 2.9
    assert lease.is_valid(1)


def test_what_has_lapsed_is_not_renewed_but_restored() -> None:
    clock = Clock()
    lease = held(clock)
    clock.now += 10
    lease.renew(clock.now, 1)
    assert not lease.is_valid(1)
    lease.restore(1)
    assert lease.is_valid(1)


def test_a_new_connection_ends_it_and_a_heartbeat_on_that_does_not_renew_it() -> None:
    clock = Clock()
    lease = held(clock)
    assert not lease.is_valid(2)
    lease.renew(clock.now, 2)
    assert not lease.is_valid(2)
    lease.restore(2)
    assert lease.is_valid(2) and not lease.is_valid(1)


def test_the_clock_of_a_real_one_goes_on() -> None:
    lease = PublishLease(3.0)
    before = lease.now()
    lease.restore(1)
    assert lease.is_valid(1)
    assert lease.now() >= before
