"""Log lines as records: on stderr, and over NATS."""

import asyncio
import io
import json
import logging
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.bus import Bus, IncomingMessage
from shared.codec import decode
from shared.errors import SettingsError
from shared.logs import BusLogHandler, log_line, set_up_logging
from shared.messages.logs import LogRecord, RecentLogs
from shared.settings.tree import LoggingSettings
from shared.subjects import LOG_ALL, RECENT_LOGS

pytestmark = pytest.mark.anyio


def line(message: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("test", level, __file__, 1, message, None, None)
    record.created = 1_700_000_000.0625
    for name, value in fields.items():
        setattr(record, name, value)
    return record


@pytest.fixture
def store() -> BusLogHandler:
    return BusLogHandler("worker", "mac-1")


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    handlers, level, factory = root.handlers, root.level, logging.getLogRecordFactory()
    yield root
    root.handlers = handlers
    root.setLevel(level)
    logging.setLogRecordFactory(factory)


def as_record(record: logging.LogRecord, kind: str = "worker", identity: str = "w") -> LogRecord:
    return decode(LogRecord, log_line(record, kind, identity).body)


def test_a_record_has_time_level_origin_message_and_known_fields() -> None:
    record = as_record(
        line("hello", logging.WARNING, request_id="r", attempt=2, worker=None, unknown=1),
        "controller",
        "c-1",
    )
    assert record == LogRecord(
        time="2023-11-14T22:13:20.062+00:00",
        level="warning",
        kind="controller",
        id="c-1",
        message="hello",
        fields={"request_id": "r", "attempt": 2},
    )


def test_a_line_may_speak_for_another_kind() -> None:
    assert as_record(line("x", kind="engine")).kind == "engine"


def test_an_exception_stands_below_the_message() -> None:
    record = line("it failed", logging.ERROR)
    try:
        raise ValueError("so it is")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    first, *rest = as_record(record).message.splitlines()
    assert first == "it failed"
    assert rest[-1] == "ValueError: so it is"


def test_half_a_character_is_shown_escaped() -> None:
    assert as_record(line("it said \ud83d and ö")).message == "it said \\ud83d and ö"


def test_json_lines_go_to_stderr_from_the_level_on(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(LoggingSettings(level="warning", format="json"), "worker", "mac-1")
    logging.getLogger("worker.x").info("not this")
    logging.getLogger("worker.x").warning("queue is %d", 5, extra={"client": "ada"})
    lines = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert [(entry["message"], entry["fields"]) for entry in lines] == [
        ("queue is 5", {"client": "ada"})
    ]
    assert (lines[0]["kind"], lines[0]["id"], lines[0]["level"]) == ("worker", "mac-1", "warning")


def test_values_may_be_named_in_a_line(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(LoggingSettings(format="json"), "worker", "mac-1")
    logging.getLogger("other").warning("%(here)s of %(all)d", {"here": "one", "all": 2})
    logging.getLogger("other").warning("%s%%", 5)
    logging.getLogger("other").warning("100%")
    lines = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert [entry["message"] for entry in lines] == ["one of 2", "5%", "100%"]


def test_text_lines_are_for_people(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(LoggingSettings(format="text"), "worker", "mac-1")
    logging.getLogger("worker.x").info("hello")
    assert capsys.readouterr().err.rstrip().endswith("INFO    hello")


class Pipe(io.BytesIO):
    """Where lines go, and in how many writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[str]] = []

    def write(self, text: Any) -> int:
        lines = bytes(text).splitlines()
        self.writes.append([json.loads(line)["message"] for line in lines])
        return len(lines)


async def test_what_a_loop_logs_is_written_together_before_it_waits() -> None:
    pipe = Pipe()
    store = BusLogHandler("worker", "mac-1", pipe)
    store.emit(line("a"))
    store.emit(line("b"))
    assert pipe.writes == []
    await asyncio.sleep(0)
    assert pipe.writes == [["a", "b"]]
    store.emit(line("c"))
    await asyncio.sleep(0)
    assert pipe.writes == [["a", "b"], ["c"]]


async def test_a_warning_is_written_at_once_with_what_came_before() -> None:
    pipe = Pipe()
    store = BusLogHandler("worker", "mac-1", pipe)
    store.emit(line("a"))
    store.emit(line("b", logging.WARNING))
    assert pipe.writes == [["a", "b"]]
    await asyncio.sleep(0)
    assert pipe.writes == [["a", "b"]]


def test_without_a_loop_each_line_is_written_at_once() -> None:
    pipe = Pipe()
    store = BusLogHandler("worker", "mac-1", pipe)
    store.emit(line("a"))
    assert pipe.writes == [["a"]]


async def test_what_is_not_written_yet_is_when_logging_ends() -> None:
    pipe = Pipe()
    store = BusLogHandler("worker", "mac-1", pipe)
    store.emit(line("a"))
    store.close()
    store.flush()
    assert pipe.writes == [["a"]]


async def recent(bus: Bus, query: dict[str, object] | None = None) -> list[str]:
    payload = json.dumps(query).encode() if query is not None else b""
    answer = await bus.request(RECENT_LOGS, payload, timeout_s=10)
    return [record.message for record in decode(RecentLogs, answer.payload).records]


async def test_recent_records_are_answered_by_request_and_limit(
    bus: Bus, store: BusLogHandler
) -> None:
    for number in range(3):
        store.emit(line(f"a{number}", request_id="a"))
        store.emit(line(f"b{number}", request_id="b"))
    await store.answer(bus)
    assert await recent(bus) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert await recent(bus, {"limit": 2}) == ["a2", "b2"]
    assert await recent(bus, {"limit": 2, "request_id": "a"}) == ["a1", "a2"]
    assert await recent(bus, {"request_id": "c"}) == []


async def test_a_limit_of_none_at_all_gets_none(bus: Bus, store: BusLogHandler) -> None:
    store.emit(line("x"))
    await store.answer(bus)
    assert await recent(bus, {"limit": 0}) == []


async def test_only_the_last_thousand_records_are_kept(bus: Bus, store: BusLogHandler) -> None:
    for number in range(1001):
        store.emit(line(str(number)))
    await store.answer(bus)
    kept = await recent(bus, {"limit": 5000})
    assert (len(kept), kept[0], kept[-1]) == (1000, "1", "1000")


async def test_of_long_records_the_latest_are_answered_that_fit_into_a_message(
    bus: Bus, store: BusLogHandler
) -> None:
    size = bus.max_payload // 10
    for number in range(30):
        store.emit(line(f"{number} " + "x" * size))
    await store.answer(bus)
    kept = [message.partition(" ")[0] for message in await recent(bus)]
    assert kept == [str(number) for number in range(21, 30)]


async def test_a_question_that_cannot_be_read_does_not_end_the_answers(
    bus: Bus, store: BusLogHandler
) -> None:
    store.emit(line("x"))
    await store.answer(bus)
    await bus.publish(RECENT_LOGS, b"nonsense", reply=bus.new_inbox())
    assert await recent(bus) == ["x"]


async def test_new_records_are_published_once_each_under_kind_and_id(
    bus: Bus, store: BusLogHandler
) -> None:
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    await bus.subscribe(LOG_ALL, messages.put)
    store.emit(line("first"))
    await store.publish_new(bus)
    store.emit(line("second"))
    await store.publish_new(bus)
    await bus.publish("mlx.log.test.end", b"")
    got = [await asyncio.wait_for(messages.get(), 10) for _ in range(3)]
    assert [message.subject for message in got] == [
        *["mlx.log.worker.mac-1"] * 2,
        "mlx.log.test.end",
    ]
    records = [decode(LogRecord, message.payload).message for message in got[:2]]
    assert records == ["first", "second"]


@pytest.mark.parametrize("gone", ["renamed", "removed", "its folder removed"])
def test_a_log_file_is_begun_anew_when_it_is_rotated(
    gone: str, tmp_path: Path, root_logger: logging.Logger
) -> None:
    path = tmp_path / "logs" / "worker.log"
    set_up_logging(LoggingSettings(file=str(path), format="json"), "worker", "mac-1")
    logging.info("one")
    before = path.read_bytes()
    match gone:
        case "renamed":
            path.rename(path.with_name("worker.log.0"))
        case "removed":
            path.unlink()
        case _:
            shutil.rmtree(path.parent)
            path.parent.mkdir()
    logging.info("two")
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["two"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if gone == "renamed":
        assert path.with_name("worker.log.0").read_bytes() == before


def test_a_log_file_that_cannot_be_is_said_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"^logging.file: .*/file/worker.log: "):
        set_up_logging(
            LoggingSettings(file=str(tmp_path / "file" / "worker.log")), "worker", "mac-1"
        )
