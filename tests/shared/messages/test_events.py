"""What events and orders between our own processes say of themselves."""

import pytest

from shared.codec import decode
from shared.errors import DecodeError
from shared.messages.control import CONTROL_ORDERS
from shared.messages.request_events import RequestEvents


def test_an_event_of_an_unknown_type_is_refused_with_its_place() -> None:
    payload = b'{"worker":"w","boot_id":"b","events":[{"type":"vanished"}]}'
    with pytest.raises(DecodeError) as caught:
        decode(RequestEvents, payload)
    assert caught.value.param == "events.0"


def test_each_control_verb_names_the_order_that_carries_it() -> None:
    verbs = {verb: kind.model_fields["verb"].default for verb, kind in CONTROL_ORDERS.items()}
    assert verbs == {verb: verb for verb in CONTROL_ORDERS}
