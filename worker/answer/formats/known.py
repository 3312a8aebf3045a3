"""All tool formats, and detection of a model's format from its chat template and vocabulary."""

from collections.abc import Container

from worker.answer.formats.base import ToolFormat
from worker.answer.formats.deepseek import (
    DeepSeekDsmlFormat,
    DeepSeekV3Format,
    DeepSeekV31Format,
)
from worker.answer.formats.gemma import FunctionGemmaFormat, GemmaFormat
from worker.answer.formats.json_list import CohereFormat, GraniteFormat, NemotronFormat
from worker.answer.formats.json_object import HermesFormat, LlamaFormat
from worker.answer.formats.mistral import MistralArgsFormat, MistralFormat
from worker.answer.formats.named_json import KimiFormat
from worker.answer.formats.pythonic import Lfm2Format
from worker.answer.formats.tagged_families import (
    KIMI_K3_TOKENS,
    GlmFormat,
    KimiK3Format,
    LongcatFormat,
    LongcatJsonFormat,
    MiniCpm5Format,
    MiniMaxFormat,
    QwenXmlFormat,
    SeedFormat,
)

HARMONY = "harmony"
MUSE = "muse"

TOOL_FORMATS: dict[str, ToolFormat] = {
    each.name: each
    for each in (
        HermesFormat(),
        QwenXmlFormat(),
        MistralFormat(),
        MistralArgsFormat(),
        LlamaFormat(),
        GemmaFormat(),
        FunctionGemmaFormat(),
        KimiFormat(),
        KimiK3Format(),
        GlmFormat(),
        MiniMaxFormat(),
        DeepSeekV3Format(),
        DeepSeekV31Format(),
        DeepSeekDsmlFormat(),
        SeedFormat(),
        LongcatFormat(),
        LongcatJsonFormat(),
        NemotronFormat(),
        GraniteFormat(),
        CohereFormat(),
        Lfm2Format(),
        MiniCpm5Format(),
    )
}

TOOL_FORMAT_NAMES = (*TOOL_FORMATS, HARMONY, MUSE)

_TEMPLATE_MARKERS: dict[str, str] = {
    "<minimax:tool_call>": MiniMaxFormat.name,
    "<longcat_arg_key>": LongcatFormat.name,
    "<longcat_tool_call>": LongcatJsonFormat.name,
    "<arg_key>": GlmFormat.name,
    "<seed:tool_call>": SeedFormat.name,
    "<TOOLCALL>": NemotronFormat.name,
    "｜DSML｜": DeepSeekDsmlFormat.name,
    "<atem:function_calls>": MUSE,
    "<|tool_list_start|>": Lfm2Format.name,
    "<|tool_call_start|>": Lfm2Format.name,
    "<|START_ACTION|>": CohereFormat.name,
    "<|tool_call|>": GraniteFormat.name,
}
"""Strings of templates that only one format has; the first string that is found decides."""

_UNIQUE_TOKENS: dict[str, tuple[str, ...]] = {
    KimiK3Format.name: KIMI_K3_TOKENS,
    KimiFormat.name: KimiFormat.openings,
    DeepSeekDsmlFormat.name: ("｜DSML｜",),
    MUSE: ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    Lfm2Format.name: Lfm2Format.markers,
    CohereFormat.name: CohereFormat.markers,
    GraniteFormat.name: ("<|tool_call|>",),
}
"""Added tokens that only one format has."""


def find_tool_format(template: str, added_tokens: Container[str]) -> str | None:
    """Return the name of the tool format of a chat template; None if no known format is found.

    The markers are those of mlx-lm (`tokenizer_utils._infer_tool_parser`), and of formats that
    mlx-lm does not support. A template may write calls with macros, or be a program: then the
    vocabulary identifies the format.
    """
    for marker, name in _TEMPLATE_MARKERS.items():
        if marker in template:
            return name
    if "<|channel|>" in template and "<|message|>" in template:
        return HARMONY
    if "<|tool_call>" in template and "<tool_call|>" in template:
        return GemmaFormat.name
    if "<|tool_calls_section_begin|>" in template:
        return KimiFormat.name
    if "<｜tool▁sep｜>" in template:
        return DeepSeekV3Format.name if "```json" in template else DeepSeekV31Format.name
    if "<start_function_call>" in template:
        return FunctionGemmaFormat.name
    if "<tool_call>" in template and "<function=" in template:
        return QwenXmlFormat.name
    if '<function name="' in template and '<param name="' in template:
        return MiniCpm5Format.name
    if "[TOOL_CALLS]" in template:
        return MistralArgsFormat.name if "[ARGS]" in template else MistralFormat.name
    if "<tool_call>" in template and "tool_calls" in template:
        return HermesFormat.name
    if "<|python_tag|>" in added_tokens and '"parameters"' in template:
        return LlamaFormat.name
    for name, tokens in _UNIQUE_TOKENS.items():
        if all(token in added_tokens for token in tokens):
            return name
    return None
