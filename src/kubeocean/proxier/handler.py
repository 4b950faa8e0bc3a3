"""Handling of one request: authenticate, route, rate-limit, authorize, locate the pod, serve.

The order is fixed: a caller that is not authenticated gets no other information. Refusals have the
status that a kubelet would give, and a message.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from kubeocean.errors import ApiError, KubeoceanError, Refusal, Unreachable
from kubeocean.proxier.audit import AuditEntry, request_kind
from kubeocean.proxier.authentication import Authenticator, Caller
from kubeocean.proxier.authorization import Authorizer, required_rights
from kubeocean.proxier.connection_limits import RateLimits, SessionLimits
from kubeocean.proxier.http import Exchange
from kubeocean.proxier.metrics import ProxierMetrics
from kubeocean.proxier.node_pages import NodePages
from kubeocean.proxier.pod_lookup import PodLocation, PodLookup
from kubeocean.proxier.relay import cancel_on_disconnect
from kubeocean.proxier.routes import (
    Logs,
    NodePage,
    Page,
    Route,
    Run,
    Session,
    metrics_route,
    route_of,
)
from kubeocean.proxier.sessions import Sessions
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Key
from kubeocean.runtime.tracing import span

__all__ = ["RequestHandler"]

_HEALTH: Final = f"/{NodePage.HEALTH}"
_PAGES_WITHOUT_NODE: Final = (NodePage.HEALTH, NodePage.VERSION)  # the same for every node
_LOWEST_ERROR: Final = 400
_TOO_MANY_REQUESTS: Final = 429
_CREDENTIAL_REFUSED: Final = (401, 403)  # by the worker, of the proxier's own credential


class RequestHandler:
    """Handles the kubelet requests of all connections."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        authorizer: Authorizer,
        rate_limits: RateLimits,
        pod_lookup: PodLookup,
        sessions: Sessions,
        pages: NodePages,
        metrics: ProxierMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._rate_limits = rate_limits
        self._pod_lookup = pod_lookup
        self._sessions = sessions
        self._pages = pages
        self._metrics = metrics or ProxierMetrics()
        self._clock = clock or RealClock()
        self._session_limits = SessionLimits()

    async def handle(self, exchange: Exchange) -> None:
        """Serve the request of an exchange, or refuse it, and write the audit line."""
        if exchange.head.method == "GET" and exchange.head.target == _HEALTH:
            # Probes have no credential, and learn no more than that the port is open. One request
            # a connection: requests without end would take the event loop from all others.
            exchange.is_last = True
            await exchange.respond(200, b"ok")
            return
        entry = AuditEntry(exchange, self._clock)
        with span("kubelet request", method=exchange.head.method) as traced:
            try:
                await self._serve(exchange, entry)
            except KubeoceanError as error:
                entry.outcome = str(error)
                entry.silent = entry.caller is None and _status(error) == _TOO_MANY_REQUESTS
                if not exchange.status:
                    await exchange.respond(_status(error), f"{_message(error)}\n".encode())
            except asyncio.CancelledError:
                entry.outcome = "closed at the end of the process"
                raise
            finally:
                self._record(exchange, entry)
                traced.set(status=exchange.status, outcome=entry.outcome)

    def _record(self, exchange: Exchange, entry: AuditEntry) -> None:
        if exchange.status >= _LOWEST_ERROR:
            self._metrics.count_refusal(exchange.status)
        if entry.route is not None:
            kind = request_kind(entry.route)
            self._metrics.add_bytes(kind, received=entry.received, sent=exchange.sent)
        entry.write()

    async def _serve(self, exchange: Exchange, entry: AuditEntry) -> None:
        head = exchange.head
        caller = entry.caller = await self._authenticator.authenticate(
            exchange.certificate, head.headers.get("Authorization", ""), exchange.peer
        )
        try:
            entry.vnode, entry.route = self._route(exchange)
        except Refusal:
            self._limit_rate(caller)  # a request without a route counts as well
            raise
        route = entry.route
        namespace = "" if isinstance(route, Page) else route.namespace
        self._limit_rate(caller, namespace)
        await self._authorizer.authorize(caller, required_rights(route), entry.vnode)
        with self._metrics.track_request(request_kind(route)), self._session(caller, namespace):
            await self._dispatch(exchange, entry, route, entry.vnode)

    def _limit_rate(self, caller: Caller, namespace: str = "") -> None:
        if not self._rate_limits.allows(caller.user, namespace):
            raise Refusal(429, "too many requests of this caller")

    def _session(self, caller: Caller, namespace: str) -> AbstractContextManager[None]:
        if not namespace:
            return nullcontext()
        return self._session_limits.reserve(caller.user, namespace)

    async def _dispatch(
        self, exchange: Exchange, entry: AuditEntry, route: Route, vnode: str
    ) -> None:
        if not vnode and not (isinstance(route, Page) and route.page in _PAGES_WITHOUT_NODE):
            raise Refusal(404, "the request names no virtual node; use the port of the node")
        match route:
            case Page():
                await cancel_on_disconnect(exchange, self._pages.serve(exchange, route, vnode))
            case Logs():
                await self._sessions.logs(exchange, route, self._locate(route, vnode))
            case Session():
                await self._sessions.stream(exchange, route, self._locate(route, vnode), entry)
            case Run():
                await self._sessions.run(exchange, route, self._locate(route, vnode), entry)

    def _route(self, exchange: Exchange) -> tuple[str, Route]:
        """Return the virtual node and the route that a request is for."""
        method, target = exchange.head.method, exchange.head.target
        if exchange.metrics_only:
            return metrics_route(method, target)
        route = route_of(method, target)
        # On a node's own port, the port decides the node; on the common port, the pod does.
        if exchange.vnode or isinstance(route, Page):
            return exchange.vnode, route
        return self._pod_lookup.vnode_of(Key(route.namespace, route.pod)), route

    def _locate(self, route: Logs | Session | Run, vnode: str) -> PodLocation:
        uid = "" if isinstance(route, Logs) else route.uid
        pod = Key(route.namespace, route.pod)
        return self._pod_lookup.locate(pod, vnode, uid=uid, container=route.container)


def _status(error: KubeoceanError) -> int:
    """Return the HTTP status with which an error is answered."""
    match error:
        case Refusal():
            return error.status
        case Unreachable():
            return 502
        case ApiError():
            relayed = _LOWEST_ERROR <= error.status < 600
            return error.status if relayed and error.status not in _CREDENTIAL_REFUSED else 502
        case _:
            return 500


def _message(error: KubeoceanError) -> str:
    match error:
        case Unreachable():
            return "the worker cluster does not answer"
        case ApiError() if error.status in _CREDENTIAL_REFUSED:
            return "the worker cluster does not permit this request"
        case _:
            return str(error)
