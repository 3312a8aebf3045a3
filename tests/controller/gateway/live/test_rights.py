"""The rights of callers: which views they see, and which orders are accepted."""

from typing import Any

import orjson
import pytest

from controller.gateway.api_keys import ANONYMOUS, ApiKey, hash_key
from controller.gateway.live.event_stream import requested_views
from controller.gateway.live.orders import OrderBody, check_allowed
from controller.gateway.live.rights import VIEWS, Caller, Rights, caller_of
from controller.gateway.request_body import parse_body
from shared.errors import ClusterError, InvalidRequest
from shared.ids import ClientName

_HERE = {"host": "127.0.0.1:8000"}
_FORWARDING = [
    "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
]  # fmt: skip


def _key(*, admin: bool = False, client: str = "ada") -> ApiKey:
    return ApiKey(client=ClientName(client), sha256=hash_key("x"), admin=admin)


def _rights(
    headers: dict[str, str], peer: str | None = "127.0.0.1", *, key: ApiKey | None = None
) -> str:
    """With a key where keys are required, else without; the refusal's code."""
    try:
        return caller_of(key or ANONYMOUS, headers, peer, requires_key=key is not None).rights
    except ClusterError as error:
        assert "gateway keys" in error.message
        return error.code


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1"])
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:80", "[::1]", "[::1]:8000"],
)  # fmt: skip
def test_without_keys_programs_of_this_machine_may_look(peer: str, host: str) -> None:
    assert _rights({"host": host}, peer) == "read"


@pytest.mark.parametrize(
    "peer",
    ["192.168.1.5", "10.0.0.1", "0.0.0.0", "fe80::1", "2001:db8::1", "::ffff:10.0.0.1", "::",
     "testclient", "", None],
)  # fmt: skip
def test_without_keys_other_machines_may_not(peer: str | None) -> None:
    assert _rights(_HERE, peer) == "not_allowed"


@pytest.mark.parametrize("name", _FORWARDING)
@pytest.mark.parametrize("value", ["", "127.0.0.1", "for=127.0.0.1"])
def test_without_keys_nobody_behind_a_proxy_may(name: str, value: str) -> None:
    assert _rights({**_HERE, name: value}) == "not_allowed"


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "attacker.example:8000", "127.0.0.1.attacker.example", "192.168.1.5:8000",
     "localhost.attacker.example", "0.0.0.0:8000", "", "[", "[::1", "::1", "127.0.0.1:8000@evil",
     "user@evil:8000", "evil/127.0.0.1", "evil#127.0.0.1", "evil?127.0.0.1", "127.0.0.1 evil",
     "\\127.0.0.1"],
)  # fmt: skip
def test_without_keys_a_host_header_must_name_this_machine(host: str) -> None:
    """Else a page whose name resolves to this machine could read everything."""
    assert _rights({"host": host}) == "not_allowed"


def test_without_keys_a_host_header_is_required() -> None:
    assert _rights({}) == "not_allowed"


_ORIGINS = [
    ({"origin": "http://127.0.0.1:8000"}, True),
    ({"origin": "https://127.0.0.1:8000"}, True),
    ({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8000"}, True),
    ({"sec-fetch-site": "none"}, True),
    ({"origin": "http://127.0.0.1:8001"}, False),
    ({"origin": "http://127.0.0.1"}, False),
    ({"origin": "http://localhost:8000"}, False),
    ({"origin": "http://attacker.example"}, False),
    ({"origin": "http://127.0.0.1:8000.attacker.example"}, False),
    ({"origin": "http://x@127.0.0.1:8000"}, False),
    ({"origin": "http://127.0.0.1:8000/"}, False),
    ({"origin": "null"}, False),
    ({"origin": ""}, False),
    ({"origin": "http://["}, False),
    ({"origin": "file://127.0.0.1:8000"}, False),
    ({"sec-fetch-site": "cross-site"}, False),
    ({"sec-fetch-site": "same-site"}, False),
    ({"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8000"}, False),
    ({"sec-fetch-site": "anything"}, False),
]


@pytest.mark.parametrize("key", [None, _key(admin=True)], ids=["no keys", "admin"])
@pytest.mark.parametrize(("headers", "allowed"), _ORIGINS)
def test_pages_of_other_origins_may_not_also_not_with_a_key(
    headers: dict[str, str], allowed: bool, key: ApiKey | None
) -> None:
    assert (_rights({**_HERE, **headers}, key=key) != "not_allowed") is allowed


@pytest.mark.parametrize("host", ["", "127.0.0.1:8000"])
def test_an_origin_that_is_null_is_not_that_of_an_empty_host(host: str) -> None:
    assert _rights({"host": host, "origin": "null"}, key=_key(admin=True)) == "not_allowed"


@pytest.mark.parametrize("name", ["x-none", *_FORWARDING])
@pytest.mark.parametrize("peer", ["127.0.0.1", "10.0.0.1", None])
def test_where_keys_are_required_the_key_decides_from_wherever_it_comes(
    name: str, peer: str | None
) -> None:
    headers = {"host": "mlx.example.com", name: "10.0.0.1"}
    assert _rights(headers, peer, key=_key(admin=True)) == "admin"
    assert _rights(headers, peer, key=_key()) == "own"


def test_without_keys_it_is_the_local_client_who_looks() -> None:
    caller = caller_of(ANONYMOUS, _HERE, "127.0.0.1", requires_key=False)
    assert (caller.key.client, caller.views) == ("local", VIEWS)


# Views.


def _caller(rights: Rights) -> Caller:
    return Caller(ANONYMOUS if rights == "read" else _key(admin=rights == "admin"), rights)


@pytest.mark.parametrize(
    ("rights", "query", "views"),
    [
        ("admin", None, VIEWS),
        ("read", None, VIEWS),
        ("own", None, ("requests",)),
        ("admin", "log,overview,log", ("log", "overview")),
        ("own", "requests", ("requests",)),
        ("admin", "", ()),
        ("admin", ",,", ()),
    ],
)
def test_a_viewer_gets_the_views_that_it_names_or_all_that_it_may_see(
    rights: Rights, query: str | None, views: tuple[str, ...]
) -> None:
    assert requested_views(query, _caller(rights)) == views


@pytest.mark.parametrize("query", ["nonsense", "Overview", " log", "overview,x" * 2000, "../log"])
def test_views_that_do_not_exist_are_refused_by_name(query: str) -> None:
    for rights in ("admin", "own", "read"):
        with pytest.raises(InvalidRequest) as caught:
            requested_views(query, _caller(rights))
        assert caught.value.param == "views" and "overview" in caught.value.message
        assert len(caught.value.message) < 300


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "requests"])
def test_a_key_without_admin_sees_only_its_requests(view: str) -> None:
    for query in (view, f"requests,{view}"):
        with pytest.raises(ClusterError) as caught:
            requested_views(query, _caller("own"))
        assert caught.value.code == "not_allowed" and view in caught.value.message


