"""The gateway and its own description: what it says that it takes and answers is what it does.

Schemathesis makes requests from the description: each limit of each field from both sides, and
random ones that it allows and forbids. `pytest --all --seed 7` makes more and others.
"""

from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import positive_data_acceptance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.controller.gateway.gateway_process import GatewayProcess
from tests.tiers import examples

_HANGS_AFTER_S = 60
_MOST = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4, "n": 2}
_LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
"""What those are called whose default is much."""
_MOST_PROMPTS = 2
_LONG_ENOUGH_MS = 120_000
_UNSERVED = {
    "functions", "function_call", "audio", "modalities", "web_search_options", "mcp_servers",
    "echo", "suffix", "best_of", "background", "conversation",
    "compaction", "thread",
}  # fmt: skip
_UNSERVED_OF_RESPONSES = {"prompt"}
_LONG_NAME = 16  # characters, of models that are left unknown
_ASKING = [
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens",
]  # fmt: skip
_EMBEDDING = ["/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score"]
"""No model of this cluster embeds: tests/test_embeddings.py has those that are served."""
_SIMPLE = ["/", "/ui", "/v1/models", "/v1/models/{name}", "/health", "/ready", "/metrics"]
_CLUSTER = ["/cluster/orders", "/ui/{file}"]
_ENDLESS = ["/cluster/events"]
"""Streams that end only when their reader leaves: tests/controller/gateway/live has them."""
_STORED = ["/v1/responses/{id}", "/v1/responses/{id}/input_items"]


_SETTINGS = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def description(gateway: GatewayProcess, seed: int) -> OpenApiSchema:
    """What the live gateway says of itself, and how to make requests from it."""
    schema: OpenApiSchema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    schema.config.seed = seed
    schema.config.generation.update(max_examples=examples(12, 250))
    # Of what the description forbids it expects to be rejected, but not that it is too large.
    rejection = schema.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "413"]
    return schema


@pytest.fixture(scope="module")
def session() -> requests.Session:
    """All requests on one connection: what one of them leaves behind would disturb the next."""
    return requests.Session()


def test_the_description_is_valid_openapi(description: OpenApiSchema) -> None:
    assert description.raw_schema["openapi"] == "3.1.0"
    description.validate()
    for shape in description.raw_schema["components"]["schemas"].values():
        Draft202012Validator.check_schema(shape)
    assert set(description.raw_schema["paths"]) == {
        *_ASKING, *_EMBEDDING, *_SIMPLE, *_STORED, *_CLUSTER, *_ENDLESS, "/openapi.json"
    }  # fmt: skip


@pytest.mark.parametrize("path", [*_ASKING, *_EMBEDDING, *_SIMPLE, *_STORED, *_CLUSTER])
def test_every_request_is_answered_as_described(
    description: OpenApiSchema, session: requests.Session, path: str
) -> None:
    """No hang, no 5xx, only statuses and kinds of content that are described, and errors for all
    that the description forbids. That whatever it allows is served is not asked: it cannot say
    which models there are, or which fields exclude each other. But much of it is."""
    served = 0

    def check(case: schemathesis.Case[Any]) -> None:
        nonlocal served
        case.body = bounded(path, case.body)
        response = _ask(session, case)
        if b"not supported yet" in response.content:
            case.body = served_only(path, case.body)
            response = _ask(session, case)
        served += response.status_code == 200

    # Not by Schemathesis' own decorator, which does not work with this version of pytest.
    for made in get_all_tests(
        schema=description.include(path=path), test_func=check, settings=_SETTINGS, given_kwargs={}
    ):
        assert isinstance(made, Ok)
        _, ask_all = made.ok()
        ask_all()
    assert served >= (20 if path in _ASKING else 1 if path in _SIMPLE else 0)


def _ask(session: requests.Session, case: schemathesis.Case[Any]) -> Response:
    response = case.call(session=session, timeout=_HANGS_AFTER_S)
    case.validate_response(response, excluded_checks=[positive_data_acceptance])
    return response


def bounded(path: str, body: Any) -> Any:
    """The same request, except that it asks for less work: few tokens and choices, in time enough
    for them, and of a model that exists. Whatever would be refused stays as it is, but for 4.0,
    which JSON Schema takes for an integer and the gateway does not."""
    body = _without_points(body)
    if not isinstance(body, dict):
        return body
    less = dict(body)
    for name, most in _MOST.items():
        if _is_count(body.get(name)):
            less[name] = min(body[name], most)
    limit = _LIMITS.get(path)
    if limit is not None and all(body.get(name) is None for name in _MOST if name != "n"):
        less[limit] = _MOST[limit]
    match body.get("prompt"):
        case [str() | list(), *_] as prompts:
            less["prompt"] = prompts[:_MOST_PROMPTS]
    if _is_count(body.get("timeout_ms")):
        less["timeout_ms"] = max(body["timeout_ms"], _LONG_ENOUGH_MS)
    model = body.get("model")
    if isinstance(model, str) and 0 < len(model) < _LONG_NAME:
        less["model"] = "chat"
    return less


def served_only(path: str, body: Any) -> dict[str, Any]:
    """The same request without what is known and not served yet."""
    unserved = _UNSERVED | (_UNSERVED_OF_RESPONSES if path == "/v1/responses" else set())
    kept = {name: value for name, value in body.items() if name not in unserved}
    if isinstance(messages := body.get("messages"), list):
        kept["messages"] = [
            {
                name: [part for part in value if part["type"] == "text"]
                if name == "content" and isinstance(value, list)
                else value
                for name, value in message.items()
                if name not in unserved
            }
            for message in messages
            if message["role"] != "function"
        ] or [{"role": "user", "content": "Hello!"}]
    return kept


def _without_points(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < 2**63:
            return int(value)
        case list():
            return [_without_points(item) for item in value]
        case dict():
            return {name: _without_points(item) for name, item in value.items()}
    return value


def _is_count(value: Any) -> bool:
    """Whether a field that counts something would take it."""
    return type(value) is int and 0 < value <= 2**31
