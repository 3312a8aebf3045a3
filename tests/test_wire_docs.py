"""`docs/wire.md`, its schemas and its golden messages are what the code speaks."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from pydantic import BaseModel
from referencing.jsonschema import DRAFT202012

from shared.codec import decode, encode
from shared.messages import stream
from shared.subjects import SUBJECTS
from tests import wire_docs
from tests.asking import Asker
from tests.processes import ClusterProcess

MESSAGES = {kind.__name__: kind for kind in wire_docs.MESSAGES}
STREAM_SCHEMA = json.loads((wire_docs.SCHEMAS / "StreamMessage.json").read_text())


def golden(name: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads((wire_docs.GOLDEN / f"{name}.json").read_text())
    return messages


def test_the_page_is_as_make_docs_writes_it() -> None:
    page = wire_docs.PAGE.read_text()
    assert wire_docs.page_text(page) == page


@pytest.mark.parametrize("kind", wire_docs.MESSAGES, ids=lambda kind: kind.__name__)
def test_each_schema_is_as_make_docs_writes_it(kind: type[BaseModel]) -> None:
    file = wire_docs.SCHEMAS / f"{kind.__name__}.json"
    assert file.read_text() == wire_docs.schema_text(kind)


def test_every_file_of_schemas_and_golden_messages_belongs_to_a_message() -> None:
    known = {*MESSAGES, "StreamMessage"}
    files: list[Path] = [*wire_docs.SCHEMAS.iterdir(), *wire_docs.GOLDEN.iterdir()]
    assert {file.stem for file in files} <= known


@pytest.mark.parametrize(
    "name", [f.stem for f in wire_docs.GOLDEN.iterdir() if f.stem != "StreamMessage"]
)
def test_golden_messages_are_valid_and_come_back_the_same(name: str) -> None:
    kind = MESSAGES[name]
    schema = json.loads((wire_docs.SCHEMAS / f"{name}.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for message in golden(name):
        validator.validate(message)
        decoded = decode(kind, orjson.dumps(message))
        assert decode(kind, encode(decoded)) == decoded
        again = orjson.loads(decoded.__pydantic_serializer__.to_json(decoded, exclude_unset=True))
        assert again == message


def test_golden_stream_messages_are_valid_and_come_back_the_same() -> None:
    validator = jsonschema.Draft202012Validator(STREAM_SCHEMA)
    for message in golden("StreamMessage"):
        validator.validate(message)
        (decoded,) = stream.decode(orjson.dumps(message))
        assert stream.to_dict(decoded) == message
    together = {"messages": golden("StreamMessage")}
    validator.validate(together)
    decoded_all = stream.decode(orjson.dumps(together))
    assert orjson.loads(stream.encode_multiplexed(decoded_all)) == together


def test_every_message_of_the_subject_table_has_a_schema() -> None:
    plain = {"empty", "none", "a stream of StreamMessage", "ResendState, then the chunks"}
    plain |= {"PubAck"}  # JetStream's own
    orders = {"ControlOrder", "RolloutOrder"}  # one of the orders, by the verb in the subject
    for subject in SUBJECTS:
        for name in (subject.message, subject.answer):
            assert name in {*MESSAGES, "StreamMessage"} | plain | orders, subject


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a stream", "max_tokens": 12, "logprobs": 2},
        {"prompt": ["two", "prompts"], "n": 2, "max_tokens": 5},
        {"prompt": "one message", "stream": False, "max_tokens": 5},
        {"prompt": ["one", "message"], "stream": False, "max_tokens": 5},
        {"prompt": "many in one", "multiplex": True, "max_tokens": 5},
        {"prompt": "wrong", "temperature": -1},
        {"prompt": "unknown", "model": "nobody"},
    ],
    ids=lambda body: str(body["prompt"]),
)
async def test_what_a_cluster_really_sends_is_valid(
    tiny_cluster: ClusterProcess, body: dict[str, Any]
) -> None:
    async with Asker.connect(tiny_cluster) as asker:
        (answer,) = await asker.answers([orjson.dumps(body)])
    validator = jsonschema.Draft202012Validator(STREAM_SCHEMA)
    for message in answer.arrived:
        validator.validate(message)


def test_schemas_are_of_the_draft_they_claim() -> None:
    DRAFT202012.create_resource(STREAM_SCHEMA)
    jsonschema.Draft202012Validator.check_schema(STREAM_SCHEMA)
