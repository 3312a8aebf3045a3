"""Answers with marked reasoning and marked tool calls, which most families of models write."""

import re
from collections.abc import Sequence

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.delta import CallDelta, Delta
from worker.answer.formats.base import Tool, ToolFormat, Trigger, text_trigger, token_trigger
from worker.answer.parser import Bind, Channel
from worker.answer.reader import BrokenCall, TextReader, attempt, search
from worker.answer.reasoning import ReasoningFormat
from worker.answer.section import CallSection


class Markers:
    """What begins something in content.

    Attributes:
        closing: the forms of the marker that ends reasoning.
    """

    def __init__(
        self,
        control: ControlTokens,
        reasoning: ReasoningFormat | None,
        tool_format: ToolFormat | None,
        tools: Sequence[Tool],
    ) -> None:
        """Without a format, or without tools, nothing is looked for."""
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
                if (by_token := control.by_token(each)) != each:
                    self._candidates.append(("frame", by_token[0], token_trigger(by_token)))
                    anywhere.add(by_token[0])
            for begin, end in reasoning.content:
                if control.by_token(begin) == begin:
                    self._candidates.append(("begin", begin[0], token_trigger(begin)))
                    self._candidates.append(("end", end[0], token_trigger(end)))
                    anywhere.add(end[0])
                    at_line.add(begin[0])
        names = sorted({tool.name for tool in tools})
        for opening in tool_format.openings if tool_format is not None and names else ():
            assert tool_format is not None
            by_token = control.by_token(opening)
            if by_token != opening:
                self._candidates.append(("calls", by_token[0], token_trigger(by_token)))
                anywhere.add(by_token[0])
            if not control.is_special(opening):
                read = text_trigger(tool_format, opening, names)
                self._candidates.append(("calls", opening[:1], read))
                at_line.add(opening[:1])
        self._start = re.compile(
            f"{_one_of(anywhere)}|(?m:^)(?={_one_of(at_line)})|\\A(?={_one_of(at_start)})"
        )

    def search(self, text: str, at: int) -> tuple[int, int, str]:
        """The first marker from a place on: where it begins, how long it is, and whether it opens
        `reasoning` or `calls`, or is a part of the `frame` of content, or, where that is spelled,
        its `begin` or `end`; without a kind where none is, and nothing before the place begins
        one."""
        while (found := self._start.search(text, at)) is not None:
            at = found.start()
            waits = False
            for kind, first, read in self._candidates:
                if text.startswith(first, at):
                    length = attempt(read, text[at:])
                    if length:
                        return at, length, kind
                    waits |= length is None
            if waits:
                return at, 0, ""
            at += 1
        return len(text), 0, ""


def _one_of(characters: set[str]) -> str:
    """An expression for any of them; for every character where one of them is empty."""
    return "|".join(map(re.escape, sorted(characters))) if characters else "(?!)"


