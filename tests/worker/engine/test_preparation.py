"""Whose prompt is prepared next, and what ends a preparation that would not end."""

import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from shared.ids import ModelId
from shared.messages.structured import Structure
from tests.worker.engine.running_engine import RunningEngine, running_engine
from tests.worker.engine.samplings import GREEDY
from worker.engine import preparation as preparation_module
from worker.engine.model import LoadedModel, load_model
from worker.engine.preparation import PreparationThread, Prepared, PreparedPrefetch
from worker.engine.preparation_queue import PreparationQueue
from worker.engine.prompt import PreparedSequence, prepare
from worker.link.activity import EngineActivityRecord
from worker.link.facts import PrefillStarted, SequenceRejected
from worker.link.orders import (
    CancelPrefixPrefetch,
    LoadModel,
    PrefetchPrefix,
    SubmitSequence,
    ToolCallingOptions,
)

_MODEL = ModelId("m")
_WAIT_S = 60


def _order(sequence: int, client: str, characters: int = 5) -> SubmitSequence:
    text = "x" * characters
    return SubmitSequence(sequence, _MODEL, None, text, None, 4, [], [], GREEDY, client=client)


# Turns.


def _taken(orders: PreparationQueue, count: int) -> list[int]:
    found = [orders.take() for _ in range(count)]
    return [cast(SubmitSequence, order).sequence for order in found]


def test_clients_take_turns_and_each_is_served_in_its_order() -> None:
    orders = PreparationQueue()
    for sequence in range(8):
        orders.put(_order(sequence, "many"))
    orders.put(_order(10, "one"))
    orders.put(_order(20, "two"))
    orders.put(_order(21, "two"))
    assert _taken(orders, 11) == [0, 10, 20, 1, 21, 2, 3, 4, 5, 6, 7]


def test_short_prompts_of_a_client_do_not_wait_for_all_its_long_ones() -> None:
    orders = PreparationQueue()
    for sequence in range(4):
        orders.put(_order(sequence, "a", 100_000))
    for sequence in range(10, 13):
        orders.put(_order(sequence, "a"))
    assert _taken(orders, 7) == [0, 10, 1, 11, 2, 12, 3]


def test_messages_are_short_or_long_by_their_content() -> None:
    orders = PreparationQueue()
    for sequence, content in enumerate(("x" * 70_000, "y" * 70_000, "short")):
        turns = [{"role": "user", "content": content}]
        orders.put(replace(_order(sequence, "a"), text=None, messages=turns))
    assert _taken(orders, 3) == [0, 2, 1]


def test_of_what_interrupts_nothing_is_long_or_of_the_same_client() -> None:
    orders = PreparationQueue()
    orders.put(_order(1, "a"))
    orders.put(_order(2, "b", 100_000))
    assert orders.take_short(other_than="a") is None
    orders.put(_order(3, "b"))
    orders.put(_order(4, "c"))
    found = [orders.take_short(other_than="a") for _ in range(3)]
    assert [order and cast(SubmitSequence, order).sequence for order in found] == [3, 4, None]
    assert _taken(orders, 2) == [1, 2]


class _Preparation:
    """A preparation thread whose prompts are prepared by a function of the test."""

    def __init__(
        self, prepare: Callable[[SubmitSequence, Callable[[], None]], None], limit_s: float
    ) -> None:
        self._prepare = prepare
        self.out: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
        self.activity = EngineActivityRecord.private()
        self.thread = PreparationThread(
            lambda _: cast(LoadedModel, object()),
            lambda _: None,
            self.out.put,
            self.activity,
            limit_s,
        )
        self.thread.start()

    def prepare(
        self, order: SubmitSequence, model: object, pause: Callable[[], None]
    ) -> PreparedSequence:
        self._prepare(order, pause)
        return PreparedSequence(order, [1], 4)

    def next(self) -> Prepared:
        return self.out.get(timeout=_WAIT_S)

    def sequences(self, count: int) -> list[int]:
        return [_sequence(self.next()) for _ in range(count)]


def _sequence(prepared: Prepared) -> int:
    match prepared:
        case SequenceRejected() | CancelPrefixPrefetch():
            return prepared.sequence
        case PreparedPrefetch():
            return prepared.prepared.order.sequence
        case _:
            return prepared.order.sequence


@contextmanager
def _preparing(
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[SubmitSequence, Callable[[], None]], None],
    limit_s: float = 60,
) -> Iterator[_Preparation]:
    made = _Preparation(prepare, limit_s)
    monkeypatch.setattr(preparation_module, "prepare", made.prepare)
    yield made


def test_while_a_long_one_is_tokenised_short_ones_of_others_are_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    worked_on: list[tuple[int, ...]] = []

    def prepare(order: SubmitSequence, pause: Callable[[], None]) -> None:
        if order.sequence == 1:
            begun.set()
            assert goes_on.wait(_WAIT_S)
            pause()
        prompt = preparing.activity.prompt()
        assert prompt is not None
        worked_on.append(prompt.sequences)

    with _preparing(monkeypatch, prepare) as preparing:
        preparing.thread.enqueue(_order(1, "big", 100_000))
        assert begun.wait(_WAIT_S)
        for order in (_order(2, "big"), _order(3, "a", 100_000), _order(4, "a"), _order(5, "b")):
            preparing.thread.enqueue(order)
        goes_on.set()
        assert preparing.sequences(5) == [4, 5, 1, 2, 3]
        assert worked_on == [(4,), (5,), (1,), (2,), (3,)]
        assert preparing.activity.prompt() is None


