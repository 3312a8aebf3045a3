"""What viewers get of rows that change: the difference to what they have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.live import table
from controller.gateway.live.table import TableEvents, VersionedValue
from tests.controller.gateway.live.event_text import TableCopy, only, parsed

_HOSTILE = 'a\n\nevent: session\ndata: {}\r\n\r\n\u2028</script>"\\\x00'


def test_a_new_viewer_gets_all_rows_and_a_current_one_nothing() -> None:
    rows = TableEvents("machines")
    assert (rows.version, rows.since(0)) == (0, b"")
    rows.update({"a": {"n": 1}, "b": {"n": 2}}, {"total": 2})
    assert parsed(rows.since(0)) == [
        (
            "machines",
            {
                "whole": True,
                "rows": [{"key": "a", "n": 1}, {"key": "b", "n": 2}],
                "removed": [],
                "total": 2,
            },
        )
    ]
    assert rows.since(rows.version) == b""


def test_an_empty_table_is_told_once() -> None:
    rows = TableEvents("sessions")
    rows.update({}, {"total": 0})
    assert only(rows.since(0)) == {"whole": True, "rows": [], "removed": [], "total": 0}
    before = rows.version
    rows.update({}, {"total": 0})
    assert rows.version == before


def test_later_only_what_is_new_changed_or_gone_is_sent() -> None:
    rows = TableEvents("models")
    rows.update({"a": {"n": 1}, "b": {"n": 1}, "c": {"n": 1}})
    before = rows.version
    rows.update({"a": {"n": 1}, "b": {"n": 2}, "d": {"n": 1}})
    assert only(rows.since(before)) == {
        "whole": False,
        "rows": [{"key": "b", "n": 2}, {"key": "d", "n": 1}],
        "removed": ["c"],
    }


def test_the_same_rows_again_are_no_news() -> None:
    rows = TableEvents("models")
    rows.update({"a": {"n": 1}}, {"total": 1})
    before = rows.version
    rows.update({"a": {"n": 1}}, {"total": 1})
    assert rows.version == before and rows.since(before) == b""


def test_further_fields_alone_are_news() -> None:
    rows = TableEvents("requests")
    rows.update({"a": {"n": 1}}, {"total": 1})
    before = rows.version
    rows.update({"a": {"n": 1}}, {"total": 9})
    assert only(rows.since(before)) == {"whole": False, "rows": [], "removed": [], "total": 9}


def test_a_row_that_comes_back_is_not_removed() -> None:
    rows = TableEvents("requests")
    rows.update({"a": {"n": 1}})
    before = rows.version
    rows.update({})
    rows.update({"a": {"n": 1}})
    assert only(rows.since(before)) == {
        "whole": False, "rows": [{"key": "a", "n": 1}], "removed": [],
    }  # fmt: skip


def test_who_is_further_behind_than_removals_are_remembered_gets_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "_MAX_REMOVED", 2)
    rows = TableEvents("requests")
    rows.update({name: {} for name in "abcd"})
    behind = rows.version
    rows.update({name: {} for name in "bcd"})
    near = rows.version
    rows.update({"d": {}})
    assert only(rows.since(behind)) == {"whole": True, "rows": [{"key": "d"}], "removed": []}
    assert only(rows.since(near)) == {"whole": False, "rows": [], "removed": ["b", "c"]}


_ROWS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.fixed_dictionaries({"n": st.integers(0, 2)})
)
_VIEWERS = 3


@given(st.lists(st.tuples(_ROWS, st.sets(st.integers(0, _VIEWERS - 1))), max_size=30))
def test_whoever_applies_its_events_has_exactly_the_rows(
    steps: list[tuple[dict[str, dict[str, int]], set[int]]],
) -> None:
    """Viewers look after some updates and not after others; removals are forgotten soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_MAX_REMOVED", 3)
        rows = TableEvents("requests")
        copies = [TableCopy() for _ in range(_VIEWERS)]
        versions = [0] * _VIEWERS
        for current, looking in steps:
            rows.update(current, {"total": len(current)})
            for viewer in looking:
                if event := rows.since(versions[viewer]):
                    copies[viewer].apply(only(event))
                versions[viewer] = rows.version
                assert copies[viewer].rows == {
                    key: {"key": key, **row} for key, row in current.items()
                }
                assert copies[viewer].extra == {"total": len(current)}


def test_a_value_is_sent_whole_when_it_changed() -> None:
    view = VersionedValue("overview")
    assert (view.version, view.since(0)) == (0, b"")
    view.update({"running": 1})
    assert parsed(view.since(0)) == [("overview", {"running": 1})]
    before = view.version
    view.update({"running": 1})
    assert view.version == before and view.since(before) == b""
    view.update({"running": 2})
    assert only(view.since(before)) == only(view.since(0)) == {"running": 2}


def test_no_name_breaks_out_of_its_event() -> None:
    rows, view = TableEvents("machines"), VersionedValue("overview")
    rows.update({_HOSTILE: {"id": _HOSTILE}})
    view.update({_HOSTILE: _HOSTILE})
    assert only(rows.since(0))["rows"] == [{"key": _HOSTILE, "id": _HOSTILE}]
    assert only(view.since(0)) == {_HOSTILE: _HOSTILE}


def test_numbers_that_are_too_large_for_64_bits_or_infinite_are_sent_all_the_same() -> None:
    view = VersionedValue("overview")
    view.update({"memory_bytes": 3 * (2**63 - 1), "tokens_per_s": float("inf")})
    text = view.since(0).decode().split("data: ")[1]
    assert json.loads(text, parse_constant=pytest.fail) == {
        "memory_bytes": 3 * (2**63 - 1), "tokens_per_s": None,
    }  # fmt: skip
