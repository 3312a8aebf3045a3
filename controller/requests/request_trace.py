"""The trace of one request in the leader: its waits and attempts become spans when they end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.ids import ModelId, WorkerId
from shared.messages.trace import TraceContext, derived_span_id
from shared.telemetry import Span, SpanStart
from shared.telemetry.gen_ai import REQUEST_MODEL
from shared.telemetry.span import Attributes
from shared.telemetry.trace_headers import trace_headers


@dataclass(slots=True, eq=False)
class RequestTrace:
    """From acceptance to the end, a request waits or has an attempt at a worker; a list of prompts
    is served by its parts instead. Times are seconds on the caller's clock.

    Attributes:
        span_id: of the request's span.
        parent_id: the client's span, or that of the list of which the request is a part.
        is_part: the parent is the span of a list.
        began_at: when the cluster accepted the request.
        since: when the current wait or attempt began.
        attempt: the number of the current attempt; None while there is none.
        is_waiting: for a worker, or for its turn.
        accepted_at: when the worker accepted the attempt.
        failed_id: the span of the last attempt that failed after a worker had accepted it.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    began_at: float
    since: float
    tracestate: str = ""
    is_part: bool = False
    attempt: int | None = None
    is_waiting: bool = True
    worker: WorkerId | None = None
    model: ModelId | None = None
    accepted_at: float | None = None
    failed_id: str | None = None
    _ended: list[Span] = field(default_factory=list)

    @classmethod
    def begun(cls, start: SpanStart, now: float) -> "RequestTrace | None":
        """Return the trace of a request that arrives; None if the trace is not sampled."""
        if not start.sampled:
            return None
        return cls(start.trace_id, start.span_id, start.parent_id, now, now, start.tracestate)

    @classmethod
    def restored(
        cls,
        context: TraceContext,
        *,
        began_at: float,
        attempt: int | None,
        worker: WorkerId | None,
        model: ModelId | None,
    ) -> "RequestTrace":
        """Return the trace of a request that another leader accepted.

        Args:
            attempt: which the worker has; None if the request waits.
        """
        since = began_at + context.since_ms / 1000
        return cls(
            context.trace_id,
            context.span_id,
            context.parent_id,
            began_at,
            since,
            context.tracestate or "",
            attempt=attempt,
            is_waiting=attempt is None,
            worker=worker,
            model=model,
            accepted_at=since if attempt is not None else None,
        )

    def part(self, name: str, now: float) -> "RequestTrace":
        """Return the trace of a part of a list."""
        span_id = derived_span_id(self.span_id, name)
        return RequestTrace(
            self.trace_id, span_id, self.span_id, now, now, self.tracestate, is_part=True
        )

    def wire_fields(self) -> dict[str, Any]:
        """Return the fields of a `TraceContext` for a worker or the next leader."""
        headers = trace_headers(self.trace_id, self.span_id, sampled=True)
        fields: dict[str, Any] = {
            **headers,
            "since_ms": round((self.since - self.began_at) * 1000, 3),
        }
        if self.parent_id is not None:
            fields["parent_id"] = self.parent_id
        if self.tracestate:
            fields["tracestate"] = self.tracestate
        return fields

    # Waits and attempts.

    def offered(
        self, attempt: int, worker: WorkerId, model: ModelId, waited_for: str, now: float
    ) -> None:
        """An attempt begins; `waited_for`: why no worker had the request before."""
        self._end_wait(waited_for, now)
        self.attempt, self.worker, self.model = attempt, worker, model
        self.since, self.accepted_at = now, None

    def accepted(self, now: float) -> None:
        """The worker accepted the attempt."""
        if self.attempt is None or self.accepted_at is not None:
            return
        self.accepted_at = now
        self._add(
            "dispatch",
            derived_span_id(self._attempt_id, "dispatch"),
            self._attempt_id,
            now,
            {"mlx.worker": self.worker or ""},
        )

    def attempt_ended(self, now: float, code: str = "") -> None:
        """The attempt ended, with the error `code` if it failed; the request waits."""
        if self.attempt is None:
            return
        attributes = {
            "mlx.attempt": self.attempt,
            "mlx.worker": self.worker or "",
            REQUEST_MODEL: self.model or "",
        }
        links = (self.failed_id,) if self.failed_id is not None else ()
        self._add("attempt", self._attempt_id, self.span_id, now, attributes, code, links)
        if code and self.accepted_at is not None:
            self.failed_id = self._attempt_id
        self.attempt, self.accepted_at, self.since, self.is_waiting = None, None, now, True

    def delegated(self, now: float) -> None:
        """The parts of the request are served; each has a trace of its own."""
        self._end_wait("dispatching", now)

    def ended(self, attributes: Mapping[str, Any], waited_for: str, now: float, code: str) -> None:
        """The request ended, with the error `code` if it failed."""
        self.attempt_ended(now, code)
        self._end_wait(waited_for, now)
        self._ended.append(
            Span(
                "request",
                self.trace_id,
                self.span_id,
                self.parent_id,
                self.began_at,
                now,
                attributes,
                kind="internal" if self.is_part else "consumer",
                has_remote_parent=self.parent_id is not None and not self.is_part,
                error=code or None,
                tracestate=self.tracestate,
            )
        )

    def take(self) -> list[Span]:
        """Remove and return the spans that ended."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def _attempt_id(self) -> str:
        return derived_span_id(self.span_id, str(self.attempt))

    def _end_wait(self, reason: str, now: float) -> None:
        if self.is_waiting and now > self.since:
            span_id = derived_span_id(self.span_id, f"waiting {self.since}")
            self._add("waiting", span_id, self.span_id, now, {"mlx.waiting.reason": reason})
        self.is_waiting = False

    def _add(
        self,
        name: str,
        span_id: str,
        parent_id: str,
        now: float,
        attributes: Attributes,
        code: str = "",
        linked_ids: tuple[str, ...] = (),
    ) -> None:
        self._ended.append(
            Span(
                name,
                self.trace_id,
                span_id,
                parent_id,
                self.since,
                now,
                attributes,
                error=code or None,
                linked_ids=linked_ids,
                tracestate=self.tracestate,
            )
        )
