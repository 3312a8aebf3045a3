"""Whether an ordered model is there, still comes, or never will."""

import pytest

from shared.cli.model_orders import is_warm
from shared.errors import ModelError
from shared.messages.model_status import ModelStatus
from tests.shared.cli.reports import failed, loading, warm

COLD = warm(state="available", idle_s=None)


@pytest.mark.parametrize(
    ("status", "was_loading", "there"),
    [
        (warm(), False, True),
        (warm(), True, True),
        (loading(), True, False),
        (COLD, False, False),  # it waits for its turn
    ],
)
def test_a_model_is_there_or_may_still_come(
    status: ModelStatus, was_loading: bool, there: bool
) -> None:
    assert is_warm(status, was_loading=was_loading) is there


@pytest.mark.parametrize(
    ("status", "was_loading", "why"),
    [
        (None, False, "no longer has the model"),
        (failed("too large"), True, "too large"),
        (failed("").model_copy(update={"error": None}), True, "gave no reason"),
        (COLD.model_copy(update={"error": "no room"}), False, "no room"),
        (COLD, True, "unloaded before it was warm"),
    ],
)
def test_a_model_that_will_not_come_is_an_error_with_the_reason(
    status: ModelStatus | None, was_loading: bool, why: str
) -> None:
    with pytest.raises(ModelError, match=why):
        is_warm(status, was_loading=was_loading)
