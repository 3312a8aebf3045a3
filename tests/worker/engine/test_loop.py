"""The engine's loop with a real model: sequences come, go together, and end."""

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from tests.models import CONTEXT_TOKENS
from tests.worker.engine.running_engine import (
    TINY,
    Answer,
    RunningEngine,
    outputs_of,
    running_engine,
)
from tests.worker.engine.samplings import GREEDY, sampling
from worker.engine import loop
from worker.engine.decoding import DecodeGroup, SampledTokens
from worker.engine.kv_block_store import PrefixCacheConfig
from worker.engine.step_scheduler import StepScheduler
from worker.link.facts import (
    EngineMeasured,
    Fact,
    ModelLoaded,
    PrefillAdvanced,
    PrefillStarted,
    PrefixReused,
    SequenceCached,
    StepCompleted,
)
from worker.link.orders import SentCharacters, Stop, UnloadModel

SEEDED = sampling(temperature=0.9, top_p=0.95, seed=12345)
PENALISED = sampling(
    temperature=0.8,
    seed=7,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.4,
    logit_bias={"65": -100.0},
)
_WAYS = pytest.mark.parametrize(
    "way", [GREEDY, SEEDED, PENALISED], ids=["greedy", "seeded", "penalised"]
)
_LONG_PROMPT = "long " * 160
ENDLESS = {"256": -100.0, "257": -100.0}
"""A bias that keeps the tiny model from ending its answer."""


