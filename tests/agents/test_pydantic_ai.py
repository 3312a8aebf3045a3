"""pydantic-ai does a task with tools, as part of `make test`."""

import pytest

from tests.agents.installed import PYDANTIC_AI
from tests.agents.models import DONE
from tests.agents.work import Place, note


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_pydantic_ai_does_its_task(place: Place, api: str) -> None:
    assert DONE in place.run_task(PYDANTIC_AI, "pydantic_ai_task.py", "tools", api)
    note(PYDANTIC_AI, f"calls tools, streamed; an answer of a type ({api})", client="pydantic-ai")
