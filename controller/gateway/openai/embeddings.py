"""OpenAI's Embeddings."""

from typing import Any, Literal

from pydantic import Field

from controller.gateway.text_requests import TextRequest, usage_body
from shared.client import Embeddings
from shared.messages.request import Dimensions, Input, ModelName


class EmbeddingsRequest(TextRequest):
    """`POST /v1/embeddings`."""

    input: Input = Field(examples=["The capital of France is Paris."])
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None

    # Extensions of the cluster.
    prompt_name: ModelName | None = Field(
        None, description="Which of the model's own prompts precedes each text, such as `query`."
    )
    truncate: bool = Field(
        False, description="Cut texts that are too long for the model, instead of failing."
    )


def embedding_list(embeddings: Embeddings, model: str, *, packed: bool) -> dict[str, Any]:
    """Return the body of an answer.

    Args:
        packed: vectors as base64 instead of numbers.
    """
    vectors = embeddings.packed if packed else embeddings.vectors
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": usage_body(embeddings.usage),
    }