def test_what_does_not_end_is_refused_and_the_next_one_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare(order: SubmitSequence, pause: Callable[[], None]) -> None:
        while order.sequence == 1:
            pass

    with _preparing(monkeypatch, prepare, limit_s=0.3) as preparing:
        preparing.thread.enqueue(_order(1, "a"))
        preparing.thread.enqueue(_order(2, "a"))
        refused = preparing.next()
        assert isinstance(refused, SequenceRejected)
        assert (refused.sequence, refused.code) == (1, "request_failed")
        assert "0.3 s" in refused.message
        assert preparing.sequences(1) == [2]


def test_one_that_does_not_end_while_it_interrupts_another_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def prepare(order: SubmitSequence, pause: Callable[[], None]) -> None:
        if order.sequence == 1:
            begun.set()
            assert goes_on.wait(_WAIT_S)
            pause()
        while order.sequence == 2:
            pass

    with _preparing(monkeypatch, prepare, limit_s=0.5) as preparing:
        preparing.thread.enqueue(_order(1, "a", 100_000))
        assert begun.wait(_WAIT_S)
        preparing.thread.enqueue(_order(2, "b"))
        preparing.thread.enqueue(_order(3, "c"))
        goes_on.set()
        results = [preparing.next() for _ in range(3)]
        refused = [each.sequence for each in results if isinstance(each, SequenceRejected)]
        assert refused == [2]
        assert [_sequence(each) for each in results] == [2, 3, 1]


def test_a_prefetch_that_is_cancelled_while_it_is_prepared_does_not_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def prepare(order: SubmitSequence, pause: Callable[[], None]) -> None:
        if order.sequence == 1:
            begun.set()
            assert goes_on.wait(_WAIT_S)

    with _preparing(monkeypatch, prepare) as preparing:
        preparing.thread.enqueue(PrefetchPrefix(_order(1, "a")))
        assert begun.wait(_WAIT_S)
        preparing.thread.enqueue(PrefetchPrefix(_order(2, "a")))
        for sequence in (1, 2):
            preparing.thread.enqueue(CancelPrefixPrefetch(sequence))
        goes_on.set()
        preparing.thread.enqueue(PrefetchPrefix(_order(3, "a")))
        results = [preparing.next() for _ in range(3)]
        assert results[:2] == [CancelPrefixPrefetch(1), CancelPrefixPrefetch(2)]
        assert isinstance(results[2], PreparedPrefetch)
        assert _sequence(results[2]) == 3


# A real engine.

_LOOPS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if messages[0].content == 'loop' %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}"
)


def _chat(content: str) -> dict[str, Any]:
    return {"text": None, "messages": [{"role": "user", "content": content}]}


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory, tiny_model: Any) -> Iterator[RunningEngine]:
    folder = tmp_path_factory.mktemp("looping") / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(_LOOPS)
    with running_engine(folder, preparation_limit_s=4.0) as engine:
        yield engine


def test_a_template_that_loops_fails_its_request_and_steps_go_on(looping: RunningEngine) -> None:
    running = looping.submit(max_tokens=200, ignore_eos=True)
    bad = looping.submit(**_chat("loop"), client="eve")
    good = looping.submit(**_chat("hello"), client="ada")
    refused = looping.refusal(bad)
    assert refused.code == "request_failed" and "within 4 s" in refused.message
    assert looping.answer(good).finish_reason is not None
    assert len(looping.answer(running).token_ids) == 200
    assert looping.generate(**_chat("again"), client="eve").finish_reason is not None


@pytest.mark.parametrize("kind", ["prompt", "messages"])
def test_what_cannot_fit_is_refused_and_what_is_only_counted_is_counted(
    looping: RunningEngine, kind: str
) -> None:
    def fields(characters: int) -> dict[str, Any]:
        text = "y" * characters
        return {"text": text} if kind == "prompt" else _chat(text)

    refused = looping.refusal(looping.submit(**fields(1_900_000)))
    assert (refused.code, refused.param) == ("context_length_exceeded", kind)
    assert "1024" in refused.message
    counting = looping.submit(**fields(150_000), count_only=True)
    looping.answer(counting)
    counts = [fact for fact in looping.facts() if isinstance(fact, PrefillStarted)]
    assert [each.prompt_tokens for each in counts if each.sequence == counting] == [150_000]


@pytest.mark.parametrize(
    "part",
    [
        {"calling": ToolCallingOptions([{"name": "f", "description": "x" * 70_000}])},
        {"structure": Structure("json", {"type": "string", "enum": ["x" * 70_000]}, "schema")},
        {"messages": [{"role": "assistant", "content": "", "reasoning": "x" * 70_000}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 70_000}]}]},
    ],
    ids=["tools", "schema", "reasoning", "parts"],
)
def test_all_that_a_prompt_is_made_of_makes_it_long(part: dict[str, Any]) -> None:
    orders = PreparationQueue()
    orders.put(replace(_order(1, "a"), **part))
    assert orders.take_short(other_than="b") is None
    assert _taken(orders, 1) == [1]


def test_while_many_tools_are_compiled_others_have_their_turns(tiny_model: Path) -> None:
    loaded = load_model(LoadModel(_MODEL, str(tiny_model), tool_format="hermes"))
    loaded = replace(loaded, max_context_tokens=10**6)
    tools = [
        {"name": f"f{number}", "parameters": {"type": "object", "properties": {f"p{number}": {}}}}
        for number in range(50)
    ]
    order = replace(
        _order(1, "a"),
        text=None,
        messages=[{"role": "user", "content": "hi"}],
        calling=ToolCallingOptions(tools),
    )
    pauses = []
    prepare(order, loaded, lambda: pauses.append(1))
    assert len(pauses) >= len(tools)
