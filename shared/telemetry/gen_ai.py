"""OpenTelemetry's names of what a model was asked and what it answered. Never its texts.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from collections.abc import Mapping

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
CONVERSATION = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"

PROVIDER_NAME = "mlx"


def operation_name(fields: Mapping[str, object]) -> str:
    """Return the name of what a request with these fields asks; `rerank` and `count_tokens` are
    names of our own."""
    if fields.get("count_only"):
        return "count_tokens"
    if fields.get("input") is not None:
        return "rerank" if fields.get("query") is not None else "embeddings"
    return "chat" if fields.get("messages") is not None else "text_completion"
