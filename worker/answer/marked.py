"""Answers with markers around reasoning and tool calls, as most model families write them."""

import re
from collections.abc import Sequence

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool, ToolFormat, Trigger, text_trigger, token_trigger
from worker.answer.parser import AnswerDelta, Bind, CallDelta, Channel
from worker.answer.reader import BrokenCall, TextReader, attempt, search
from worker.answer.reasoning import ReasoningFormat
from worker.answer.section import CallSectionParser


class MarkerScanner:
    """Finds the markers that may occur in content.

    Attributes:
        closing: the forms of the marker that ends reasoning.
    """

    def __init__(
        self,
        control: ControlTokenCodec,
        reasoning: ReasoningFormat | None,
        tool_format: ToolFormat | None,
        tools: Sequence[Tool],
    ) -> None:
        """Without a format, or without tools, no markers of tool calls are searched for."""
        self._candidates: list[tuple[str, str, Trigger]] = []  # kind, first character, trigger
        self.closing: tuple[str, ...] = ()
        anywhere: set[str] = set()
        at_line: set[str] = set()
        at_start: set[str] = set()
        if reasoning is not None:
            self.closing = control.forms(reasoning.close)
            for form in control.forms(reasoning.open):
                self._candidates.append(("reasoning", form[0], token_trigger(form)))
                (at_start if form == reasoning.open else anywhere).add(form[0])
            for each in reasoning.content_markers:
                if (encoded := control.encode(each)) != each:
                    self._candidates.append(("frame", encoded[0], token_trigger(encoded)))
                    anywhere.add(encoded[0])
            for begin, end in reasoning.content:
                if control.encode(begin) == begin:
                    self._candidates.append(("begin", begin[0], token_trigger(begin)))
                    self._candidates.append(("end", end[0], token_trigger(end)))
                    anywhere.add(end[0])
                    at_line.add(begin[0])
        names = sorted({tool.name for tool in tools})
        for opening in tool_format.openings if tool_format is not None and names else ():
            assert tool_format is not None
            encoded = control.encode(opening)
            if encoded != opening:
                self._candidates.append(("calls", encoded[0], token_trigger(encoded)))
                anywhere.add(encoded[0])
            if not control.is_special(opening):
                read = text_trigger(tool_format, opening, names)
                self._candidates.append(("calls", opening[:1], read))
                at_line.add(opening[:1])
        self._start = re.compile(
            f"{_one_of(anywhere)}|(?m:^)(?={_one_of(at_line)})|\\A(?={_one_of(at_start)})"
        )

    def search(self, text: str, at: int) -> tuple[int, int, str]:
        """Find the first marker from index `at` on.

        Returns:
            Its index, its length and its kind: `reasoning` or `calls` for what it opens, `frame`
            for a marker around content, or `begin` or `end` for such a marker that is spelled out.
            Without a marker the kind is empty, and the index is where one may still begin.
        """
        while (found := self._start.search(text, at)) is not None:
            at = found.start()
            undecided = False
            for kind, first, read in self._candidates:
                if text.startswith(first, at):
                    length = attempt(read, text[at:])
                    if length:
                        return at, length, kind
                    undecided |= length is None
            if undecided:
                return at, 0, ""
            at += 1
        return len(text), 0, ""


def _one_of(characters: set[str]) -> str:
    """Return a regular expression for any of the characters; an empty one matches everywhere."""
    return "|".join(map(re.escape, sorted(characters))) if characters else "(?!)"


