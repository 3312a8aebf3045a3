"""How a list of prompts stands, and what could serve it, by value."""

from typing import Any

import pytest

from controller.owned_request import OwnedRequest
from controller.served_list import Part, ServedList, places_for
from shared.ids import ModelId, WorkerId
from shared.messages.events import ModelSpeed, ModelStatus
from shared.messages.request import Requirements
from shared.messages.stream import ChoiceOutput, Status, StatusName, StreamError
from tests.controller.fleet import Views
from tests.controller.values import models, owned, view

INBOX = "_INBOX.c"
DEMO, OTHER = ModelId("demo"), ModelId("other")


def asked(prompts: int = 3, **fields: Any) -> OwnedRequest:
    return owned(prompt=[f"prompt {number}" for number in range(prompts)], **fields)


def served(prompts: int = 3, *, places: int = 8) -> ServedList:
    one = ServedList.of(asked(prompts), 0.0)
    one.places = places
    return one


def sent(one: ServedList, now: float = 0.0) -> list[Part]:
    found: list[Part] = []
    while (part := one.send_next(INBOX, now, 1)) is not None:
        found.append(part)
    return found


def heard(part: Part, status: StatusName, progress: float | None = None) -> None:
    origin = part.request.request_id, 0, WorkerId("w")
    part.assembler.take(Status(*origin, status, progress))


def test_prompts_go_while_there_are_places_and_none_after_its_end() -> None:
    one = served(places=2)
    assert [part.prompt for part in sent(one)] == [0, 1]
    del one.parts[0]
    assert [part.prompt for part in sent(one)] == [2]
    ended = served()
    ended.request.finish("failed", "client_gone")
    assert sent(ended) == []


def test_where_none_found_a_place_no_more_go_but_where_one_did() -> None:
    one = served(places=2)
    first, _ = sent(one)
    one.pace.put_back(1, StreamError.of("queue_full", "no room"), 0.0)
    del one.parts[1]
    assert sent(one, 100.0) == []
    first.request.state = "running"
    assert [part.prompt for part in sent(one, 100.0)] == [1]


def test_its_status_is_that_of_the_farthest_prompt() -> None:
    one = served()
    assert one.status().status == "queued"
    first, second, third = sent(one)
    heard(first, "accepted")
    assert one.status().status == "queued"
    heard(second, "loading", 0.25)
    assert one.status() == Status(one.request.request_id, 0, None, "loading", 0.25)
    heard(third, "prefill", 0.5)
    assert (one.status().status, one.status().progress) == ("prefill", 0.5)
    one.answer.advance(0, ChoiceOutput(0, 0, [1], "x"))
    assert (one.status().status, one.status().progress) == ("running", None)


def test_it_is_silent_after_a_while_and_sooner_where_its_client_may_be_gone() -> None:
    one = served()
    one.request.last_sent_at = 100.0
    assert not one.is_silent(101.4) and one.is_silent(101.5)
    one.inboxes.on_missed("_INBOX.x", 100.0)
    assert one.is_silent(100.5)
    one.request.finish("finished")
    assert not one.is_silent(200.0)


@pytest.mark.parametrize(
    ("rows", "places"), [((0, 0), 16), ((4, 0), 12), ((4, 6), 10)],
)  # fmt: skip
def test_places_are_the_rows_that_workers_measured_or_are_set_to(
    rows: tuple[int, int], places: int
) -> None:
    views = [
        view(f"w{number}", models=[_warm(count)]) for number, count in enumerate(rows)
    ]  # of 8 each
    assert places_for(asked(), Views(views), 0.0) == places


def test_places_are_counted_where_the_model_is_warm_or_else_where_it_could_be_loaded() -> None:
    cold, warm = view("w1", models=models(demo="available")), view("w2")
    failed = view("w3", models=models(demo="failed"))
    assert places_for(asked(), Views([cold, warm, failed]), 0.0) == 8
    assert places_for(asked(), Views([cold, failed]), 0.0) == 8
    assert places_for(asked(), Views([failed]), 0.0) == 0
    assert places_for(asked(), Views([]), 0.0) == 0


def test_places_are_those_of_the_first_model_that_anybody_has() -> None:
    request = asked()
    request.models = [DEMO, OTHER]
    others = [view(f"w{number}", models=models(other="warm")) for number in range(2)]
    assert places_for(request, Views(others), 0.0) == 16
    assert places_for(request, Views([*others, view("w9")]), 0.0) == 8


def test_places_are_of_workers_with_the_hardware_that_was_asked_for_though_they_are_full() -> None:
    fitting = view("w1", labels={"room": "1"}, max_queue_depth=1, queued_requests=5)
    views = [fitting, view("w2", labels={"room": "2"})]
    request = asked(requires=Requirements(labels={"room": "1"}))
    assert places_for(request, Views(views), 0.0) == 8


def _warm(rows: int) -> ModelStatus:
    return ModelStatus(id=DEMO, state="warm", speed=ModelSpeed(rows=rows))
