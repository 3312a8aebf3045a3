"""What is told of a campaign beside its judgement."""

import json
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.faults.evidence import Injection
from tests.faults.judge import Violation
from tests.faults.logs import explained, taken_over
from tests.faults.picture import drawn

KILLED = Injection("kill a worker", ("worker-1",), 10.0, 12.0)
SLEPT = Injection("a controller sleeps", ("controller-1",), 14.0, 19.0)
EPOCH = 1_000_000.0


def log(folder: Path, process: str, *lines: tuple[float, str | None, str, str | None]) -> None:
    """Each line: seconds on the clock of the injections, request, words, worker."""
    with (folder / f"{process}.log").open("w") as file:
        file.write("no JSON at all\n")
        for at, request_id, said, worker in lines:
            stamp = datetime.fromtimestamp(EPOCH + at, UTC).isoformat(timespec="milliseconds")
            fields = {"request_id": request_id, "worker": worker}
            entry = {"time": stamp, "message": said, "fields": fields}
            file.write(json.dumps(entry) + "\n")


def test_how_long_it_took_until_another_worker_had_a_request(tmp_path: Path) -> None:
    log(
        tmp_path, "controller-1",
        (9.0, "hand-a1", "dispatched to worker-1", "worker-1"),
        (10.25, "hand-a1", "migrates: worker worker-1 is gone", "worker-1"),
        (10.5, "hand-a1", "dispatched to worker-2", "worker-2"),
        (9.0, "hand-b2", "dispatched to worker-2", "worker-2"),
        (10.25, "hand-b2", "migrates: it was given back", "worker-2"),  # of another worker
        (10.5, "hand-b2", "dispatched to worker-1", "worker-1"),
        (9.0, "hand-c3", "dispatched to worker-1", "worker-1"),
        (10.5, "hand-c3", "migrates: worker worker-1 is gone", "worker-1"),  # never again
        (9.0, "hand-d4", "dispatched to worker-1", "worker-1"),
        (14.5, "hand-d4", "tried again: worker worker-1 is gone", "worker-1"),  # too late
        (14.6, "hand-d4", "dispatched to worker-2", "worker-2"),
        (11.0, "hand-e5", "dispatched to worker-1", "worker-1"),  # its next life
        (12.0, "hand-e5", "tried again: worker worker-1 is gone", "worker-1"),
        (12.1, "hand-e5", "dispatched to worker-2", "worker-2"),
    )  # fmt: skip
    found = taken_over(tmp_path, [KILLED, SLEPT], EPOCH, within_s=3.0)
    assert found == {"kill a worker": [0.5]}


def test_a_broken_promise_is_told_with_what_was_logged_of_its_request(tmp_path: Path) -> None:
    log(tmp_path, "worker-1", (11.0, "hand-a1", "done", None), (11.0, "hand-b2", "done", None))
    log(tmp_path, "controller-1", (10.0, "hand-a1", "accepted", None))
    violation = Violation("end", "joke (hand-a1)", "no end in time")
    first, accepted, done = explained([violation], tmp_path).splitlines()
    assert first == "end: joke (hand-a1): no end in time"
    assert (json.loads(accepted)["message"], json.loads(done)["message"]) == ("accepted", "done")
    assert "hand-b2" not in first + accepted + done


def test_who_led_and_was_gone_meanwhile_is_told_with_it(tmp_path: Path) -> None:
    log(
        tmp_path, "controller-1",
        (10.0, "hand-a1", "accepted", None),
        (10.5, None, "controller controller-2 leads, term 2", None),
        (10.6, None, "worker worker-1 is gone: no report for 3 s", None),
        (10.7, None, "something else", None),
        (12.0, "used-b2", "done", None),
        (13.0, None, "controller controller-1 leads, term 3", None),
    )  # fmt: skip
    what = "it began 0.9 s before chat (used-b2) had ended"
    _, *lines = explained([Violation("order", "chat (hand-a1)", what)], tmp_path).splitlines()
    said = [json.loads(line)["message"] for line in lines]
    assert said == [
        "accepted", "controller controller-2 leads, term 2",
        "worker worker-1 is gone: no report for 3 s", "done",
    ]  # fmt: skip


def test_the_picture_has_a_row_for_each_in_trouble_and_a_dot_for_each_pause() -> None:
    injections = [KILLED, SLEPT, Injection("kill a worker", ("worker-1",), 30.0, float("inf"))]
    picture = ElementTree.fromstring(drawn(injections, [(11.0, 0.8), (16.0, 3.2)], 60.0))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in picture.iter(f"{space}title")]
    assert titles == [
        "a controller sleeps, 14.0 to 19.0 s", "kill a worker, 10.0 to 12.0 s",
        "kill a worker, 30.0 to 60.0 s",
    ]  # fmt: skip
    assert len(list(picture.iter(f"{space}circle"))) == 2
    words = [text.text for text in picture.iter(f"{space}text")]
    assert {"controller-1", "worker-1", "3.2 s"} <= set(words)