# Orders.

ORDERS: list[dict[str, Any]] = [
    {"order": "cancel", "client": "ada", "request_id": "r"},
    {"order": "cancel", "client": "bob", "request_id": "r"},
    {"order": "load", "model": "m", "worker": "mac"},
    {"order": "unload", "model": "m", "worker": "mac"},
    {"order": "pin", "model": "m", "worker": "mac", "pinned": True},
    {"order": "pause"},
    {"order": "resume"},
    {"order": "roll_back"},
    {"order": "pin_session", "client": "ada", "session_id": "s", "worker": "mac", "pinned": False},
    {"order": "forget_session", "client": "ada", "session_id": "s", "worker": "mac"},
]


def _allowed(order: dict[str, Any], rights: Rights) -> bool:
    body, _ = parse_body(OrderBody, orjson.dumps(order), ignore_unknown=False)
    try:
        check_allowed(body.root, _caller(rights))
    except ClusterError as error:
        assert error.code == "not_allowed"
        return False
    return True


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order['order']}-{len(order)}")
def test_admins_give_all_orders_others_cancel_their_own_and_without_keys_nobody_gives_any(
    order: dict[str, Any],
) -> None:
    own = order["order"] == "cancel" and order["client"] == "ada"
    assert _allowed(order, "admin")
    assert _allowed(order, "own") is own
    assert not _allowed(order, "read")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"5", b'"cancel"', b"{}", b"no json", b'{"order": null}',
        b'{"order": 5}', b'{"order": "dance"}', b'{"order": ["pause"]}',
        b'{"order": "drain", "worker": "mac"}', b'{"order": "Pause"}', b'{"order": "pause "}',
        b'{"order": "pause", "version": 3}', b'{"client": "ada", "request_id": "r"}',
        b'{"order": "cancel", "client": "ada"}',
        b'{"order": "cancel", "client": "a.b", "request_id": "r"}',
        b'{"order": "cancel", "client": "*", "request_id": "r"}',
        b'{"order": "cancel", "client": ">", "request_id": "r"}',
        b'{"order": "cancel", "client": "", "request_id": "r"}',
        b'{"order": "cancel", "client": "ada", "request_id": "r s"}',
        b'{"order": "cancel", "client": "ada", "request_id": 5}',
        b'{"order": "cancel", "client": "ada", "request_id": "r", "worker": "mac"}',
        b'{"order": "load", "model": "m", "worker": "mac.control.drain"}',
        b'{"order": "load", "model": "m", "worker": "mac\\nx"}',
        b'{"order": "load", "model": "", "worker": "mac"}',
        b'{"order": "load", "model": NaN, "worker": "mac"}',
        b'{"order": "load", "model": null, "worker": "mac"}',
        b'{"order": "load", "model": "m", "worker": "mac", "worker": "mini"}',
        b'{"order": "pin", "model": "m", "worker": "mac", "pinned": 1}',
        b'{"order": "pin", "model": "m", "worker": "mac", "pinned": "true"}',
        b'{"order": "pin", "model": "m", "worker": "mac", "pinned": NaN}',
        b'{"order": "pin", "model": "m", "worker": "mac"}',
        b'{"order": "forget_session", "client": "ada", "session_id": "", "worker": "mac"}',
        b'{"order": "load", "model": "\\ud800", "worker": "mac"}',
        b'{"order": "load", "model": "\xff", "worker": "mac"}',
        b'{"order": "load", "model": "%s", "worker": "mac"}' % (b"x" * 1001),
        b'{"order": ' * 1000 + b"1" + b"}" * 1000,
        b"[" * 10_000, b'{"order":"pause"}{"order":"pause"}',
    ],
)  # fmt: skip
def test_whatever_is_no_order_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(OrderBody, body, ignore_unknown=False)
    assert 5 < len(caught.value.message) < 500
