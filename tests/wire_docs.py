"""Writes what `docs/wire.md` can take from the code: tables, and one JSON Schema a message.

    python -m tests.wire_docs        (make docs)

A test checks that the files are as this writes them.
"""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from shared.codec import json_schema
from shared.errors import ERROR_CODES
from shared.messages import (
    control,
    controller_report,
    dispatch,
    events,
    files,
    health,
    json_bounds,
    logs,
    request,
    request_events,
    request_list,
    rollout,
    routes,
)
from shared.subjects import SUBJECTS

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "wire.md"
SCHEMAS = DOCS / "schemas"
GOLDEN = DOCS / "golden"

MESSAGES: tuple[type[BaseModel], ...] = (
    request.InferenceRequest,
    control.RequestQuery,
    control.RequestState,
    request_list.RequestListQuery,
    request_list.RequestList,
    control.ResendQuery,
    control.ResendState,
    control.CancelRequest,
    control.LoadModel,
    control.UnloadModel,
    control.ListModels,
    control.PinModel,
    control.ListRequests,
    control.DrainWorker,
    control.ConfigureWorker,
    control.ClaimWorker,
    control.TellContents,
    control.ListSessions,
    control.TellSession,
    control.ForgetSession,
    control.PinSession,
    control.TellKept,
    control.ControlReply,
    dispatch.DispatchBatch,
    dispatch.DispatchReply,
    dispatch.Transfer,
    dispatch.TransferReply,
    routes.RouteAnswer,
    rollout.ApplyRollout,
    rollout.PlanRollout,
    rollout.ShowRollout,
    rollout.PauseRollout,
    rollout.ResumeRollout,
    rollout.RollBack,
    rollout.RolloutReply,
    rollout.RolloutState,
    rollout.Version,
    files.FindFiles,
    files.FilesOffer,
    events.WorkerEvent,
    events.KeptPrefixes,
    events.ControllerEvent,
    controller_report.LeaseRecord,
    request_events.RequestEvents,
    health.ControllerHealth,
    health.WorkerHealth,
    health.ClusterHealth,
    logs.LogRecord,
    logs.RecentLogsQuery,
    logs.RecentLogs,
)
"""All but StreamMessage, whose schema is written by hand: its classes are not its JSON."""


def subject_table() -> str:
    rows = ["| subject | from | to | carries | answer |", "|---|---|---|---|---|"]
    rows += [
        f"| `{s.pattern}` | {s.sender} | {s.receiver} | {_type(s.message)} | {_type(s.answer)} |"
        for s in SUBJECTS
    ]
    return "\n".join(rows)


def error_table() -> str:
    rows = ["| code | retryable | meaning |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {'yes' if code.retryable else 'no'} | {code.meaning} |"
        for name, code in ERROR_CODES.items()
    ]
    return "\n".join(rows)


def bounds_table() -> str:
    rows = [
        ("objects and lists inside one another", json_bounds.MAX_DEPTH),
        ("objects and lists", json_bounds.MAX_CONTAINERS),
        ("messages, parts, calls and tools (objects in lists)", json_bounds.MAX_LISTED_OBJECTS),
        ("values in objects and lists; most can only be token ids", json_bounds.MAX_VALUES),
        ("strings, keys included", json_bounds.MAX_STRINGS),
        ("keys of one object", json_bounds.MAX_KEYS),
        ("characters of a key", json_bounds.MAX_KEY_CHARACTERS),
        ("bits of an integer, with its sign", 64),
        ("bytes of a query: `cancel`, `status`, `resend`, a list", json_bounds.MAX_QUERY_BYTES),
    ]
    lines = [f"| {what} | {bound:,} |" for what, bound in rows]
    return "\n".join(["| what | bound |", "|---|---|", *lines])


def request_table() -> str:
    """The fields of a request with their types and defaults."""
    schema = json_schema(request.InferenceRequest)
    rows = ["| field | type | default |", "|---|---|---|"]
    for name, field in schema["properties"].items():
        default = json.dumps(field["default"]) if "default" in field else ""
        rows.append(f"| `{name}` | {_shape(field)} | {default} |")
    return "\n".join(rows)


def schema_text(kind: type[BaseModel]) -> str:
    return json.dumps(json_schema(kind), indent=2, sort_keys=True) + "\n"


def page_text(page: str) -> str:
    """The page with its generated parts renewed."""
    for name, table in (
        ("subjects", subject_table()),
        ("errors", error_table()),
        ("bounds", bounds_table()),
        ("request", request_table()),
    ):
        pattern = rf"(<!-- {name}: made by `make docs` -->\n).*?(\n<!-- end -->)"
        page, count = re.subn(pattern, rf"\g<1>{_escaped(table)}\g<2>", page, flags=re.DOTALL)
        assert count == 1, f"docs/wire.md has no place for the table {name!r}"
    return page


def main() -> None:
    SCHEMAS.mkdir(exist_ok=True)
    for kind in MESSAGES:
        (SCHEMAS / f"{kind.__name__}.json").write_text(schema_text(kind))
    PAGE.write_text(page_text(PAGE.read_text()))


def _type(name: str) -> str:
    names = {kind.__name__ for kind in MESSAGES} | {"StreamMessage"}
    return f"[{name}](schemas/{name}.json)" if name in names else name


def _shape(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_shape(one) for one in field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"].rsplit("/", 1)[1])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_shape(field['items'])}"
    limits = [
        f"{sign} {field[key]}"
        for key, sign in (
            ("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="),
            ("exclusiveMaximum", "<"), ("minLength", "length >="), ("maxLength", "length <="),
        )
        if key in field
    ]  # fmt: skip
    return " ".join([str(field.get("type", "any")), *limits])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


if __name__ == "__main__":
    main()
