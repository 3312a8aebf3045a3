"""With API keys: who sees what, and keys only in headers. Against a server that enforces roles."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import httpx
import pytest

from controller.gateway.live.rights import VIEWS
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.live.viewers import (
    ADA,
    ADMIN,
    BOB,
    EVENTS,
    ORDERS,
    bearer,
    make_keys,
    order,
    refusal,
    viewing,
)
from tests.controller.gateway.long_answers import CHAT, LONG
from tests.processes import ClusterProcess

SECURED = True  # the gateway may ask for all that its views need

Keyed = tuple[GatewayProcess, dict[str, str]]


@pytest.fixture(scope="module")
def keyed(
    tiny_cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keyed]:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys = make_keys(file)
    with gateway_process(tiny_cluster.url, "--keys-file", str(file)) as process:
        yield process, keys


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer mlx-wrong"}, {"x-api-key": "x"}, {"cookie": "key=x"}]
)
def test_without_a_good_key_nobody_looks_or_orders(keyed: Keyed, headers: dict[str, str]) -> None:
    process, _ = keyed
    for answer in (
        httpx.get(process.url + EVENTS, headers=headers),
        httpx.post(process.url + ORDERS, headers=headers, json={"order": "pause"}),
    ):
        assert refusal(answer) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "name", ["key", "api_key", "api-key", "token", "authorization", "x-api-key"]
)
def test_a_key_in_the_address_opens_nothing(keyed: Keyed, name: str) -> None:
    process, keys = keyed
    for path in (EVENTS, ORDERS):
        for value in (keys[ADMIN], f"Bearer {keys[ADMIN]}"):
            method = "GET" if path == EVENTS else "POST"
            answer = httpx.request(method, process.url + path, params={name: value})
            assert refusal(answer) == (401, "invalid_api_key")


def test_an_admin_sees_all_views(keyed: Keyed) -> None:
    process, keys = keyed
    with viewing(process, headers=bearer(keys[ADMIN])) as viewer:
        name, session = viewer.next()
        assert (name, session["rights"], session["client"]) == ("session", "admin", "admin")
        assert session["views"] == list(VIEWS)
        viewer.until(lambda viewer: viewer.values.keys() >= {*VIEWS}, "all views")
        assert len(viewer.rows("machines")) == 2


def test_either_header_and_a_proxy_before_it_are_fine_with_a_key(keyed: Keyed) -> None:
    process, keys = keyed
    behind = {"x-forwarded-for": "10.0.0.1", "host": "mlx.example.com", "via": "1.1 proxy"}
    for headers in ({"x-api-key": keys[ADMIN]}, bearer(keys[ADMIN]) | behind):
        with viewing(process, "overview", headers=headers) as viewer:
            assert viewer.next()[1]["rights"] == "admin"


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"origin": "null"},
                                     {"sec-fetch-site": "cross-site"}])  # fmt: skip
def test_a_page_of_another_origin_may_not_even_with_an_admins_key(
    keyed: Keyed, headers: dict[str, str]
) -> None:
    process, keys = keyed
    both = bearer(keys[ADMIN]) | headers
    assert refusal(httpx.get(process.url + EVENTS, headers=both)) == (403, "not_allowed")
    sent = httpx.post(process.url + ORDERS, headers=both, json={"order": "pause"})
    assert refusal(sent) == (403, "not_allowed")


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "requests"])
def test_other_views_are_not_for_keys_without_admin(keyed: Keyed, view: str) -> None:
    process, keys = keyed
    asked = httpx.get(
        process.url + EVENTS, params={"views": f"requests,{view}"}, headers=bearer(keys[ADA])
    )
    assert refusal(asked) == (403, "not_allowed")
    assert view in asked.json()["error"]["message"]


def test_a_key_without_admin_sees_the_requests_of_its_client_and_no_others(keyed: Keyed) -> None:
    process, keys = keyed
    body = LONG | {"n": 24}

    def asking(client: str) -> AbstractContextManager[httpx.Response]:
        return httpx.stream(
            "POST", process.url + CHAT, json=body, headers=bearer(keys[client]), timeout=60
        )

    with (
        asking(ADA) as of_ada,
        asking(BOB) as of_bob,
        viewing(process, headers=bearer(keys[ADA])) as ada,
        viewing(process, "requests", headers=bearer(keys[ADMIN])) as admin,
    ):
        _, session = ada.next()
        assert session == {
            "rights": "own", "client": "ada", "version": session["version"], "views": ["requests"]
        }  # fmt: skip
        ids = {of_ada.headers["x-request-id"], of_bob.headers["x-request-id"]}
        admin.until(
            lambda viewer: {row["id"] for row in viewer.rows("requests")} >= ids, "both requests"
        )
        ada.until(lambda viewer: viewer.rows("requests"), "its own request")
        for _ in range(2):
            ada.next()
            assert {row["client"] for row in ada.rows("requests")} <= {"ada"}
            assert ada.values["requests"]["total"] <= 1
        assert ada.values.keys() == {"session", "requests"}


def test_a_key_without_admin_gives_no_order_but_to_cancel_its_own(keyed: Keyed) -> None:
    process, keys = keyed
    for fields in (
        {"order": "load", "model": "chat", "worker": "worker-1"},
        {"order": "pause"},
        {"order": "cancel", "client": "bob", "request_id": "r"},
        {"order": "cancel", "client": "admin", "request_id": "r"},
        {"order": "forget_session", "client": "ada", "session_id": "s", "worker": "worker-1"},
    ):
        assert refusal(order(process, keys[ADA], **fields)) == (403, "not_allowed")
    unknown = order(process, keys[ADA], order="cancel", client="ada", request_id="r")
    assert refusal(unknown) == (404, "not_found")
