"""Settings of a model: where it comes from and how it is served."""

from typing import Annotated, Literal

from pydantic import Field

from shared.external_model import TemplateValues
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


class ModelSource(SettingsSection):
    """Where a model comes from, a folder or a Hugging Face id, and how long it stays: it is
    unloaded when it was not used for `ttl_s`, and evicted for others the sooner, the lower its
    `priority`; a `pinned` one never. `trust_remote_code` runs Python files that come with it. How
    it writes tool calls and reasoning is found from its files where `tool_format` and
    `reasoning_format` do not say it; `chat_template_kwargs` go to its chat template, unless a
    request says otherwise. `adapter`: a folder or a Hugging Face id of what was fine-tuned on top
    of it (LoRA); a `path` that is such a folder stands for its base model with it.
    `max_context_tokens` lowers the model's own context, and stands for one that its files do not
    name."""

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
