"""Ids of calls for chat templates that demand a form."""

import re

from worker.answer.call_ids import short_id


def test_short_ids_have_nine_letters_and_digits_and_are_always_the_same() -> None:
    ids = ["call_0123456789abcdef", "toolu_01", "", "ünï", "123456789"]
    written = [short_id(each) for each in ids]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in written)
    assert len(set(written)) == len(ids) and written == [short_id(each) for each in ids]
    assert written[-1] == "123456789"