class MarkedParser:
    """An `AnswerParser`.

    Args:
        opened: the prompt ends with the marker that opens reasoning.
        bind: see `Bind`; without it no grammar enforces calls, and a call is reported only when it
            is complete.
    """

    def __init__(
        self,
        control: ControlTokenCodec,
        reasoning: ReasoningFormat | None,
        tool_format: ToolFormat | None,
        tools: Sequence[Tool],
        *,
        opened: bool = False,
        bind: Bind | None = None,
    ) -> None:
        self._control = control
        self._tool_format = tool_format
        self._tools = tools
        self._markers = MarkerScanner(control, reasoning, tool_format, tools)
        self._bind = bind
        self._in_reasoning = opened
        self._section: CallSectionParser | None = None
        self._calls = 0
        self._warnings: set[str] = set()
        self._before = ""  # the last character before _held
        self._held = ""  # text that may be the beginning of a marker
        self._space = ""  # white space that is dropped if a marker follows
        self._may_reason = reasoning is not None  # white space may precede its opening marker
        self._trims = opened  # newlines after a marker belong to the marker
        self._has_content = False
        self._framed = False  # content has begun with a marker, and not ended

    @property
    def channel(self) -> Channel:
        if self._section is not None:
            return "tool_calls"
        return "reasoning" if self._in_reasoning else "content"

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def push(self, text: str) -> AnswerDelta:
        delta = AnswerDelta()
        while text:
            if self._section is not None:
                text = self._read_section(self._section, text, delta)
            elif self._in_reasoning:
                text = self._read_reasoning(text, delta)
            else:
                text = self._read_content(text, delta)
        return delta

    def finish(self) -> AnswerDelta:
        delta = AnswerDelta()
        while (section := self._section) is not None:
            try:
                deltas = section.finish()
            except BrokenCall as error:
                rest = self._abandon_section(section, error, delta)
            else:
                rest = self._end_section(section, deltas, delta)
            delta += self.push(rest)
        held, self._held = self._held, ""
        if self._in_reasoning:
            self._emit_reasoning(held, delta)
        else:
            self._emit_content(held, delta)
            if not self.has_calls:
                delta.text += self._space
        self._space = ""
        return delta

    # Each method reads what it can, and returns the text that is left for another one.

    def _read_content(self, text: str, delta: AnswerDelta) -> str:
        text, at = self._before + self._held + text, len(self._before)
        certain, length, kind = self._markers.search(text, at)
        self._emit_content(text[at:certain], delta)
        self._before, self._held = text[:certain][-1:], text[certain:]
        if not kind:
            return ""
        self._held = ""
        if kind == "calls":
            return self._begin_section(text[certain : certain + length], text[certain:], delta)
        if kind == "reasoning":
            self._begin_reasoning()
        elif kind != "frame":
            self._read_frame(text[certain : certain + length], kind, delta)
        return text[certain + length :]

    def _read_reasoning(self, text: str, delta: AnswerDelta) -> str:
        text = self._held + text
        certain, marker = search(text, 0, self._markers.closing)
        self._emit_reasoning(text[:certain], delta)
        self._held = text[certain:]
        if not marker:
            return ""
        self._in_reasoning, self._trims = False, True
        self._before = self._held = self._space = ""
        return text[certain + len(marker) :]

    def _read_section(self, section: CallSectionParser, text: str, delta: AnswerDelta) -> str:
        try:
            deltas = section.push(text)
        except BrokenCall as error:
            return self._abandon_section(section, error, delta)
        if not section.done:
            delta.calls += deltas
            return ""
        return self._end_section(section, deltas, delta)

    # Markers.

    def _begin_reasoning(self) -> None:
        self._in_reasoning = self._trims = True
        self._before = self._held = self._space = ""

    def _read_frame(self, marker: str, kind: str, delta: AnswerDelta) -> None:
        """Read a spelled-out marker around content; it is text if content began without one."""
        if kind == "begin" and not self._has_content:
            self._framed = self._trims = True
            self._before = "\n"
            return
        if kind == "end" and self._framed:
            self._framed = False
        else:
            self._emit_content(marker, delta)
        self._before = marker[-1:]

    def _begin_section(self, opening: str, text: str, delta: AnswerDelta) -> str:
        assert self._tool_format is not None
        if self._bind is not None and not self._bind(text):
            return self._read_as_text(opening, text, delta)
        reader = TextReader()
        calls = CallDeltaBuilder({tool.name for tool in self._tools}, self._control, self._calls)
        reading = self._tool_format.read_section(reader, calls, self._control, self._tools)
        self._section = CallSectionParser(
            opening, reading, reader, calls, enforced=self._bind is not None
        )
        return text

    def _end_section(
        self, section: CallSectionParser, deltas: list[CallDelta], delta: AnswerDelta
    ) -> str:
        delta.calls += deltas
        self._section = None
        self._calls = section.calls
        self._before = self._space = ""
        return section.rest

    def _abandon_section(
        self, section: CallSectionParser, error: BrokenCall, delta: AnswerDelta
    ) -> str:
        """Turn a section that is not a valid call into text. The deltas of an enforced section
        were sent already and stay."""
        warning = f"a tool call could not be read: {error}"
        if warning not in self._warnings:  # its text is parsed again without the first marker
            self._warnings.add(warning)
            delta.warnings.append(warning)
        self._section = None
        if section.enforced:
            self._calls = section.calls
            return ""
        return self._read_as_text(section.opening, section.text, delta)

    def _read_as_text(self, opening: str, text: str, delta: AnswerDelta) -> str:
        """Treat the opening of a section as text; returns what follows the opening."""
        self._emit_content(self._control.spell_out(opening), delta)
        self._before = opening[-1:]
        return text[len(opening) :]

    # Channels.

    def _emit_reasoning(self, text: str, delta: AnswerDelta) -> None:
        text = self._space + self._trimmed(self._control.visible(text))
        certain = text.rstrip("\n")
        self._space = text[len(certain) :]
        delta.reasoning += certain

    def _emit_content(self, text: str, delta: AnswerDelta) -> None:
        text = self._space + self._trimmed(self._control.visible(text))
        certain = text.rstrip() if self._tools or self._may_reason else text
        self._may_reason &= not certain
        self._space = text[len(certain) :]
        self._has_content |= bool(certain.strip())
        delta.text += certain

    def _trimmed(self, text: str) -> str:
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return text
