"""The desk: every request is identified, understood, permitted, placed and only then served.

In this order, so that a stranger learns nothing but that it is a stranger. What was refused is said
in plain words with the status that a kubelet would give.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from kubeocean.errors import ApiError, KubeoceanError, Refusal, Unreachable
from kubeocean.proxier.audit import Entry, kind_of
from kubeocean.proxier.authority import Authority
from kubeocean.proxier.callers import Caller, Callers
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.figures import Figures
from kubeocean.proxier.hearing import while_heard
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.pages import Pages
from kubeocean.proxier.permissions import needed
from kubeocean.proxier.places import Place, Places
from kubeocean.proxier.rooms import Seats
from kubeocean.proxier.routes import (
    Logs,
    NodePage,
    Page,
    Route,
    Run,
    Session,
    metrics_route,
    route,
)
from kubeocean.proxier.sessions import Sessions
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Key
from kubeocean.runtime.tracing import span

__all__ = ["Desk"]

_HEALTH: Final = f"/{NodePage.HEALTH}"
_LOWEST_ERROR: Final = 400
_NODELESS: Final = (NodePage.HEALTH, NodePage.VERSION)  # the same for every node


class Desk:
    """Answers one exchange after the other."""

    def __init__(
        self,
        *,
        callers: Callers,
        authority: Authority,
        paces: Paces,
        places: Places,
        sessions: Sessions,
        pages: Pages,
        figures: Figures | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._callers = callers
        self._authority = authority
        self._paces = paces
        self._places = places
        self._sessions = sessions
        self._pages = pages
        self._figures = figures or Figures()
        self._clock = clock or RealClock()
        self._seats = Seats()

    async def answer(self, exchange: Exchange) -> None:
        """Serve it, or say why not."""
        if exchange.head.method == "GET" and exchange.head.target == _HEALTH:
            # Probes of a kubelet cannot say who they are, and learn no more than that we listen.
            # They ask once: who could ask without end would keep us from everybody else.
            exchange.last = True
            await exchange.answer(200, b"ok")
            return
        entry = Entry(exchange, self._clock)
        with span("kubelet request", method=exchange.head.method) as traced:
            try:
                await self._serve(exchange, entry)
            except KubeoceanError as error:
                entry.outcome = str(error)
                entry.silent = entry.caller is None and _status(error) == _TOO_MANY
                if not exchange.status:
                    await exchange.answer(_status(error), f"{_told(error)}\n".encode())
            except asyncio.CancelledError:
                entry.outcome = "cut at the end of the process"
                raise
            finally:
                self._close(exchange, entry)
                traced.set(status=exchange.status, outcome=entry.outcome)

    def _close(self, exchange: Exchange, entry: Entry) -> None:
        if exchange.status >= _LOWEST_ERROR:
            self._figures.refused(exchange.status)
        if entry.route is not None:
            self._figures.carried(
                kind_of(entry.route), inwards=entry.received, outwards=exchange.sent
            )
        entry.close()

    async def _serve(self, exchange: Exchange, entry: Entry) -> None:
        head = exchange.head
        caller = entry.caller = await self._callers.identify(
            exchange.certificate, head.headers.get("Authorization", ""), exchange.peer
        )
        try:
            entry.vnode, entry.route = self._understand(exchange)
        except Refusal:
            self._pace(caller)  # what makes no sense counts as well
            raise
        asked = entry.route
        namespace = "" if isinstance(asked, Page) else asked.namespace
        self._pace(caller, namespace)
        await self._authority.permit(caller, needed(asked), entry.vnode)
        with self._figures.session(kind_of(asked)), self._seat(caller, namespace):
            await self._go(exchange, entry, asked, entry.vnode)

    def _pace(self, caller: Caller, namespace: str = "") -> None:
        if not self._paces.allows(caller.user, namespace):
            raise Refusal(429, "too many requests of this caller")

    def _seat(self, caller: Caller, namespace: str) -> AbstractContextManager[None]:
        return self._seats.taken(caller.user, namespace) if namespace else nullcontext()

    async def _go(self, exchange: Exchange, entry: Entry, asked: Route, vnode: str) -> None:
        if not vnode and not (isinstance(asked, Page) and asked.page in _NODELESS):
            raise Refusal(404, "which virtual node is meant?")
        match asked:
            case Page():
                await while_heard(exchange, self._pages.answer(exchange, asked, vnode))
            case Logs():
                await self._sessions.logs(exchange, asked, self._place(asked, vnode))
            case Session():
                await self._sessions.enter(exchange, asked, self._place(asked, vnode), entry)
            case Run():
                await self._sessions.run(exchange, asked, self._place(asked, vnode), entry)

    def _understand(self, exchange: Exchange) -> tuple[str, Route]:
        """The virtual node, and what is asked of it."""
        method, target = exchange.head.method, exchange.head.target
        if exchange.metrics_only:
            return metrics_route(method, target)
        asked = route(method, target)
        # Through its own door a node is known; through the common one, by the pod on it.
        if exchange.vnode or isinstance(asked, Page):
            return exchange.vnode, asked
        return self._places.vnode_of(Key(asked.namespace, asked.pod)), asked

    def _place(self, asked: Logs | Session | Run, vnode: str) -> Place:
        uid = "" if isinstance(asked, Logs) else asked.uid
        pod = Key(asked.namespace, asked.pod)
        return self._places.find(pod, vnode, uid=uid, container=asked.container)


_TOO_MANY: Final = 429
_OUR_OWN: Final = (401, 403)  # said to us, of our credentials: it is not the caller who is refused


def _status(error: KubeoceanError) -> int:
    """What the caller is told."""
    match error:
        case Refusal():
            return error.status
        case Unreachable():
            return 502
        case ApiError():
            passed = _LOWEST_ERROR <= error.status < 600 and error.status not in _OUR_OWN
            return error.status if passed else 502
        case _:
            return 500


def _told(error: KubeoceanError) -> str:
    match error:
        case Unreachable():
            return "the worker cluster does not answer"
        case ApiError() if error.status in _OUR_OWN:
            return "the worker cluster does not let us do this"
        case _:
            return str(error)