@pytest.fixture(scope="module", params=[False, True], ids=["reads first", "evaluates ahead"])
def engine(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[RunningEngine]:
    with running_engine(tiny_model, evaluates_ahead=request.param) as running:
        yield running


def test_a_sequence_starts_comes_token_by_token_and_ends_at_max_tokens(
    engine: RunningEngine,
) -> None:
    answer = engine.generate("Hi", max_tokens=10, sampling=sampling(logit_bias=ENDLESS))
    assert [output.index for output in answer.outputs] == list(range(10))
    assert all(len(output.token_ids) == 1 for output in answer.outputs)
    assert answer.finish_reason == "length"
    (started,) = [
        fact
        for fact in engine.facts()
        if isinstance(fact, PrefillStarted) and fact.sequence == answer.outputs[0].sequence
    ]
    assert started.prompt_tokens == 2
    assert not any(isinstance(fact, PrefixReused) for fact in engine.facts())


def test_the_end_token_ends_a_sequence_and_is_neither_sent_nor_counted(
    engine: RunningEngine,
) -> None:
    answer = engine.generate(sampling=sampling(logit_bias={"257": 100.0}))
    assert (answer.token_ids, answer.text, answer.finish_reason) == ([], "", "stop")


def test_a_prompt_is_counted_whatever_its_length_and_nothing_is_generated(
    engine: RunningEngine,
) -> None:
    for prompt in ("Hi", "x" * (3 * CONTEXT_TOKENS)):
        answer = engine.generate(prompt, max_tokens=10, sampling=GREEDY, count_only=True)
        assert (answer.token_ids, answer.text, answer.finish_reason) == ([], "", "stop")
        (started,) = [
            fact
            for fact in engine.facts()
            if isinstance(fact, PrefillStarted) and fact.sequence == answer.outputs[0].sequence
        ]
        assert started.prompt_tokens == len(prompt)


def test_the_end_of_the_context_ends_a_sequence_with_length(engine: RunningEngine) -> None:
    answer = engine.generate(
        "x" * (CONTEXT_TOKENS - 5),
        max_tokens=CONTEXT_TOKENS,
        sampling=sampling(logit_bias=ENDLESS),
    )
    assert (len(answer.token_ids), answer.finish_reason) == (5, "length")


def test_a_sequence_joins_while_another_runs(engine: RunningEngine) -> None:
    first = engine.order(max_tokens=600, sampling=sampling(logit_bias=ENDLESS))
    second = engine.order("me too", max_tokens=5, sampling=sampling(logit_bias=ENDLESS))

    engine.on_first(lambda fact: outputs_of([fact], first.sequence), lambda: engine.give(second))
    engine.give(first)
    assert len(engine.answer(first.sequence).token_ids) == 600
    assert len(engine.answer(second.sequence).token_ids) == 5
    steps = [fact for fact in engine.facts() if isinstance(fact, StepCompleted)]
    together = [
        step
        for step in steps
        if {first.sequence, second.sequence} <= {output.sequence for output in step.outputs}
    ]
    assert len(together) == 4, "its first token came with its prompt"


def test_who_comes_a_moment_after_the_first_begins_with_it(
    engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it comes once the first one is on its way to its first pass."""
    monkeypatch.setattr(loop, "_MAX_ARRIVAL_WAIT_S", 0.5)
    monkeypatch.setattr(loop, "_ARRIVAL_WAIT_SHARE", 1e6)
    first, second = (engine.order(text, max_tokens=5) for text in ("one", "two"))
    engine.on_first(lambda fact: isinstance(fact, PrefillStarted), lambda: engine.give(second))
    engine.give(first)
    engine.answer(first.sequence)
    engine.answer(second.sequence)
    both = {first.sequence, second.sequence}
    steps = [fact for fact in engine.facts() if isinstance(fact, StepCompleted)]
    together = [both & {output.sequence for output in step.outputs} for step in steps]
    assert next(filter(None, together)) == both


@_WAYS
def test_a_resumed_sequence_goes_on_exactly_as_the_undisturbed_one(
    engine: RunningEngine, way: Any
) -> None:
    undisturbed = engine.generate("Go on", max_tokens=40, sampling=way)
    for cut in (1, 2, 17, len(undisturbed.token_ids) - 1):
        sent = "".join(output.text for output in undisturbed.outputs[:cut])
        resumed = engine.generate(
            "Go on",
            max_tokens=40,
            sampling=way,
            resumed_ids=undisturbed.token_ids[:cut],
            sent=SentCharacters(len(sent)),
        )
        assert resumed.outputs[0].index == cut
        assert resumed.token_ids == undisturbed.token_ids[cut:]
        assert sent + resumed.text == undisturbed.text
        assert resumed.finish_reason == undisturbed.finish_reason


def _said(answer: Answer) -> list[tuple[int, list[int], str]]:
    return [(output.index, output.token_ids, output.text) for output in answer.outputs]


@_WAYS
@pytest.mark.parametrize("stops", [[], ["no such text", "e"]], ids=["", "stops"])
def test_what_an_earlier_attempt_generated_is_put_out_again_as_it_was_then(
    engine: RunningEngine, way: Any, stops: list[str]
) -> None:
    undisturbed = engine.generate("你好", max_tokens=40, sampling=way, stop=stops)
    whole = undisturbed.token_ids
    for cut in {1, 2, len(whole) // 2, len(whole) - 1, len(whole)}:
        again = engine.generate(
            "你好", max_tokens=40, sampling=way, stop=stops, replayed_ids=whole[:cut]
        )
        assert _said(again) == _said(undisturbed)
        assert again.finish_reason == undisturbed.finish_reason


def test_cancelled_before_it_is_put_out_again_an_answer_ends_behind_what_was_said(
    engine: RunningEngine,
) -> None:
    busy = engine.submit("x" * 200_000)  # keeps the preparing thread busy, then is refused
    sequence = engine.submit(replayed_ids=[64, 65, 66])
    engine.cancel(sequence)
    (last,) = engine.answer(sequence).outputs
    assert (last.index, last.token_ids, last.finish_reason) == (3, [], "cancelled")
    engine.refusal(busy)


# Stops.


def _letters() -> dict[str, float]:
    """A bias towards lower-case letters: their tokens are in the order of the alphabet."""
    return {str(token): 100.0 for token in range(64, 90)}


def test_the_text_ends_just_before_a_stop_string(engine: RunningEngine) -> None:
    way = sampling(temperature=1.0, seed=5, logit_bias=_letters())
    whole = engine.generate(max_tokens=40, sampling=way)
    assert whole.text.isascii() and whole.text.islower() and len(whole.text) == 40
    for length in (1, 3, 8):
        stop = whole.text[10 : 10 + length]
        answer = engine.generate(max_tokens=40, sampling=way, stop=["never?", stop])
        assert answer.text == whole.text[: whole.text.find(stop)]
        assert answer.finish_reason == "stop"
        assert answer.token_ids == whole.token_ids[: whole.text.find(stop) + length]


def test_what_only_began_like_a_stop_string_is_sent_at_the_end(engine: RunningEngine) -> None:
    way = sampling(temperature=1.0, seed=5, logit_bias=_letters())
    whole = engine.generate(max_tokens=20, sampling=way)
    answer = engine.generate(max_tokens=20, sampling=way, stop=[whole.text[-3:] + "?"])
    assert (answer.text, answer.finish_reason) == (whole.text, "length")
    assert answer.outputs[-1].text == whole.text[-3:]


def test_a_sequence_resumed_behind_its_stop_string_ends_without_another_token(
    engine: RunningEngine,
) -> None:
    way = sampling(temperature=1.0, seed=5, logit_bias=_letters())
    whole = engine.generate(max_tokens=40, sampling=way)
    stop = whole.text[10:12]
    stopped = engine.generate(max_tokens=40, sampling=way, stop=[stop])
    resumed = engine.generate(
        max_tokens=40,
        sampling=way,
        stop=[stop],
        resumed_ids=stopped.token_ids,
        sent=SentCharacters(len(stopped.text)),
    )
    assert (resumed.token_ids, resumed.text, resumed.finish_reason) == ([], "", "stop")


def test_a_sequence_resumed_with_all_its_tokens_ends_and_the_engine_lives(
    tiny_model: Path,
) -> None:
    with running_engine(tiny_model) as mortal:
        answer = mortal.generate(max_tokens=3, resumed_ids=[1, 2, 3], sent=SentCharacters(3))
        assert (answer.token_ids, answer.finish_reason) == ([], "length")


# Cancelling.


def test_cancelled_before_its_prompt_is_prepared_a_sequence_ends_without_a_token(
    engine: RunningEngine,
) -> None:
    busy = engine.submit("x" * 200_000)  # keeps the preparing thread busy, then is refused
    sequence = engine.submit()
    engine.cancel(sequence)
    answer = engine.answer(sequence)
    assert engine.refusal(busy).code == "context_length_exceeded"
    assert (answer.token_ids, answer.finish_reason) == ([], "cancelled")
    started = [fact for fact in engine.facts() if isinstance(fact, PrefillStarted)]
    assert sequence not in [fact.sequence for fact in started]


def test_cancelled_during_prefill_a_sequence_ends_without_a_token(engine: RunningEngine) -> None:
    order = engine.order(_LONG_PROMPT)
    engine.on_first(
        lambda fact: isinstance(fact, PrefillAdvanced) and fact.sequence == order.sequence,
        lambda: engine.cancel(order.sequence),
    )
    engine.give(order)
    answer = engine.answer(order.sequence)
    assert (answer.token_ids, answer.finish_reason) == ([], "cancelled")
    assert engine.generate().token_ids, "others are served afterwards"


def test_cancelled_while_decoding_a_sequence_ends_and_its_neighbours_do_not_notice(
    engine: RunningEngine,
) -> None:
    way = sampling(temperature=0.9, seed=1, logit_bias=ENDLESS)
    alone = engine.generate("neighbour", max_tokens=60, sampling=way)
    leaving = engine.order(max_tokens=900, sampling=sampling(logit_bias=ENDLESS))
    engine.on_first(
        lambda fact: any(output.index == 4 for output in outputs_of([fact], leaving.sequence)),
        lambda: engine.cancel(leaving.sequence),
    )
    engine.give(leaving)
    neighbour = engine.submit("neighbour", max_tokens=60, sampling=way)
    cancelled = engine.answer(leaving.sequence)
    assert cancelled.finish_reason == "cancelled"
    assert len(cancelled.token_ids) in (5, 6), "at most the step that was begun is told"
    assert engine.answer(neighbour).token_ids == alone.token_ids


def test_cancelling_an_unknown_or_finished_sequence_changes_nothing(
    engine: RunningEngine,
) -> None:
    sequence = engine.submit(max_tokens=3)
    engine.answer(sequence)
    engine.cancel(sequence)
    engine.cancel(999_999)
    engine.generate()
    ends = [o for o in outputs_of(engine.facts(), sequence) if o.finish_reason is not None]
    assert len(ends) == 1


# What is reported.


def test_prefill_progress_rises_to_the_end_in_chunks(engine: RunningEngine) -> None:
    sequence = engine.submit(_LONG_PROMPT, max_tokens=1)
    engine.answer(sequence)
    progress = [
        (fact.done, fact.total)
        for fact in engine.facts()
        if isinstance(fact, PrefillAdvanced) and fact.sequence == sequence
    ]
    assert len(progress) > 3
    assert all(total == len(_LONG_PROMPT) for _, total in progress)
    assert all(a < b <= len(_LONG_PROMPT) for (a, _), (b, _) in itertools.pairwise(progress))


def test_logprobs_name_each_token_and_the_greedy_token_is_the_likeliest(
    engine: RunningEngine,
) -> None:
    way = sampling(logprobs=4, logit_bias=ENDLESS)
    answer = engine.generate(max_tokens=8, sampling=way)
    for output in answer.outputs:
        assert output.logprobs is not None
        ((entry),) = output.logprobs
        assert set(entry) - {"bytes"} == {"token_id", "token", "logprob", "top", "channel"}
        assert ("bytes" in entry) == ("\ufffd" in entry["token"])
        assert entry["channel"] == "content"
        assert [entry["token_id"]] == output.token_ids
        top = entry["top"]
        assert len(top) == 4
        assert top[0]["token_id"] == entry["token_id"]
        assert top[0]["logprob"] == entry["logprob"] <= 0
        assert [t["logprob"] for t in top] == sorted((t["logprob"] for t in top), reverse=True)
    assert (
        answer.token_ids
        == engine.generate(max_tokens=8, sampling=sampling(logit_bias=ENDLESS)).token_ids
    )


def test_logprobs_0_gives_the_token_alone_and_none_gives_nothing(engine: RunningEngine) -> None:
    answer = engine.generate(max_tokens=4, sampling=sampling(logprobs=0, logit_bias=ENDLESS))
    entries = [entry for output in answer.outputs for entry in output.logprobs or []]
    known = {"token_id", "token", "logprob", "channel"}
    assert [set(entry) - {"bytes"} for entry in entries] == [known] * 4
    plain = engine.generate(max_tokens=4, sampling=sampling(logit_bias=ENDLESS))
    assert all(output.logprobs is None for output in plain.outputs)


def test_an_idle_engine_measures_itself(engine: RunningEngine) -> None:
    seen = len(engine.facts())
    measured = engine.wait(
        lambda facts: next((f for f in facts[seen:] if isinstance(f, EngineMeasured)), None)
    )
    assert measured.active_sequences == 0
    assert measured.active_memory_bytes > 0


def test_when_the_last_sequence_ends_the_engine_measures_itself_at_once(
    engine: RunningEngine,
) -> None:
    for _ in range(3):
        sequence = engine.submit("Hello", max_tokens=2)
        engine.answer(sequence)

        def next_fact(facts: list[Fact], sequence: int = sequence) -> Fact | None:
            after = facts[_end_of(sequence, facts) + 1 :]
            return after[0] if after else None

        assert isinstance(engine.wait(next_fact), EngineMeasured)


@pytest.mark.parametrize(
    ("evaluates_ahead", "tokens_read"),
    [(False, 4), (True, 3)],
    ids=["reads first", "evaluates ahead"],
)
def test_what_is_kept_is_told_before_other_prompts_are_prefilled(
    evaluates_ahead: bool,
    tokens_read: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the last token where steps are read at once, and one earlier where they are not: that
    token is in no cache."""
    monkeypatch.setattr("worker.engine.step_scheduler._SHORT_S", 0.0)
    told: list[list[Fact]] = []
    prefill = StepScheduler.prefill
    settings = PrefixCacheConfig(block_tokens=16, path=tmp_path / "kv", disk_bytes=2**30)
    with running_engine(tiny_model, kv_memory=settings, evaluates_ahead=evaluates_ahead) as running:

        def watched(step_scheduler: StepScheduler) -> None:
            told.append(running.facts())
            prefill(step_scheduler)

        monkeypatch.setattr(StepScheduler, "prefill", watched)
        endless = sampling(logit_bias=ENDLESS)
        one = running.submit("a short one, more than a block", max_tokens=4, sampling=endless)
        running.answer(one)
        other = running.submit("another one", max_tokens=1, sampling=endless)
        running.answer(other)
    kept = [sum(isinstance(fact, SequenceCached) for fact in facts) for facts in told]
    due = [
        (_tokens_read(one, facts) >= tokens_read) + (_tokens_read(other, facts) >= 1)
        for facts in told
    ]
    assert kept == due
    assert {1, 2} <= set(kept)


def _tokens_read(sequence: int, facts: list[Fact]) -> int:
    steps = (fact.outputs for fact in facts if isinstance(fact, StepCompleted))
    return sum(output.sequence == sequence for outputs in steps for output in outputs)


def _end_of(sequence: int, facts: list[Fact]) -> int:
    """The index of its last output."""
    return max(
        number
        for number, fact in enumerate(facts)
        if isinstance(fact, StepCompleted) and fact.outputs[0].sequence == sequence
    )


def test_the_time_of_a_step_counts_from_when_it_is_asked_for(
    engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU nearly all of it has passed when MLX returns."""
    draw = DecodeGroup.sample

    def slow_draw(self: DecodeGroup) -> SampledTokens:
        time.sleep(0.02)
        return draw(self)

    monkeypatch.setattr(DecodeGroup, "sample", slow_draw)
    seen = len(engine.facts())
    number = engine.submit(max_tokens=400, sampling=sampling(logit_bias=ENDLESS))

    def measured(facts: list[Fact]) -> float | None:
        return next(
            (
                fact.step_ms
                for fact in facts[seen:]
                if isinstance(fact, EngineMeasured) and fact.step_ms
            ),
            None,
        )

    assert engine.wait(measured) >= 20
    engine.cancel(number)
    engine.answer(number)


# Orders that cannot be carried out.


def test_a_sequence_for_an_unknown_model_is_refused(engine: RunningEngine) -> None:
    assert engine.refusal(engine.submit(model=ModelId("none"))).code == "model_unavailable"


def test_a_prompt_that_cannot_be_prepared_is_refused_and_the_engine_goes_on(
    engine: RunningEngine,
) -> None:
    refused = engine.refusal(engine.submit(None, token_ids=[10**6]))
    assert (refused.code, refused.param) == ("invalid_request", "prompt")
    broken = engine.refusal(engine.submit(None, messages=[{"no role": "at all"}]))
    assert broken.code == "request_failed"
    assert engine.generate().token_ids


def test_unloading_a_model_cancels_its_sequences_and_leaves_the_others(
    engine: RunningEngine, tiny_model: Path
) -> None:
    other = ModelId("other")
    assert isinstance(engine.load(tiny_model, other), ModelLoaded)
    order = engine.order(model=other, max_tokens=900, sampling=sampling(logit_bias=ENDLESS))
    engine.on_first(
        lambda fact: outputs_of([fact], order.sequence), lambda: engine.give(UnloadModel(other))
    )
    engine.give(order)
    assert engine.answer(order.sequence).finish_reason == "cancelled"
    assert engine.refusal(engine.submit(model=other)).code == "model_unavailable"
    assert engine.generate(model=TINY).token_ids
    assert isinstance(engine.load(tiny_model, other), ModelLoaded)
    assert engine.generate(model=other).token_ids == engine.generate().token_ids
    engine.give(UnloadModel(other))


def test_an_engine_never_waits_longer_for_orders_than_it_means_to() -> None:
    """Of a `SimpleQueue` it did, up to Python 3.12: its `get` waits for ever if it is interrupted
    for longer than its timeout, right after an item that it did not have to wait for. A prompt that
    arrived just when an answer ended stood still until something else arrived, once in some
    thousand times on a busy machine."""
    inbox = RunningEngine(prefill_chunk_tokens=64)._engine._inbox

    def wait_often() -> None:
        for _ in range(30_000):
            inbox.put(Stop())
            inbox.get()
            with suppress(queue.Empty):
                inbox.get(timeout=1e-6)

    waiting = threading.Thread(target=wait_often, daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()
