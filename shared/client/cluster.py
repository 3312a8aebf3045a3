"""A connection to a cluster, and its requests."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, overload
from weakref import WeakValueDictionary

import orjson

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.client.completion import Completion
from shared.client.inboxes import DedicatedInbox, StreamInbox
from shared.client.recovery import DEFAULT_TIMES, RecoveryTimes
from shared.client.stream import Stream
from shared.client.text_client import TextClient
from shared.client.typed import M, Schema, bind, check_single
from shared.codec import decode, encode, shortened
from shared.errors import (
    BusError,
    BusPermissionDenied,
    BusTimeout,
    InvalidRequest,
    NoResponders,
    RequestError,
    Unavailable,
)
from shared.ids import (
    LOCAL_CLIENT,
    ClientName,
    RequestId,
    SkillName,
    WorkerId,
    is_name,
    new_request_id,
)
from shared.messages.control import ControlOrder, ControlReply, RequestState
from shared.messages.health import ClusterHealth, ControllerHealth
from shared.messages.request_list import RequestList
from shared.messages.request_parsing import check_request, parse_request
from shared.messages.rollout import ROLLOUT_ORDERS, RolloutOrder, RolloutReply
from shared.messages.routes import Route, RouteAnswer
from shared.messages.sender import decode_from
from shared.settings.nats import NatsSettings

CONNECT_WAIT_S = 3.0
_CONTROLLERS_WAIT_S = 0.5
_REPLY_TIMEOUT_S = 2.0

Content = str | list[dict[str, Any]]


@asynccontextmanager
async def connect(
    servers: str | list[str] | NatsSettings = "nats://127.0.0.1:4222",
    *,
    client: str = LOCAL_CLIENT,
    wait_s: float = CONNECT_WAIT_S,
    times: RecoveryTimes = DEFAULT_TIMES,
) -> AsyncIterator["Cluster"]:
    """Connect to the NATS server of a cluster.

    Args:
        servers: URL, URLs, or settings with credentials or TLS.
        client: the name under which requests are sent; its inboxes carry it too.
        times: how long its streams wait before they query, publish again, and give up.

    Raises:
        BusUnreachable: no server answers within `wait_s`.
        BusPermissionDenied: the server does not permit this user that name.
    """
    if not isinstance(servers, NatsSettings):
        servers = NatsSettings(servers=[servers] if isinstance(servers, str) else servers)
    prefix = f"{subjects.INBOX_PREFIX}.{client}"
    bus = await Bus.connect(servers, name=f"client {client}", inbox_prefix=prefix, wait_s=wait_s)
    try:
        await _check_inboxes(bus)
        yield Cluster(bus, ClientName(client), times=times)
    finally:
        await bus.close()


async def _check_inboxes(bus: Bus) -> None:
    """Raise BusPermissionDenied if the server does not permit the client's inboxes."""
    try:
        await bus.flush()
    except BusPermissionDenied:
        raise
    except BusError:
        pass  # the connection is lost again: as later, the bus reconnects


