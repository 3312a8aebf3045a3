"""How many viewers a client may have, and all clients together."""

import contextlib

import pytest

from controller.gateway.api_keys import ANONYMOUS, ApiKey
from controller.gateway.live.rights import Caller
from controller.gateway.live.viewer_limits import (
    MAX_VIEWERS,
    MAX_VIEWERS_OF_CLIENT,
    RESERVED_FOR_ADMINS,
    ViewerLimits,
)
from shared.errors import Unavailable
from shared.ids import ClientName


def _caller(client: str, *, admin: bool = False) -> Caller:
    key = ApiKey(client=ClientName(client), sha256="0" * 64, admin=admin)
    return Caller(key, "admin" if admin else "own")


def _may(limits: ViewerLimits, caller: Caller) -> bool:
    try:
        limits.check(caller)
    except Unavailable as error:
        assert "maximum" in error.message
        return False
    return True


def _watch_as_much_as_possible(
    limits: ViewerLimits, caller: Caller, watching: contextlib.ExitStack
) -> int:
    count = 0
    while _may(limits, caller):
        watching.enter_context(limits.counted(caller))
        count += 1
    return count


@pytest.mark.parametrize("admin", [False, True])
def test_one_client_takes_its_own_places_only(admin: bool) -> None:
    limits = ViewerLimits()
    with contextlib.ExitStack() as watching:
        taken = _watch_as_much_as_possible(limits, _caller("ada", admin=admin), watching)
        assert taken == MAX_VIEWERS_OF_CLIENT
        assert _may(limits, _caller("bob")) and _may(limits, _caller("admin", admin=True))
    assert _may(limits, _caller("ada", admin=admin))


def test_all_keys_without_admin_together_leave_places_for_admins() -> None:
    limits = ViewerLimits()
    with contextlib.ExitStack() as watching:
        taken = sum(
            _watch_as_much_as_possible(limits, _caller(f"c{number}"), watching)
            for number in range(MAX_VIEWERS)
        )
        assert taken == MAX_VIEWERS - RESERVED_FOR_ADMINS
        assert not _may(limits, _caller("new"))
        admins = sum(
            _watch_as_much_as_possible(limits, _caller(f"a{number}", admin=True), watching)
            for number in range(MAX_VIEWERS)
        )
        assert admins == RESERVED_FOR_ADMINS
    assert _may(limits, _caller("new"))


def test_without_keys_only_all_together_are_limited() -> None:
    limits = ViewerLimits()
    with contextlib.ExitStack() as watching:
        local = Caller(ANONYMOUS, "read")
        assert _watch_as_much_as_possible(limits, local, watching) == MAX_VIEWERS
