"""The handlers of `/cluster/events` and `/cluster/orders`."""

from starlette.requests import Request
from starlette.types import ASGIApp

from controller.gateway.api_keys import ApiKeyRing
from controller.gateway.endpoint import ShuttingDown, api_key, json_response, peer_of
from controller.gateway.live.event_stream import EventStreamResponse, requested_views
from controller.gateway.live.feed import LiveFeed
from controller.gateway.live.orders import OrderBody, OrderService
from controller.gateway.live.rights import Caller, caller_of
from controller.gateway.live.viewer_limits import ViewerLimits
from controller.gateway.request_body import parse_body, read_body
from shared.errors import ClusterError
from shared.settings.gateway import GatewaySettings

_MAX_ORDER_BYTES = 16 * 1024


class LiveHandlers:
    """After the end of the feed no viewer is accepted any more."""

    def __init__(
        self, settings: GatewaySettings, feed: LiveFeed, orders: OrderService, ring: ApiKeyRing
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._orders = orders
        self._ring = ring
        self._limits = ViewerLimits()

    async def events(self, request: Request) -> ASGIApp:
        caller = self._caller(request)
        views = requested_views(request.query_params.get("views"), caller)
        if self._feed.ended:
            raise ShuttingDown()
        self._limits.check(caller)
        return EventStreamResponse(
            self._feed,
            caller,
            views,
            self._limits,
            is_allowed=lambda: self._has_key(request, caller),
            send_timeout_s=self._settings.send_timeout_ms / 1000,
        )

    async def order(self, request: Request) -> ASGIApp:
        caller = self._caller(request)
        body = await read_body(
            request,
            max_bytes=_MAX_ORDER_BYTES,
            timeout_s=self._settings.body_timeout_ms / 1000,
        )
        parsed, _ = parse_body(OrderBody, body, ignore_unknown=False)
        message = await self._orders.perform(parsed.root, caller)
        self._feed.poll_soon()
        return json_response({"ok": True, "message": message})

    def _has_key(self, request: Request, caller: Caller) -> bool:
        """Whether the key of a request has not been removed or changed since."""
        try:
            return self._ring.find(api_key(request)) == caller.key
        except ClusterError:
            return False

    def _caller(self, request: Request) -> Caller:
        """
        Raises:
            ClusterError: the caller has no valid key, or may not see the cluster.
        """
        requires_key = self._ring.requires_key
        key = self._ring.find(api_key(request))
        request.state.key = key
        return caller_of(key, request.headers, peer_of(request), requires_key=requires_key)
