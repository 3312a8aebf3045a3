"""The answer format of a model, and the parser that reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.answer.control import NO_CONTROL_TOKENS, AddedToken, ControlTokenCodec
from worker.answer.formats.base import Tool, ToolFormat
from worker.answer.formats.known import TOOL_FORMATS, find_tool_format
from worker.answer.harmony import HarmonyParser
from worker.answer.marked import MarkedParser
from worker.answer.messages import MessagesParser
from worker.answer.muse import MuseParser
from worker.answer.parser import AnswerDelta, AnswerParser, Bind, Channel
from worker.answer.reasoning import REASONING_FORMATS, ReasoningFormat, find_reasoning_format

MESSAGE_FORMATS: Mapping[str, type[MessagesParser]] = {
    each.name: each for each in (HarmonyParser, MuseParser)
}


@dataclass(frozen=True, slots=True)
class ModelOutputFormat:
    """How a model writes reasoning and tool calls.

    Attributes:
        control: the added tokens of the format's markers.
        reasoning: None if the model does not reason, or does not mark its reasoning.
        tools: None if the model cannot call tools, or writes `messages`.
        messages: the parser for families whose answers are messages with headers.
    """

    control: ControlTokenCodec
    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    messages: type[MessagesParser] | None = None

    @property
    def can_call(self) -> bool:
        return self.tools is not None or self.messages is not None

    @property
    def can_reason(self) -> bool:
        return self.reasoning is not None or self.messages is not None

    def opens_reasoning(self, prompt_end: str) -> bool:
        """Whether a prompt with this end has opened reasoning."""
        return self.reasoning is not None and prompt_end.rstrip().endswith(
            self.reasoning.open.rstrip()
        )

    def parser(self, tools: Sequence[Tool], *, opened: bool, bind: Bind | None) -> AnswerParser:
        """Return the parser for one answer; the arguments are those of `MarkedParser`."""
        if self.messages is not None:
            return self.messages(self.control, tools, bind=bind)
        return MarkedParser(
            self.control, self.reasoning, self.tools, tools, opened=opened, bind=bind
        )


PLAIN_FORMAT = ModelOutputFormat(NO_CONTROL_TOKENS)


def find_format(
    template: str,
    vocabulary: Mapping[str, AddedToken],
    *,
    tool_format: str | None = None,
    reasoning_format: str | None = None,
) -> ModelOutputFormat:
    """Detect the answer format from a chat template and the added tokens of a vocabulary.

    Args:
        tool_format, reasoning_format: names from the settings, if set; `none` for no format.
    """
    tool_format = tool_format or find_tool_format(template, vocabulary)
    messages = MESSAGE_FORMATS.get(tool_format or "")
    if messages is not None and all(each in vocabulary for each in messages.markers):
        return ModelOutputFormat(ControlTokenCodec(vocabulary, messages.markers), messages=messages)
    tools = TOOL_FORMATS.get(tool_format or "")
    if reasoning_format is None:
        reasoning = find_reasoning_format(template, vocabulary)
    else:
        reasoning = next((f for f in REASONING_FORMATS if f.name == reasoning_format), None)
    if reasoning is not None:
        reasoning = reasoning.narrowed(template, vocabulary)
    hidden = reasoning.markers if reasoning is not None else ()
    markers = (*hidden, *(tools.markers if tools is not None else ()))
    return ModelOutputFormat(ControlTokenCodec(vocabulary, markers, hidden), reasoning, tools)


class PlainParser:
    """An `AnswerParser` for which all text is content."""

    channel: Channel = "content"
    has_calls = False

    def push(self, text: str) -> AnswerDelta:
        return AnswerDelta(text)

    def finish(self) -> AnswerDelta:
        return AnswerDelta()
