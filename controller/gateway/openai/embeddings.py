"""OpenAI's Embeddings."""

from typing import Any, Literal

import orjson
from pydantic import Field

from controller.gateway.text_requests import TextRequest, usage_body
from shared.client import Embeddings
from shared.messages import vectors
from shared.messages.request import Dimensions, Input, ModelName
from shared.time_slice import TimeSlice


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


_MAX_SLICE_S = 0.01
"""Two thousand vectors of a thousand numbers take a second: other callers have their turns."""


async def embedding_list(embeddings: Embeddings, model: str, *, packed: bool) -> dict[str, Any]:
    """Return the body of an answer; its entries are JSON already.

    Args:
        packed: vectors as base64 instead of numbers.
    """
    entries = []
    time_slice = TimeSlice(_MAX_SLICE_S)
    for index, text in enumerate(embeddings.packed):
        vector = text if packed else vectors.unpacked(text)
        entry = {"object": "embedding", "index": index, "embedding": vector}
        entries.append(orjson.Fragment(orjson.dumps(entry)))
        if time_slice.is_over:
            await time_slice.end()
    return {
        "object": "list",
        "data": entries,
        "model": model,
        "usage": usage_body(embeddings.usage),
    }
