"""Orders over HTTP to a real cluster, whose server enforces roles."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.live.viewers import (
    ADA,
    ADMIN,
    BOB,
    LIMIT_S,
    ORDERS,
    Viewer,
    bearer,
    make_keys,
    order,
    refusal,
    viewing,
)
from tests.controller.gateway.long_answers import CHAT, LONG, QUESTION
from tests.processes import ClusterProcess, cluster_process

SECURED = True  # the gateway may give these orders

_WORKER = "worker-1"
_SPARE = {"model": "spare", "worker": _WORKER}


@pytest.fixture(scope="module")
def two_models(tiny_model: Path) -> Iterator[ClusterProcess]:
    """One worker that holds two models, to which everything is done."""
    source = {"path": str(tiny_model)}
    settings = {
        "CLUSTER__SKILLS": json.dumps({"chat": ["tiny"], "code": ["spare"]}),
        "CLUSTER__MODELS": json.dumps({"tiny": source, "spare": source}),
        "CLUSTER__WORKER__MODELS": json.dumps(["tiny", "spare"]),
    }
    with cluster_process(settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.yaml"


@pytest.fixture(scope="module")
def keys(keys_file: Path) -> dict[str, str]:
    return make_keys(keys_file)


@pytest.fixture(scope="module")
def keyed(
    two_models: ClusterProcess, keys_file: Path, keys: dict[str, str]
) -> Iterator[GatewayProcess]:
    with gateway_process(two_models.url, "--keys-file", str(keys_file)) as process:
        yield process
        assert not process.logged("a request failed")


@pytest.fixture
def admin(keyed: GatewayProcess, keys: dict[str, str]) -> Iterator[Viewer]:
    """What an admin sees meanwhile."""
    with viewing(keyed, headers=bearer(keys[ADMIN])) as viewer:
        viewer.until(lambda viewer: viewer.rows("models"), "the models")
        yield viewer


def _model(viewer: Viewer, name: str = "spare") -> dict[str, Any]:
    (worker,) = viewer.tables["models"].rows[name]["workers"]
    return dict(worker)


def _until_warm(viewer: Viewer) -> None:
    viewer.until(lambda viewer: _model(viewer)["state"] == "warm", "it is warm")


def _done(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == {"ok", "message"} and answer.json()["ok"] is True
    return str(answer.json()["message"])


@pytest.mark.parametrize("who", [ADMIN, ADA])
def test_a_running_request_is_cancelled_by_an_admin_or_its_own_client(
    keyed: GatewayProcess, keys: dict[str, str], who: str
) -> None:
    with httpx.stream(
        "POST", keyed.url + CHAT, json=LONG | {"n": 64}, headers=bearer(keys[ADA]), timeout=60
    ) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        request_id = response.headers["x-request-id"]
        cancel = {"order": "cancel", "client": "ada", "request_id": request_id}
        assert refusal(order(keyed, keys[BOB], **cancel)) == (403, "not_allowed")
        assert _done(order(keyed, keys[who], **cancel)) == f"{request_id} is being cancelled"
        rest = list(lines)
    ends = [line for line in rest if '"finish_reason":"' in line]
    assert rest[-2] == "data: [DONE]" and len(ends) == 64
    assert not any('"finish_reason":"length"' in line for line in ends), "it ran to its end"
    assert _done(order(keyed, keys[who], **cancel)) == f"{request_id} has ended"


def test_a_request_that_nobody_knows_is_not_found(
    keyed: GatewayProcess, keys: dict[str, str]
) -> None:
    unknown = order(keyed, keys[ADMIN], order="cancel", client="ada", request_id="unknown")
    assert refusal(unknown) == (404, "not_found")


def test_a_model_is_unloaded_loaded_and_pinned_and_viewers_see_it(
    keyed: GatewayProcess, keys: dict[str, str], admin: Viewer
) -> None:
    _until_warm(admin)
    assert _done(order(keyed, keys[ADMIN], order="unload", **_SPARE)) == "worker-1 unloaded spare"
    admin.until(lambda viewer: _model(viewer)["state"] == "available", "it is unloaded")
    assert _done(order(keyed, keys[ADMIN], order="load", **_SPARE)) == "worker-1 loads spare"
    _until_warm(admin)
    for pinned, said in ((True, "pinned"), (False, "no longer pinned")):
        answer = order(keyed, keys[ADMIN], order="pin", pinned=pinned, **_SPARE)
        assert _done(answer) == f"spare is {said} on worker-1"
        admin.until(lambda viewer: _model(viewer)["pinned"] is pinned, said)  # noqa: B023
    # That it loads may be too short to be seen.
    told = ["worker-1 unloaded spare", "spare is warm on worker-1"]
    logged = [record["text"] for record in admin.records]
    assert [text for text in logged[logged.index(told[0]) :] if text in told] == told


def test_a_model_in_use_is_not_unloaded(keyed: GatewayProcess, keys: dict[str, str]) -> None:
    with httpx.stream(
        "POST", keyed.url + CHAT, json=LONG | {"n": 64}, headers=bearer(keys[ADA]), timeout=60
    ) as response:
        lines = response.iter_lines()  # unreferenced it would close the stream
        assert next(lines).startswith("data: ")
        refused = order(keyed, keys[ADMIN], order="unload", model="tiny", worker=_WORKER)
    assert refusal(refused) == (503, "model_in_use")
    assert refused.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"order": "load", "model": "spare", "worker": "nobody"}, 503, "nobody does not answer"),
        ({"order": "load", "model": "nonsense", "worker": _WORKER}, 404, "tiny"),
        ({"order": "unload", "model": "nonsense", "worker": _WORKER}, 404, "tiny"),
        ({"order": "pin", "model": "nonsense", "worker": _WORKER, "pinned": True}, 404, "tiny"),
        ({"order": "pin", "model": "spare", "worker": "nobody", "pinned": True}, 503, "nobody"),
        (
            {"order": "pin_session", "client": "ada", "session_id": "none", "worker": _WORKER,
             "pinned": True},
            503, "session",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_the_workers_own_words(
    keyed: GatewayProcess, keys: dict[str, str], fields: dict[str, Any], status: int, said: str
) -> None:
    refused = order(keyed, keys[ADMIN], **fields)
    assert refusal(refused)[0] == status, refused.text
    assert said in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", ["pause", "resume", "roll_back"])
def test_without_a_roll_out_there_is_nothing_to_order(
    keyed: GatewayProcess, keys: dict[str, str], name: str
) -> None:
    refused = order(keyed, keys[ADMIN], order=name)
    assert 400 <= refusal(refused)[0] < 500, refused.text


def test_a_session_is_seen_pinned_and_forgotten(
    keyed: GatewayProcess, keys: dict[str, str], admin: Viewer
) -> None:
    body = QUESTION | {"max_tokens": 8, "session_id": "talk"}
    answer = httpx.post(keyed.url + CHAT, json=body, headers=bearer(keys[ADA]), timeout=60)
    assert answer.status_code == 200
    key = f"{_WORKER}/ada/talk"
    session = {"client": "ada", "session_id": "talk", "worker": _WORKER}
    admin.until(lambda viewer: key in viewer.tables["sessions"].rows, "the session")
    pinned = order(keyed, keys[ADMIN], order="pin_session", pinned=True, **session)
    assert _done(pinned) == "session talk is pinned"
    admin.until(lambda viewer: viewer.tables["sessions"].rows[key]["pinned"], "it is pinned")
    forgotten = order(keyed, keys[ADMIN], order="forget_session", **session)
    assert _done(forgotten) == "session talk is forgotten"
    admin.until(lambda viewer: key not in viewer.tables["sessions"].rows, "it is gone")


# Bodies.

_JSON = {"content-type": "application/json"}


def _sent(
    keyed: GatewayProcess, key: str, body: bytes, headers: dict[str, str] = _JSON
) -> httpx.Response:
    return httpx.post(
        keyed.url + ORDERS, content=body, headers=bearer(key) | headers, timeout=LIMIT_S
    )


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b'"pause"', b"{}", b"no json", b'{"order": "dance"}', b'{"order": 5}',
        b'{"worker": "worker-1"}', b'{"order": "drain", "worker": "worker-1"}',
        b'{"order": "pin", "model": "spare", "worker": "worker-1", "pinned": NaN}',
        b'{"order": "pin", "model": "spare", "worker": "worker-1", "pinned": 1}',
        b'{"order": "load", "model": "spare", "worker": "worker-1.control.drain"}',
        b'{"order": "load", "model": "spare", "worker": "*"}',
        b'{"order": "cancel", "client": ">", "request_id": "r"}',
        b'{"order": "pause", "order": "resume"}', b'{"order": "pause", "version": 1}',
        b'{"order": ' * 1000 + b"1" + b"}" * 1000, b"[" * 16_000, b"\xff\xfe", b"\x00" * 100,
    ],
)  # fmt: skip
def test_whatever_is_no_order_is_refused_with_a_sentence(
    keyed: GatewayProcess, keys: dict[str, str], body: bytes
) -> None:
    assert refusal(_sent(keyed, keys[ADMIN], body)) == (400, "invalid_request")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json"]
)
def test_what_a_form_of_another_page_could_send_is_no_order(
    keyed: GatewayProcess, keys: dict[str, str], kind: str
) -> None:
    answer = _sent(keyed, keys[ADMIN], b'{"order": "pause"}', {"content-type": kind})
    assert refusal(answer) == (400, "invalid_request")


def test_huge_bodies_are_refused_also_if_they_are_small_on_the_way(
    keyed: GatewayProcess, keys: dict[str, str]
) -> None:
    huge = b'{"order": "%s"}' % (b"x" * 1_000_000)
    assert refusal(_sent(keyed, keys[ADMIN], huge)) == (413, "payload_too_large")
    packed = _sent(keyed, keys[ADMIN], gzip.compress(huge), _JSON | {"content-encoding": "gzip"})
    assert refusal(packed) == (413, "payload_too_large")
    other = _sent(keyed, keys[ADMIN], b"{}", _JSON | {"content-encoding": "br"})
    assert refusal(other) == (415, "unsupported_encoding")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_orders_are_posted(keyed: GatewayProcess, keys: dict[str, str], method: str) -> None:
    answer = httpx.request(method, keyed.url + ORDERS, headers=bearer(keys[ADMIN]))
    assert refusal(answer) == (405, "method_not_allowed")
