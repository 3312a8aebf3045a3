"""What each client may store: its own oldest responses make room for its new ones."""

import pytest

from controller.gateway.responses import client_shares
from controller.gateway.responses.client_shares import LEAST_BYTES, ClientShares
from shared.ids import ClientName

_ADA, _BOB = ClientName("ada"), ClientName("bob")
_SHARE = 100 * LEAST_BYTES
_AGE_S = 1000.0


def _shares() -> ClientShares:
    return ClientShares(_SHARE, _AGE_S)


def test_the_clients_own_oldest_ones_go_first() -> None:
    shares = _shares()
    for number in range(4):
        assert shares.reserve(_ADA, f"a{number}", 25 * LEAST_BYTES) == (True, [])
    assert shares.reserve(_BOB, "b", _SHARE) == (True, [])
    assert shares.reserve(_ADA, "a4", 20 * LEAST_BYTES) == (True, ["a0"])
    assert shares.reserve(_ADA, "a5", 50 * LEAST_BYTES) == (True, ["a1", "a2"])


def test_what_is_larger_than_the_share_changes_nothing() -> None:
    shares = _shares()
    assert shares.reserve(_ADA, "a", 10 * LEAST_BYTES) == (True, [])
    assert shares.reserve(_ADA, "large", _SHARE + 1) == (False, [])
    assert shares.reserve(_ADA, "large", _SHARE) == (False, []), (
        "what is left of others needs some room"
    )
    assert shares.reserve(_ADA, "b", 90 * LEAST_BYTES) == (True, [])


def test_deleted_ones_make_room_but_for_what_is_left_of_them() -> None:
    shares = _shares()
    assert shares.reserve(_ADA, "a", 99 * LEAST_BYTES) == (True, [])
    shares.release(_ADA, "a")
    shares.release(_ADA, "a")
    shares.release(_ADA, "unknown")
    shares.release(_BOB, "a")
    assert shares.reserve(_ADA, "b", 99 * LEAST_BYTES) == (True, [])
    assert shares.reserve(_ADA, "c", 1) == (True, ["b"])


def test_many_that_were_deleted_fill_the_share_until_they_expire() -> None:
    shares = _shares()
    for number in range(100):
        assert shares.reserve(_ADA, str(number), 1, now=0.0) == (True, [])
        shares.release(_ADA, str(number))
    assert shares.reserve(_ADA, "more", 1, now=_AGE_S) == (False, [])
    assert shares.reserve(_ADA, "more", _SHARE, now=_AGE_S + 1) == (True, [])


def test_expired_ones_are_not_counted() -> None:
    shares = _shares()
    assert shares.reserve(_ADA, "a", _SHARE, now=0.0) == (True, [])
    assert shares.reserve(_ADA, "b", _SHARE, now=_AGE_S + 1) == (True, [])


def test_of_many_small_ones_some_make_room_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_shares, "_MAX_DELETED", 3)
    shares = ClientShares(_SHARE, _AGE_S)
    for number in range(9):
        shares.reserve(_ADA, f"a{number}", 11 * LEAST_BYTES)
    assert shares.reserve(_ADA, "large", 75 * LEAST_BYTES) == (False, ["a0", "a1", "a2"])
    assert shares.reserve(_ADA, "large", 75 * LEAST_BYTES) == (False, ["a3", "a4", "a5"])
    assert shares.reserve(_ADA, "large", 75 * LEAST_BYTES) == (True, ["a6", "a7"])
