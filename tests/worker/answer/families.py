"""Families of models for tests: what they write, and the added tokens that they write it with."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.worker.answer import writers
from worker.answer.control import AddedToken, ControlTokenCodec
from worker.answer.formats.base import Tool, ToolFormat
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
    GlmFormat,
    KimiK3Format,
    LongcatFormat,
    LongcatJsonFormat,
    MiniCpm5Format,
    MiniMaxFormat,
    QwenXmlFormat,
    SeedFormat,
)
from worker.answer.harmony import HarmonyParser
from worker.answer.marked import MarkedParser
from worker.answer.parser import AnswerDelta, AnswerParser, Bind
from worker.answer.reasoning import REASONING_FORMATS, ReasoningFormat

THINK = REASONING_FORMATS[0]
BY_NAME = {each.name: each for each in REASONING_FORMATS}
GEMMA_THINK = BY_NAME["gemma4"]

WeatherCall = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """One format, with or without its markers in the vocabulary.

    Attributes:
        write: an answer's text of calls, as the family writes them.
        added: the markers that are added tokens; whether they are special.
        verbatim: arguments are JSON as the model wrote it.
    """

    name: str
    tool_format: ToolFormat | None
    write: Callable[[Sequence[WeatherCall]], str]
    added: dict[str, bool]
    reasoning: ReasoningFormat | None = None
    verbatim: bool = True

    @property
    def control(self) -> ControlTokenCodec:
        tokens = {
            text: AddedToken(1000 + number, special)
            for number, (text, special) in enumerate(self.added.items())
        }
        markers: tuple[str, ...] = HarmonyParser.markers if self.tool_format is None else ()
        if self.tool_format is not None:
            markers += self.tool_format.markers
        if self.reasoning is not None:
            markers += self.reasoning.markers
        return ControlTokenCodec(tokens, markers, self.reasoning.markers if self.reasoning else ())

    def parser(
        self, tools: Sequence[Tool], *, opened: bool = False, bind: Bind | None = None
    ) -> AnswerParser:
        return self.parser_with(self.control, tools, opened=opened, bind=bind)

    def parser_with(
        self,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        opened: bool = False,
        bind: Bind | None = None,
    ) -> AnswerParser:
        if self.tool_format is None:
            return HarmonyParser(control, tools, bind=bind)
        return MarkedParser(
            control, self.reasoning, self.tool_format, tools, opened=opened, bind=bind
        )

    def tokens(self, text: str) -> list[str]:
        """A text as its tokenizer would cut it: added tokens, and single characters."""
        added = "|".join(map(re.escape, sorted(self.added, key=len, reverse=True))) or "(?!)"
        control = self.control
        return [
            control.encode(piece) if piece in self.added else piece
            for piece in re.findall(f"{added}|.", text, re.DOTALL)
        ]


def hermes(calls: Sequence[WeatherCall]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {dumps(arguments)}}}\n</tool_call>'
        for name, arguments in calls
    )


def mistral(calls: Sequence[WeatherCall]) -> str:
    return "[TOOL_CALLS]" + dumps(
        [{"name": name, "arguments": arguments} for name, arguments in calls]
    )


def mistral_args(calls: Sequence[WeatherCall]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}" for name, arguments in calls)


def llama(calls: Sequence[WeatherCall]) -> str:
    objects = [dumps({"name": name, "parameters": arguments}) for name, arguments in calls]
    return "<|python_tag|>" + "; ".join(objects)


def llama_bare(calls: Sequence[WeatherCall]) -> str:
    return llama(calls).removeprefix("<|python_tag|>")


def qwen_xml(calls: Sequence[WeatherCall]) -> str:
    def value(argument: Any) -> str:
        return argument if isinstance(argument, str) else dumps(argument)

    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{value(argument)}\n</parameter>\n"
            for key, argument in arguments.items()
        )
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def gemma(calls: Sequence[WeatherCall], open: str, close: str, quote: str) -> str:
    def value(argument: Any) -> str:
        match argument:
            case str():
                return f"{quote}{argument}{quote}"
            case dict():
                return "{" + ",".join(f"{k}:{value(v)}" for k, v in argument.items()) + "}"
            case list():
                return "[" + ",".join(map(value, argument)) + "]"
            case _:
                return json.dumps(argument)

    return "".join(f"{open}call:{name}{value(arguments)}{close}" for name, arguments in calls)


def gemma4(calls: Sequence[WeatherCall]) -> str:
    return gemma(calls, "<|tool_call>", "<tool_call|>", '<|"|>')


def function_gemma(calls: Sequence[WeatherCall]) -> str:
    return gemma(calls, "<start_function_call>", "<end_function_call>", "<escape>")


def kimi(calls: Sequence[WeatherCall]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>"
        f"{dumps(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def granite(calls: Sequence[WeatherCall]) -> str:
    return mistral(calls).replace("[TOOL_CALLS]", "<|tool_call|>", 1)


def phi4(calls: Sequence[WeatherCall]) -> str:
    return f"{granite(calls)}<|/tool_call|>"


def cohere(calls: Sequence[WeatherCall]) -> str:
    objects = [
        dumps({"tool_call_id": str(number), "tool_name": name, "parameters": arguments})
        for number, (name, arguments) in enumerate(calls)
    ]
    return "<|START_ACTION|>[\n    " + ",\n    ".join(objects) + "\n]<|END_ACTION|>"


def lfm2(calls: Sequence[WeatherCall]) -> str:
    def value(argument: Any) -> str:
        return dumps(argument) if isinstance(argument, str) else repr(argument)

    written = [
        f"{name}({', '.join(f'{key}={value(each)}' for key, each in arguments.items())})"
        for name, arguments in calls
    ]
    return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


def minicpm5(calls: Sequence[WeatherCall]) -> str:
    def value(argument: Any) -> str:
        text = argument if isinstance(argument, str) else dumps(argument)
        return f"<![CDATA[{text}]]>" if re.search("[<&\n]", text) else text

    return "".join(
        f'<function name="{name}">'
        + "".join(
            f'<param name="{key}">{value(argument)}</param>' for key, argument in arguments.items()
        )
        + "</function>"
        for name, arguments in calls
    )


def harmony(calls: Sequence[WeatherCall]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        f"<|message|>{dumps(arguments)}<|call|>"
        for name, arguments in calls
    )


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_CALL_TOKENS = {"<tool_call>": False, "</tool_call>": False, "<think>": False, "</think>": False}
_MISTRAL = {"[TOOL_CALLS]": True, "[ARGS]": True, "[CALL_ID]": True}
_GEMMA4 = {
    "<|tool_call>": True, "<tool_call|>": True, '<|"|>': True,
    "<|channel>": True, "<channel|>": True,
}  # fmt: skip
_FUNCTION_GEMMA = {"<start_function_call>": True, "<end_function_call>": True, "<escape>": True}
_GLM = _CALL_TOKENS | dict.fromkeys(
    ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), False
)
_SEED = dict.fromkeys(
    ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"), True
)
_MINIMAX = dict.fromkeys(
    ("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"), False
)
_DEEPSEEK = {"<think>": False, "</think>": False} | dict.fromkeys(
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
     "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"), False,
)  # fmt: skip
_DSML = {"<think>": False, "</think>": False, "｜DSML｜": False}
_XTML = dict.fromkeys(("<|open|>", "<|close|>", "<|sep|>"), True)

_THINKS = {"<think>": False, "</think>": False}
_COHERE = dict.fromkeys((*CohereFormat.markers, *BY_NAME["cohere"].markers), True)

FAMILIES = [
    Family("hermes", HermesFormat(), hermes, _CALL_TOKENS, THINK),
    Family("hermes, markers spelled", HermesFormat(), hermes, {}, THINK),
    Family("mistral", MistralFormat(), mistral, _MISTRAL),
    Family("mistral_args", MistralArgsFormat(), mistral_args, _MISTRAL),
    Family("llama3", LlamaFormat(), llama, {"<|python_tag|>": True}),
    Family("llama3, JSON alone", LlamaFormat(), llama_bare, {"<|python_tag|>": True}),
    Family("qwen3_coder", QwenXmlFormat(), qwen_xml, _CALL_TOKENS, THINK, verbatim=False),
    Family("qwen3_coder, markers spelled", QwenXmlFormat(), qwen_xml, {}, THINK, verbatim=False),
    Family("gemma4", GemmaFormat(), gemma4, _GEMMA4, GEMMA_THINK, verbatim=False),
    Family(
        "function_gemma", FunctionGemmaFormat(), function_gemma, _FUNCTION_GEMMA, verbatim=False
    ),
    Family("kimi_k2", KimiFormat(), kimi, dict.fromkeys(KimiFormat.markers, False)),
    Family("kimi_k3", KimiK3Format(), writers.kimi_k3, _XTML, BY_NAME["kimi_k3"], verbatim=False),
    Family("glm", GlmFormat(), writers.glm, _GLM, THINK, verbatim=False),
    Family("glm, in one line", GlmFormat(), writers.glm_in_one_line, _GLM, THINK, verbatim=False),
    Family("minimax_m2", MiniMaxFormat(), writers.minimax, _MINIMAX, THINK, verbatim=False),
    Family("deepseek_v3", DeepSeekV3Format(), writers.deepseek_v3, _DEEPSEEK, THINK),
    Family("deepseek_v31", DeepSeekV31Format(), writers.deepseek_v31, _DEEPSEEK, THINK),
    Family("deepseek_dsml", DeepSeekDsmlFormat(), writers.dsml, _DSML, THINK, verbatim=False),
    Family(
        "deepseek_dsml, a special token",
        DeepSeekDsmlFormat(),
        writers.dsml_of_v4,
        _DSML | {"｜DSML｜": True},
        THINK,
        verbatim=False,
    ),
    Family("seed_oss", SeedFormat(), writers.seed, _SEED, BY_NAME["seed"], verbatim=False),
    Family("longcat", LongcatFormat(), writers.longcat, {}, BY_NAME["longcat"], verbatim=False),
    Family("longcat_json", LongcatJsonFormat(), writers.longcat_json, {}, BY_NAME["longcat"]),
    Family("nemotron", NemotronFormat(), writers.nemotron, {}, THINK),
    Family("granite", GraniteFormat(), granite, {"<|tool_call|>": True}, BY_NAME["granite"]),
    Family(
        "granite, as Phi writes it",
        GraniteFormat(),
        phi4,
        dict.fromkeys(GraniteFormat.markers, False),
    ),
    Family("cohere", CohereFormat(), cohere, _COHERE, BY_NAME["cohere"]),
    Family("lfm2", Lfm2Format(), lfm2, dict.fromkeys(Lfm2Format.markers, True), verbatim=False),
    Family("minicpm5", MiniCpm5Format(), minicpm5, _THINKS, THINK, verbatim=False),
    Family(
        "minicpm5, tags added",
        MiniCpm5Format(),
        minicpm5,
        _THINKS | dict.fromkeys(("<function", "</function>", "<param", "</param>"), False),
        THINK,
        verbatim=False,
    ),
    Family("harmony", None, harmony, dict.fromkeys(HarmonyParser.markers, True)),
]


@dataclass
class Read:
    """What came of an answer."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    warnings: list[str]


def read(parser: AnswerParser, pieces: Sequence[str]) -> Read:
    """Push all pieces and put together what came; every delta must be in order."""
    total = AnswerDelta()
    for piece in pieces:
        total += parser.push(piece)
    total += parser.finish()
    calls: list[list[str]] = []
    for delta in total.calls:
        if delta.name is not None:
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        assert delta.index == len(calls) - 1
        calls[-1][1] += delta.arguments
    return Read(total.text, total.reasoning, [(name, text) for name, text in calls], total.warnings)