class Cluster(TextClient):
    """The client of a cluster. Create it with `connect`.

    Args:
        inbox: receives the streams; by default each stream has an inbox of its own.
        times: how long its streams wait before they query, publish again, and give up.
    """

    def __init__(
        self,
        bus: Bus,
        client: ClientName,
        inbox: StreamInbox | None = None,
        times: RecoveryTimes = DEFAULT_TIMES,
    ) -> None:
        self._times = times
        self.bus = bus
        self.client = client
        self._inbox = inbox if inbox is not None else DedicatedInbox(bus)
        self._turns: WeakValueDictionary[str, Stream] = WeakValueDictionary()  # latest by session

    def stream(
        self,
        content: Content | None = None,
        *,
        schema: Schema | None = None,
        skill: str = "chat",
        **fields: Any,
    ) -> Stream:
        """Send a request, and stream its answer.

        Args:
            content: the user's message, or the messages of a whole conversation. Leave it out
                to give `prompt` (plain text or token ids) instead.
            schema: constrains the content to its JSON: a pydantic model, or a JSON schema.
            fields: any field of a request: model, max_tokens, temperature, tools, ...

        Raises:
            InvalidRequest: a field is invalid, or the request has too many bytes.
        """
        body = _body(content, skill, bind(fields, schema) if schema is not None else fields)
        if body.get("stream") is False:
            raise InvalidRequest("stream: use `generate` for a whole answer", param="stream")
        if self._inbox.multiplex:
            body["multiplex"] = True
        request_id = RequestId(body.setdefault("request_id", new_request_id()))
        payload = _encode(body)
        limit = self.bus.max_payload // 4
        if len(payload) > limit:
            raise InvalidRequest(
                f"the request has {len(payload)} bytes; this cluster accepts {limit}",
                code="payload_too_large",
            )
        request = parse_request(payload)
        if schema is not None:
            check_single(request)
        session = request.ordered_session
        stream = Stream(
            self.bus,
            self._inbox,
            self.client,
            SkillName(skill),
            request_id,
            payload,
            choices=request.choices,
            first_index=len(request.received_ids),
            before=self._turns.get(session) if session is not None else None,
            times=self._times,
        )
        if session is not None:
            self._turns[session] = stream
        return stream

    @overload
    async def generate(
        self,
        content: Content | None = None,
        *,
        schema: None = None,
        skill: str = "chat",
        **fields: Any,
    ) -> Completion: ...
    @overload
    async def generate(
        self,
        content: Content | None = None,
        *,
        schema: type[M],
        skill: str = "chat",
        **fields: Any,
    ) -> M: ...
    @overload
    async def generate(
        self,
        content: Content | None = None,
        *,
        schema: Mapping[str, Any],
        skill: str = "chat",
        **fields: Any,
    ) -> Any: ...
    async def generate(
        self,
        content: Content | None = None,
        *,
        schema: Schema | None = None,
        skill: str = "chat",
        **fields: Any,
    ) -> Any:
        """Send a request, and return the whole answer; with a `schema` only its value: an instance
        of the pydantic model, or the parsed JSON. (`stream` with the same `schema`, `collect` and
        `Completion.value` return the rest, too.) Arguments and errors as of `stream`. It streams
        internally, so that it detects a dead cluster.

        Raises:
            InvalidAnswer: the answer does not match the schema, for example because it broke off.
        """
        answer = await self.stream(content, schema=schema, skill=skill, **fields).collect()
        return answer.value(schema) if schema is not None else answer

    async def cancel(self, request_id: str) -> RequestState:
        """Cancel a request; its stream ends with finish_reason `cancelled`. The returned state is
        `unknown` if the cluster does not know the request.

        Raises:
            Unavailable: no controller answers.
        """
        return await self._request_state("cancel", request_id)

    async def status(self, request_id: str) -> RequestState:
        """Return the state of a request; `unknown` if the cluster does not know the request.

        Raises:
            Unavailable: no controller answers.
        """
        return await self._request_state("status", request_id)

    async def route(
        self, content: Content | None = None, *, skill: str = "chat", **fields: Any
    ) -> Route:
        """Return the worker that a request would go to now, and why. The request is not served.
        Arguments as of `stream`.

        Raises:
            RequestError: a field is invalid, or the skill is unknown.
            Unavailable: no controller answers.
        """
        body = _body(content, skill, fields)
        subject = subjects.route(self.client, SkillName(skill))
        answer = await self._query(
            subject, _encode(body), self._no_controller(), code="no_controller"
        )
        reply = decode(RouteAnswer, answer.payload)
        if reply.route is None:
            raise RequestError(reply.message or "", code=reply.code, param=reply.param)
        return reply.route

    async def health(self) -> ClusterHealth:
        """Return the state of the whole cluster.

        Raises:
            Unavailable: no controller leads (with the reason that standbys report), or NATS is
                unreachable.
        """
        code = "no_controller"
        try:
            answer = await self._query(
                subjects.HEALTH_CLUSTER, b"", self._no_controller(), code=code
            )
        except Unavailable as error:
            if error.code != code:
                raise
            raise Unavailable(await self._why_no_leader(), code=code) from None
        return decode(ClusterHealth, answer.payload)

    async def list_requests(
        self, client: ClientName | None = None, *, limit: int = 200
    ) -> RequestList:
        """Return the requests that have not ended: of one client, or of all. Clients of a NATS
        server with authentication may not ask this.

        Raises:
            InvalidRequest: the leader refuses the query; the message says why.
            Unavailable: no controller leads, or NATS is unreachable.
        """
        query = {"client": client, "limit": limit}
        answer = await self._query(
            subjects.LIST_REQUESTS, orjson.dumps(query), self._no_controller(), code="no_controller"
        )
        listed = decode(RequestList, answer.payload)
        if listed.message is not None:
            raise InvalidRequest(listed.message)
        return listed

    async def _why_no_leader(self) -> str:
        answers = await self.bus.request_many(
            subjects.HEALTH_CONTROLLERS, b"", wait_s=_CONTROLLERS_WAIT_S
        )
        reports = [decode(ControllerHealth, answer.payload).controller for answer in answers]
        if not reports:
            return self._no_controller()
        names = ", ".join(sorted(report.id for report in reports))
        problems = [report.leader_problem for report in reports if report.leader_problem]
        why = problems[0] if problems else "one is about to; ask again in a moment"
        return f"no controller leads: {why} (there are: {names})"

    async def control(self, worker: WorkerId, order: ControlOrder) -> ControlReply:
        """Send an order to a worker; `ok` of the reply is False if the worker refuses the order.

        Raises:
            InvalidRequest: `worker` is not a valid name.
            Unavailable: no such worker answers, or NATS is unreachable.
            DecodeError: the reply cannot be read, or is another worker's.
        """
        if not is_name(worker):
            raise InvalidRequest(f"no worker has the name {shortened(worker)!r}", param="worker")
        subject = subjects.worker_control(worker, order.verb)
        answer = await self._query(subject, encode(order), f"worker {worker} does not answer")
        return decode_from(worker, ControlReply, answer.payload, any_protocol=True)

    async def rollout(self, order: RolloutOrder) -> RolloutReply:
        """Send a roll-out order to the leader.

        Raises:
            Unavailable: no controller leads.
            RequestError: the leader refuses the order; the message says why.
        """
        verb = next(verb for verb, kind in ROLLOUT_ORDERS.items() if kind is type(order))
        payload = order.model_dump_json(exclude_none=True).encode()
        unanswered = "no controller leads; `cluster status` says why"
        answer = await self._query(subjects.rollout(verb), payload, unanswered)
        reply = decode(RolloutReply, answer.payload)
        if not reply.ok:
            raise RequestError(reply.message or "the leader refused", code=reply.code)
        return reply

    def _no_controller(self) -> str:
        return f"no controller answers at {self.bus.server_url}; is `controller` running?"

    async def _request_state(self, verb: str, request_id: str) -> RequestState:
        subject = subjects.request(self.client, verb)
        query = orjson.dumps({"request_id": request_id})
        answer = await self._query(
            subject, query, f"no controller answers about the request {request_id!r}"
        )
        return decode(RequestState, answer.payload)

    async def _query(
        self, subject: str, payload: bytes, unanswered: str, *, code: str | None = None
    ) -> IncomingMessage:
        """Send a query, and return the reply.

        Raises:
            Unavailable: there is no reply; with `unanswered` and `code` unless NATS is
                unreachable.
        """
        try:
            return await self.bus.request(subject, payload, timeout_s=_REPLY_TIMEOUT_S)
        except (NoResponders, BusTimeout):
            if not self.bus.connected:
                unanswered, code = "the connection to NATS is lost", "disconnected"
            raise Unavailable(unanswered, code=code) from None


def _body(content: Content | None, skill: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a request with these fields.

    Raises:
        InvalidRequest: `skill` is not a valid name.
    """
    if not is_name(skill):
        raise InvalidRequest(
            f"skill: the skill must match [A-Za-z0-9_-]{{1,64}}, unlike {shortened(repr(skill))}",
            param="skill",
        )
    body = dict(fields)
    if isinstance(content, str):
        body["messages"] = [{"role": "user", "content": content}]
    elif content is not None:
        body["messages"] = content
    return body


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        check_request(body)  # its error names the field, if the value is not allowed
        raise InvalidRequest(f"the request cannot be written as JSON: {error}") from None
