"""Which format a model writes, found from its chat template and its vocabulary."""

from collections.abc import Container

from worker.answer.formats.base import ToolFormat
from worker.answer.formats.cohere import CohereFormat
from worker.answer.formats.gemma import FunctionGemmaFormat, GemmaFormat
from worker.answer.formats.granite import GraniteFormat
from worker.answer.formats.hermes import HermesFormat
from worker.answer.formats.kimi import KimiFormat
from worker.answer.formats.llama import LlamaFormat
from worker.answer.formats.mistral import MistralArgsFormat, MistralFormat
from worker.answer.formats.pythonic import Lfm2Format
from worker.answer.formats.qwen_xml import QwenXmlFormat

HARMONY = "harmony"

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
        GraniteFormat(),
        CohereFormat(),
        Lfm2Format(),
    )
}

TOOL_FORMAT_NAMES = (*TOOL_FORMATS, HARMONY)


def find_tool_format(template: str, added_tokens: Container[str]) -> str | None:
    """The name of the format that a chat template shows; None where it shows none that is known.

    The signs are those of mlx-lm (`tokenizer_utils._infer_tool_parser`).
    """
    if "<|channel|>" in template and "<|message|>" in template:
        return HARMONY
    if "<|tool_call>" in template and "<tool_call|>" in template:
        return GemmaFormat.name
    if "<|tool_calls_section_begin|>" in template:
        return KimiFormat.name
    if "<|tool_list_start|>" in template or "<|tool_call_start|>" in template:
        return Lfm2Format.name
    if "<|START_ACTION|>" in template:
        return CohereFormat.name
    if "<|tool_call|>" in template:
        return GraniteFormat.name
    if "<start_function_call>" in template:
        return FunctionGemmaFormat.name
    if "<tool_call>" in template and "<function=" in template:
        return QwenXmlFormat.name
    if "[TOOL_CALLS]" in template:
        return MistralArgsFormat.name if "[ARGS]" in template else MistralFormat.name
    if "<tool_call>" in template and "tool_calls" in template:
        return HermesFormat.name
    if "<|python_tag|>" in added_tokens and '"parameters"' in template:
        return LlamaFormat.name
    # Templates of LFM2.5 and Phi-4-mini may not name the tokens that the models write.
    if all(token in added_tokens for token in Lfm2Format.markers):
        return Lfm2Format.name
    if "<|tool_call|>" in added_tokens:
        return GraniteFormat.name
    return None
