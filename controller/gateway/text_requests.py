"""What requests with texts to embed, to score or to rank have in common."""

from typing import Any

from pydantic import Field

from controller.gateway.openai.messages import Short
from shared.codec import StrictInput
from shared.messages.base import PriorityName
from shared.messages.request import ModelName, TimeoutMs
from shared.messages.stream import Usage


class TextRequest(StrictInput):
    """The fields that all have."""

    model: ModelName | None = Field(
        None, description="A model, a skill or an alias.", examples=["embed", "rerank"]
    )
    user: Short | None = None

    # Extensions of the cluster.
    priority: PriorityName | None = None
    timeout_ms: TimeoutMs | None = None

    @property
    def ignored_tools(self) -> list[str]:
        """Always empty: there are no tools."""
        return []

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request, except the texts."""
        names = {"dimensions", "prompt_name", "timeout_ms", "truncate"}
        return self.model_dump(include=names, exclude_none=True)


def usage_body(usage: Usage) -> dict[str, int]:
    """Return the usage of an answer, which has no tokens of its own."""
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
