"""What a worker tells of the prompts it keeps, by value."""

from pathlib import Path
from typing import Any

from shared.ids import BootId, ModelId
from shared.messages.events import KeptPrefixes
from shared.messages.prefixes import prefix_chain, session_link
from shared.messages.request import InferenceRequest
from tests.worker.sessions.stores import new_store
from tests.worker.values import CLIENT, MAC, TINY, active
from worker.link.facts import CachedSequenceMeasurements, SequenceCached, SequenceOutput
from worker.requests.active_request import ActiveRequest
from worker.scheduling.local_prefix_index import LocalPrefixIndex

LONG = {"role": "system", "content": "x" * 3072}
USER = {"role": "user", "content": "Hello"}


class Kept:
    def __init__(self, folder: Path | None = None) -> None:
        self.store = new_store(folder)
        self.links = LocalPrefixIndex(MAC, BootId("b"), self.store)

    def served(self, end: str, tokens: int = 1000, **fields: Any) -> ActiveRequest:
        """A prompt of 900 tokens that was answered."""
        request = active(**{"messages": [LONG, USER], "prompt": None, **fields})
        request.admit(0)
        self.store.begin(request)
        request.start_choice(request.choices[0], 900)
        request.advance(request.choices[0], SequenceOutput(1, 0, [5], "Hi!", "stop"))
        self.store.end(request, answered=True)
        for each in (self.store, self.links):
            each.on_sequence_cached(0, SequenceCached(1, end, tokens), request)
        return request

    def measure(self, end: str, tokens: int, memory_tokens: int) -> None:
        measured = CachedSequenceMeasurements(end, tokens, memory_tokens, 0, 0, 0)
        self.links.on_measured(0, [measured])

    def changes(self) -> KeptPrefixes:
        changes = self.links.changes()
        assert changes is not None
        return changes


def chain(*messages: dict[str, str], model: ModelId = TINY) -> list[str]:
    request = InferenceRequest.model_validate({"messages": [*messages]})
    return [link.hex() for link in prefix_chain(model, request)]


def test_a_next_turn_finds_all_links_of_the_last_one_and_of_its_answer() -> None:
    kept = Kept()
    kept.served("aa")
    told = kept.changes()
    turn = chain(LONG, USER, {"role": "assistant", "content": "Hi!"}, USER)
    assert list(told.links) == turn[:-1]
    assert set(told.links.values()) == {"memory"}
    assert (told.number, told.whole, told.gone) == (1, False, [])
    assert kept.links.changes() is None


def test_a_link_is_kept_where_its_share_of_the_tokens_is() -> None:
    kept = Kept()
    kept.served("aa")
    kept.changes()
    first = chain(LONG, USER)
    kept.measure("aa", tokens=700, memory_tokens=350)
    told = kept.changes()
    assert told.links == {first[1]: "disk"}, "of four KiB the first is in memory, and stays"
    assert set(told.gone) >= set(first[2:])
    assert first[0] not in told.gone
    kept.measure("aa", tokens=0, memory_tokens=0)
    assert set(kept.changes().gone) == set(first[:2])
    whole = kept.links.snapshot()
    assert (whole.links, whole.number, whole.whole) == ({}, 3, True)


def test_texts_that_begin_alike_are_kept_where_the_best_of_them_is() -> None:
    kept = Kept()
    kept.served("aa")
    kept.served("bb", messages=[LONG, {"role": "user", "content": "other"}])
    kept.changes()
    kept.measure("bb", tokens=1000, memory_tokens=0)
    told = kept.changes()
    assert set(chain(LONG)) & set(told.links) == set(), "the other one has them in memory"
    assert set(told.links.values()) == {"disk"}


def test_at_most_500_links_are_told_of_the_last_prompts() -> None:
    kept = Kept()
    for number in range(300):
        kept.served(f"{number:04x}", messages=[{"role": "user", "content": f"{number}"}])
    told = kept.changes()
    assert len(told.links) == 500
    assert chain({"role": "user", "content": "299"})[0] in told.links
    assert chain({"role": "user", "content": "0"})[0] not in told.links


def test_sessions_whose_turns_may_come_alone_are_told() -> None:
    kept = Kept()
    kept.served("aa", session_id="s")
    kept.served("bb", session_id="t", history="sent")
    link = session_link(CLIENT, "s").hex()
    assert kept.changes().sessions == {link: 1}
    kept.served("cc", session_id="s")
    assert kept.changes().sessions == {link: 2}
    kept.store.forget((CLIENT, "s"))
    assert link in kept.changes().gone


def test_after_a_restart_conversations_are_known_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.served("aa", session_id="s")
    links = kept.changes().links
    kept.store.close()
    again = Kept(tmp_path)
    assert again.changes().links == {}, "what the new engine keeps is not known yet"
    again.measure("aa", tokens=1000, memory_tokens=0)
    told = again.changes()
    assert list(told.links) == list(links) and set(told.links.values()) == {"disk"}


def test_of_a_lost_engine_nothing_is_known() -> None:
    kept = Kept()
    kept.served("aa")
    links = kept.changes().links
    kept.links.on_engine_lost(1)
    assert kept.links.changes() is None
    kept.links.on_engine_lost(0)
    assert set(kept.changes().gone) == set(links)