class MarkedAnswer:
    """An `AnswerParser`.

    Args:
        opened: the prompt ends with the marker that opens reasoning.
        bind: see `Bind`; without it no grammar enforces calls, and one is told when it is whole.
    """

    def __init__(
        self,
        control: ControlTokens,
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
        self._markers = Markers(control, reasoning, tool_format, tools)
        self._bind = bind
        self._reasons = opened
        self._section: CallSection | None = None
        self._calls = 0
        self._warnings: set[str] = set()
        self._before = ""  # the last character before _held
        self._held = ""  # what may begin a marker
        self._space = ""  # white space that is dropped where a marker follows
        self._thinks_first = reasoning is not None  # a line break may stand before its marker
        self._trims = opened  # newlines after a marker belong to it
        self._said = False  # anything of content
        self._framed = False  # content has begun with a marker, and not ended

    @property
    def channel(self) -> Channel:
        if self._section is not None:
            return "tool_calls"
        return "reasoning" if self._reasons else "content"

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def push(self, text: str) -> Delta:
        delta = Delta()
        while text:
            if self._section is not None:
                text = self._read_section(self._section, text, delta)
            elif self._reasons:
                text = self._read_reasoning(text, delta)
            else:
                text = self._read_content(text, delta)
        return delta

    def finish(self) -> Delta:
        delta = Delta()
        while (section := self._section) is not None:
            try:
                deltas = section.finish()
            except BrokenCall as error:
                rest = self._give_up(section, error, delta)
            else:
                rest = self._end_section(section, deltas, delta)
            delta += self.push(rest)
        held, self._held = self._held, ""
        if self._reasons:
            self._reason(held, delta)
        else:
            self._say(held, delta)
            if not self.has_calls:
                delta.text += self._space
        self._space = ""
        return delta

    # Each reads what it can and returns what another has to read.

    def _read_content(self, text: str, delta: Delta) -> str:
        text, at = self._before + self._held + text, len(self._before)
        certain, length, kind = self._markers.search(text, at)
        self._say(text[at:certain], delta)
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

    def _read_reasoning(self, text: str, delta: Delta) -> str:
        text = self._held + text
        certain, marker = search(text, 0, self._markers.closing)
        self._reason(text[:certain], delta)
        self._held = text[certain:]
        if not marker:
            return ""
        self._reasons, self._trims = False, True
        self._before = self._held = self._space = ""
        return text[certain + len(marker) :]

    def _read_section(self, section: CallSection, text: str, delta: Delta) -> str:
        try:
            deltas = section.push(text)
        except BrokenCall as error:
            return self._give_up(section, error, delta)
        if not section.done:
            delta.calls += deltas
            return ""
        return self._end_section(section, deltas, delta)

    # Markers.

    def _begin_reasoning(self) -> None:
        self._reasons = self._trims = True
        self._before = self._held = self._space = ""

    def _read_frame(self, marker: str, kind: str, delta: Delta) -> None:
        """A spelled marker around content. It is text where content has begun without it."""
        if kind == "begin" and not self._said:
            self._framed = self._trims = True
            self._before = "\n"
            return
        if kind == "end" and self._framed:
            self._framed = False
        else:
            self._say(marker, delta)
        self._before = marker[-1:]

    def _begin_section(self, opening: str, text: str, delta: Delta) -> str:
        assert self._tool_format is not None
        if self._bind is not None and not self._bind(text):
            return self._read_as_text(opening, text, delta)
        reader = TextReader()
        calls = CallWriter({tool.name for tool in self._tools}, self._control, self._calls)
        reading = self._tool_format.read_section(reader, calls, self._control, self._tools)
        self._section = CallSection(
            opening, reading, reader, calls, enforced=self._bind is not None
        )
        return text

    def _end_section(self, section: CallSection, deltas: list[CallDelta], delta: Delta) -> str:
        delta.calls += deltas
        self._section = None
        self._calls = section.calls
        self._before = self._space = ""
        return section.rest

    def _give_up(self, section: CallSection, error: BrokenCall, delta: Delta) -> str:
        """Turn a section that is no valid call into text. Deltas of an enforced section were sent
        already and stay."""
        warning = f"a tool call could not be read: {error}"
        if warning not in self._warnings:  # what is tried again without its first marker
            self._warnings.add(warning)
            delta.warnings.append(warning)
        self._section = None
        if section.enforced:
            self._calls = section.calls
            return ""
        return self._read_as_text(section.opening, section.text, delta)

    def _read_as_text(self, opening: str, text: str, delta: Delta) -> str:
        """Let what looked like the opening of a call be text; returns what follows it."""
        self._say(self._control.spelled(opening), delta)
        self._before = opening[-1:]
        return text[len(opening) :]

    # Channels.

    def _reason(self, text: str, delta: Delta) -> None:
        text = self._space + self._trimmed(self._control.shown(text))
        said = text.rstrip("\n")
        self._space = text[len(said) :]
        delta.reasoning += said

    def _say(self, text: str, delta: Delta) -> None:
        text = self._space + self._trimmed(self._control.shown(text))
        said = text.rstrip() if self._tools or self._thinks_first else text
        self._thinks_first &= not said
        self._space = text[len(said) :]
        self._said |= bool(said.strip())
        delta.text += said

    def _trimmed(self, text: str) -> str:
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return text
