"""Who owns a request: the same for all who ask, and as few change as can be."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.ownership import meeting_key, rank_owners
from shared.ids import ClientName, ControllerId
from shared.messages.request import InferenceRequest
from tests.controller.values import ADA

_NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=12)
_CONTROLLERS = st.lists(_NAMES.map(ControllerId), min_size=1, max_size=6, unique=True)
_KEYS = st.text(min_size=1, max_size=30)


def key(client: str = ADA, **fields: object) -> str | None:
    request = InferenceRequest.model_validate({"prompt": "x", **fields})
    return meeting_key(ClientName(client), request)


# The key.


def test_without_an_id_of_the_client_any_controller_will_do() -> None:
    assert key() is None
    assert key(seed=5, n=2) is None


def test_the_same_id_or_session_meets_whatever_else_differs() -> None:
    assert key(request_id="r") == key(request_id="r", seed=5)
    assert key(session_id="s") == key(session_id="s", request_id="r", seed=5)


def test_ids_sessions_and_clients_are_told_apart() -> None:
    keys = [
        key(request_id="x"),
        key(session_id="x"),
        key(request_id="y"),
        key("bob", request_id="x"),
        key("bob", session_id="x"),
    ]
    assert len(set(keys)) == len(keys)


# The ranks.


@given(_KEYS, _CONTROLLERS, st.data())
def test_every_controller_finds_the_same_ranks(
    key: str, controllers: list[ControllerId], data: st.DataObject
) -> None:
    in_its_order = data.draw(st.permutations([*controllers, controllers[0]]))
    ranks = rank_owners(key, in_its_order)
    assert ranks == rank_owners(key, controllers)
    assert sorted(ranks) == sorted(controllers)


@given(_KEYS, _CONTROLLERS)
def test_when_one_leaves_the_others_keep_their_ranks_and_when_one_joins_too(
    key: str, controllers: list[ControllerId]
) -> None:
    ranks = rank_owners(key, controllers)
    for leaver in controllers:
        left = [one for one in controllers if one != leaver]
        assert rank_owners(key, left) == [one for one in ranks if one != leaver]


def test_without_controllers_there_is_no_owner() -> None:
    assert rank_owners("key", []) == []


@pytest.mark.parametrize("count", [2, 3, 5])
def test_keys_are_spread_evenly_over_controllers_with_names_that_are_alike(count: int) -> None:
    controllers = [ControllerId(f"controller-{number}") for number in range(count)]
    owned = Counter(rank_owners(f"ada/request/r-{n}", controllers)[0] for n in range(3000))
    assert set(owned) == set(controllers)
    fair = 3000 / count
    assert all(0.85 * fair < share < 1.15 * fair for share in owned.values())


def test_the_keys_of_one_who_leaves_are_spread_over_the_others() -> None:
    controllers = [ControllerId(name) for name in ("a", "b", "c")]
    ranks = [rank_owners(f"ada/session/{n}", controllers) for n in range(2000)]
    heirs: Counter[str] = Counter(successor for owner, successor, _ in ranks if owner == "a")
    assert min(heirs["b"], heirs["c"]) > 0.4 * heirs.total() > 0


def test_the_ranks_are_those_of_every_release() -> None:
    controllers = [ControllerId(name) for name in ("a", "b", "c")]
    ranks = ["".join(rank_owners(f"local/request/{n}", controllers)) for n in range(6)]
    assert ranks == ["bca", "cba", "bac", "abc", "acb", "abc"]
