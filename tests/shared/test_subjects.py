"""The table of subjects, the functions that make them, and the inbox rule."""

import importlib
import pkgutil
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import messages, subjects
from shared.errors import InvalidSubject
from shared.ids import BootId, ClientName, ControllerId, SkillName, WorkerId

ADA = ClientName("ada")
CHAT = SkillName("chat")
MAC = WorkerId("mac-1")
BOOT = BootId("b00t")
CONTROLLER = ControllerId("c-1")

MADE = {
    "mlx.infer.<client>.<skill>": subjects.infer(ADA, CHAT),
    "mlx.route.<client>.<skill>": subjects.route(ADA, CHAT),
    "mlx.request.<client>.cancel": subjects.request(ADA, "cancel"),
    "mlx.request.<client>.status": subjects.request(ADA, "status"),
    "mlx.requests.list": subjects.LIST_REQUESTS,
    "mlx.stream.<worker>.<client>.resend": subjects.resend(MAC, ADA),
    "mlx.controller.<controller>.transfer": subjects.controller_transfer(CONTROLLER),
    "mlx.worker.<worker>.infer": subjects.worker_infer(MAC),
    "mlx.worker.<worker>.control.<verb>": subjects.worker_control(MAC, "load"),
    "mlx.worker.<worker>.<boot>.alive": subjects.worker_alive(MAC, BOOT),
    "mlx.event.worker.<worker>": subjects.worker_event(MAC),
    "mlx.event.kept.<worker>": subjects.prefix_event(MAC),
    "mlx.event.controller.<controller>": subjects.controller_event(CONTROLLER),
    "mlx.event.request.<controller>.<worker>": subjects.request_event(CONTROLLER, MAC),
    "$KV.mlx_leader.controller": subjects.key_value(subjects.LEADER_BUCKET, subjects.LEADER_KEY),
    "mlx.rollout.<verb>": subjects.rollout("load"),
    "$KV.mlx_rollout.state": subjects.key_value(subjects.ROLLOUT_BUCKET, subjects.ROLLOUT_KEY),
    "$KV.mlx_rollout.version.<number>": subjects.key_value(
        subjects.ROLLOUT_BUCKET, subjects.rollout_version(7)
    ),
    "mlx.health.controller": subjects.HEALTH_CONTROLLERS,
    "mlx.health.controller.<controller>": subjects.controller_health(CONTROLLER),
    "mlx.health.worker.<worker>": subjects.worker_health(MAC),
    "mlx.health.cluster": subjects.HEALTH_CLUSTER,
    "mlx.log.<kind>.<id>": subjects.log("worker", MAC),
    "mlx.logs.recent": subjects.RECENT_LOGS,
    "mlx.files.find": subjects.FIND_FILES,
}
VALUES = {
    "client": "ada", "skill": "chat", "worker": "mac-1", "boot": "b00t", "controller": "c-1",
    "verb": "load", "number": "7", "kind": "worker", "id": "mac-1",
}  # fmt: skip


def filled(pattern: str) -> str:
    return re.sub(r"<(\w+)>", lambda match: VALUES[match[1]], pattern)


def matches(wildcard: str, subject: str) -> bool:
    """Whether NATS delivers `subject` to a subscription of `wildcard` (`*` only)."""
    wanted, given_ = wildcard.split("."), subject.split(".")
    return len(wanted) == len(given_) and all(
        w in ("*", g) for w, g in zip(wanted, given_, strict=True)
    )


def test_each_row_of_the_table_has_a_function_that_makes_it() -> None:
    rows = {row.pattern for row in subjects.SUBJECTS} - {"<inbox>"}
    assert rows == set(MADE)


@pytest.mark.parametrize("pattern", MADE)
def test_a_made_subject_is_its_row_with_the_names_filled_in(pattern: str) -> None:
    assert MADE[pattern] == filled(pattern)


def test_the_rows_name_types_of_shared_messages() -> None:
    known = {"StreamMessage", "empty", "none", "PubAck"}
    for module in pkgutil.iter_modules(messages.__path__):
        known |= set(vars(importlib.import_module(f"shared.messages.{module.name}")))
    named = [name for row in subjects.SUBJECTS for name in (row.message, row.answer)]
    words = {name.removeprefix("a stream of ").removesuffix(", then the chunks") for name in named}
    assert words - known == set()


@pytest.mark.parametrize(
    ("wildcard", "pattern"),
    [
        (subjects.INFER_ALL, "mlx.infer.<client>.<skill>"),
        (subjects.ROUTE_ALL, "mlx.route.<client>.<skill>"),
        (subjects.REQUEST_ALL, "mlx.request.<client>.cancel"),
        (subjects.WORKER_EVENT_ALL, "mlx.event.worker.<worker>"),
        (subjects.PREFIX_EVENT_ALL, "mlx.event.kept.<worker>"),
        (subjects.CONTROLLER_EVENT_ALL, "mlx.event.controller.<controller>"),
        (subjects.LOG_ALL, "mlx.log.<kind>.<id>"),
    ],
)
def test_a_wildcard_hears_its_row_and_no_other(wildcard: str, pattern: str) -> None:
    heard = {row for row, subject in MADE.items() if matches(wildcard, subject)}
    same = {row for row in MADE if row.rsplit(".", 1)[0] == pattern.rsplit(".", 1)[0]}
    assert heard == same


