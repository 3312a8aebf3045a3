"""The real model: turns that go on from memory, from disk after a restart, and in a batch with
others say what cold runs say."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shared.ids import ModelId
from tests.worker.engine.kept_texts import KeptTexts
from tests.worker.engine.samplings import GREEDY
from tests.worker.engine.watched_network import prepared
from worker.engine.model import LoadedModel, load_model
from worker.link.orders import LoadModel

SEEDED = replace(GREEDY, temperature=0.8, top_p=0.95, seed=11)
_CONVERSATIONS = 4
_ANSWER_TOKENS = 6


@pytest.fixture(scope="module")
def real_model(demo_folder: Path) -> LoadedModel:
    return load_model(LoadModel(ModelId("demo"), str(demo_folder)))


@pytest.mark.timeout(900)
def test_each_of_three_turns_says_what_a_cold_run_says(
    real_model: LoadedModel, tmp_path: Path
) -> None:
    chance = Random(1)
    kept = KeptTexts(real_model, block_tokens=64, folder=tmp_path / "kv")
    words = real_model.tokenizer.encode("The sea was calm and the old lighthouse kept its light. ")
    texts = [
        [chance.choice(words) for _ in range(chance.randint(40, 120))]
        for _ in range(_CONVERSATIONS)
    ]
    restored = 0
    for turn in range(3):
        sequences = []
        for number, text in enumerate(texts):
            text += [chance.choice(words) for _ in range(chance.randint(3, 12))]
            how = replace(SEEDED, seed=number) if number % 2 else GREEDY
            sequence = prepared(10 * turn + number, list(text), how=how, max_tokens=_ANSWER_TOKENS)
            sequences.append(replace(sequence, order=replace(sequence.order, session=f"s{number}")))
        answers = kept.answers(*sequences)  # compares each with a cold run
        for text, answer in zip(texts, answers, strict=True):
            text += answer
        if turn:
            restored += sum(each.order.sequence in kept.batch.restored for each in sequences)
        if turn == 1:
            kept.restart()
    assert restored == 2 * _CONVERSATIONS
    kept.close()
