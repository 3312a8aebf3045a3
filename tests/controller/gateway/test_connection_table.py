"""How many connections there may be, and which one makes room."""

import pytest

from controller.gateway.connection_table import ConnectionTable, counted_address


class _Connection:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def _open(table: ConnectionTable, count: int, host: str = "10.0.0.1") -> list[_Connection]:
    connections = [_Connection() for _ in range(count)]
    assert [table.admit(connection, host) for connection in connections] == [None] * count
    return connections


def test_a_new_connection_takes_the_place_of_the_one_that_has_waited_longest() -> None:
    table = ConnectionTable(3, 3)
    first, second, third = _open(table, 3)
    table.set_waiting(first, False)
    table.set_waiting(first, True)  # was answered meanwhile
    (fourth,) = _open(table, 1, "10.0.0.2")
    assert [each.aborted for each in (first, second, third, fourth)] == [False, True, False, False]


def test_a_connection_that_is_answered_does_not_make_room() -> None:
    table = ConnectionTable(2, 2)
    answered = _open(table, 2)
    for each in answered:
        table.set_waiting(each, False)
    assert "2 connections" in (table.admit(_Connection(), "10.0.0.2") or "")
    assert not any(each.aborted for each in answered)
    table.remove(answered[0])
    _open(table, 1, "10.0.0.2")


def test_one_address_takes_places_of_its_own_only() -> None:
    table = ConnectionTable(10, 2)
    others = _open(table, 1, "10.0.0.2")
    own = _open(table, 2)
    table.set_waiting(own[1], False)
    (newest,) = _open(table, 1)
    assert [each.aborted for each in (*others, *own, newest)] == [False, True, False, False]
    table.set_waiting(newest, False)
    assert "one address" in (table.admit(_Connection(), "10.0.0.1") or "")
    _open(table, 1, "10.0.0.3")


def test_closed_connections_are_not_counted() -> None:
    table = ConnectionTable(2, 2)
    for _ in range(3):
        for each in _open(table, 2):
            table.remove(each)
            table.remove(each)
            assert not each.aborted


def test_only_some_refused_connections_are_kept_for_their_error() -> None:
    table = ConnectionTable(1, 1)
    (only,) = _open(table, 1)
    table.set_waiting(only, False)
    refused = [_Connection() for _ in range(100)]
    kept = [each for each in refused if table.admit(each, "") and table.refuse(each)]
    assert 0 < len(kept) < 100
    table.set_waiting(kept[0], True)
    assert table.admit(_Connection(), "10.0.0.1") is not None, "it gives no place away"
    table.remove(kept[0])
    assert table.refuse(_Connection())


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2::5", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::5", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_host_is_its_network(host: str, counted: str) -> None:
    assert counted_address(host) == counted