def test_what_a_subject_names_is_read_back() -> None:
    assert subjects.parse_infer(subjects.infer(ADA, CHAT)) == (ADA, CHAT)
    assert subjects.parse_request(subjects.request(ADA, "status")) == (ADA, "status")
    assert subjects.parse_worker_control(subjects.worker_control(MAC, "drain")) == "drain"

    assert subjects.parse_resend(subjects.resend(MAC, ADA)) == ADA
    assert subjects.parse_log(subjects.log("engine", MAC)) == ("engine", MAC)
    assert subjects.event_sender(subjects.request_event(CONTROLLER, MAC)) == MAC
    assert subjects.reply_number("_INBOX.x.17") == 17


@pytest.mark.parametrize(
    "token", ["", "a b", "a\x0bb", "a\x00", "\xff", "\ud800", "*", "é", "x" * 65]
)
def test_a_token_that_is_no_name_is_not_read(token: str) -> None:
    for read, subject in (
        (subjects.parse_resend, f"mlx.stream.mac-1.{token}.resend"),
        (subjects.parse_worker_control, f"mlx.worker.mac-1.control.{token}"),
        (subjects.parse_log, f"mlx.log.worker.{token}"),
        (subjects.event_sender, f"mlx.event.worker.{token}"),
    ):
        with pytest.raises(InvalidSubject):
            read(subject)
    assert subjects.process_of(f"mlx.event.worker.{token}") is None


@pytest.mark.parametrize(
    "subject", ["", "_INBOX.x", "_INBOX.x.y", "_INBOX.x.²", "_INBOX.x." + "9" * 5000]
)
def test_an_inbox_that_ends_with_no_number_is_nobodys(subject: str) -> None:
    assert subjects.reply_number(subject) == -1


@pytest.mark.parametrize(
    ("reply", "open_rule", "strict_rule"),
    [
        ("_INBOX.ada.x1", True, True),
        ("_INBOX.ada.x1.y2", True, True),
        ("_INBOX.bob.x1", True, False),
        ("_INBOX.adams.x1", True, False),
        ("_INBOX.x1", True, False),
        ("_INBOX.ada", True, False),
        ("_INBOX.ada.", False, False),
        ("_INBOX.", False, False),
        ("_INBOX", False, False),
        ("", False, False),
        ("_INBOX.ada.*", False, False),
        ("_INBOX.ada.>", False, False),
        ("_INBOX.ada..x", False, False),
        ("_INBOX.ada.x y", False, False),
        ("_INBOX.ada.x\r\nPUB", False, False),
        ("_inbox.ada.x", False, False),
        ("mlx.worker.mac-1.infer", False, False),
        ("$JS.API.STREAM.DELETE.x", False, False),
        ("x_INBOX.ada.x", False, False),
        ("_INBOX.ada." + "x" * 245, True, True),
        ("_INBOX.ada." + "x" * 246, False, False),
        *(
            (f"_INBOX.ada.a{odd}b", False, False)
            for odd in "\0\x01\x0b\x0c\x1c\r\x7f\x85\xff\u2028é"
        ),
    ],
)
def test_streams_go_to_inboxes_only(reply: str, open_rule: bool, strict_rule: bool) -> None:
    assert subjects.is_inbox(reply, ADA, strict=False) is open_rule
    assert subjects.is_inbox(reply, ADA, strict=True) is strict_rule


@given(st.text())
def test_the_strict_rule_never_allows_what_the_open_rule_refuses(reply: str) -> None:
    strict = subjects.is_inbox(reply, ADA, strict=True)
    assert not strict or subjects.is_inbox(reply, ADA, strict=False)


@pytest.mark.parametrize(
    ("reply", "open_rule", "strict_rule"),
    [
        ("_INBOX.ada.x1", True, True),
        ("_INBOX.bob.x1", True, False),
        ("_INBOX.x1", True, False),
        ("_MLX.gateway.g.x1", True, True),
        ("_MLX.gateway.*", False, False),
        ("_MLX.", False, False),
        ("_MLX." + "x" * 252, False, False),
        ("_MLX.a\x0bb", False, False),
        ("_MLX", False, False),
        ("", False, False),
        ("mlx.worker.mac-1.infer", False, False),
    ],
)
def test_answers_to_questions_go_to_who_may_ask_them(
    reply: str, open_rule: bool, strict_rule: bool
) -> None:
    assert subjects.may_receive(reply, ADA, strict=False) is open_rule
    assert subjects.may_receive(reply, ADA, strict=True) is strict_rule
