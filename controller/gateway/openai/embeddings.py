"""OpenAI's Embeddings."""

from typing import Any, Literal

from pydantic import Field

from controller.gateway.openai.messages import Short
from shared.client import Embeddings
from shared.codec import StrictInput
from shared.messages.base import PriorityName
from shared.messages.request import Dimensions, Input, ModelName, TimeoutMs


class EmbeddingsRequest(StrictInput):
    """`POST /v1/embeddings`."""

    input: Input = Field(examples=["The capital of France is Paris."])
    model: ModelName | None = Field(
        None, description="A model, a skill or an alias.", examples=["embed"]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None
    user: Short | None = None

    # Extensions of the cluster.
    prompt_name: ModelName | None = Field(
        None, description="Which of the model's own prompts precedes each text, such as `query`."
    )
    truncate: bool = Field(
        False, description="Cut texts that are too long for the model, instead of failing."
    )
    priority: PriorityName | None = None
    timeout_ms: TimeoutMs | None = None

    @property
    def ignored_tools(self) -> list[str]:
        """Always empty: there are no tools."""
        return []

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request, except `input`."""
        return self.model_dump(
            include={"dimensions", "prompt_name", "truncate", "timeout_ms"}, exclude_none=True
        )


def embedding_list(embeddings: Embeddings, model: str, *, packed: bool) -> dict[str, Any]:
    """Return the body of an answer.

    Args:
        packed: vectors as base64 instead of numbers.
    """
    vectors = embeddings.packed if packed else embeddings.vectors
    tokens = embeddings.usage.prompt_tokens
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
