"""Settings of a model: its source, and how it is served."""

from typing import Annotated, Literal

from pydantic import Field

from shared.codec import TemplateValues
from shared.settings.base import Count, PriorityName, SettingsSection

ToolFormatName = Literal[
    "hermes", "qwen3_coder", "mistral", "mistral_args", "llama3", "gemma4", "function_gemma",
    "kimi_k2", "kimi_k3", "glm", "minimax_m2", "deepseek_v3", "deepseek_v31", "deepseek_dsml",
    "seed_oss", "longcat", "longcat_json", "nemotron", "granite", "cohere", "lfm2", "minicpm5",
    "harmony", "muse", "none",
]  # fmt: skip
ReasoningFormatName = Literal[
    "think", "longcat", "think_start_end", "mistral", "gemma4", "seed", "kimi_k3", "granite",
    "cohere", "none",
]  # fmt: skip


class ModelSettings(SettingsSection):
    """The source of a model, a folder or a Hugging Face id, and its lifetime: it is unloaded when
    it was not used for `ttl_s`; models of lower `priority` are evicted first, `pinned` models
    never. `trust_remote_code` runs Python files of the model. `tool_format` and `reasoning_format`
    are detected from the files of the model by default. `chat_template_kwargs` are variables for
    its chat template, which requests can override. `adapter`: a folder or a Hugging Face id of LoRA
    weights; if `path` is such a folder, its base model is loaded with the adapter.
    `max_context_tokens` lowers the model's context, or sets it if the files of the model have
    none. `rerank: embeddings` lets an embedding model score texts for a query, by the similarity
    of embeddings; a reranker needs no setting."""

    path: str = Field(min_length=1)
    adapter: Annotated[str, Field(min_length=1)] | None = None
    priority: PriorityName = "medium"
    ttl_s: int | None = Field(None, ge=1)
    pinned: bool = False
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    max_context_tokens: Count | None = None
    trust_remote_code: bool = False
    tool_format: ToolFormatName | None = None
    reasoning_format: ReasoningFormatName | None = None
    chat_template_kwargs: TemplateValues = {}
    rerank: Literal["embeddings"] | None = None
