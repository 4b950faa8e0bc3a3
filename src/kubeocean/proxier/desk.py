"""The desk: every request is identified, understood, permitted, placed and only then served.

In this order, so that a stranger learns nothing but that it is a stranger. What was refused is said
in plain words with the status that a kubelet would give.
"""

from __future__ import annotations

from typing import Final

from kubeocean.errors import ApiError, Refusal, Unreachable
from kubeocean.proxier.audit import Entry
from kubeocean.proxier.authority import Authority
from kubeocean.proxier.callers import Callers
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.pages import Pages
from kubeocean.proxier.permissions import needed
from kubeocean.proxier.places import Place, Places
from kubeocean.proxier.routes import Logs, NodePage, Page, Route, Run, Session, route
from kubeocean.proxier.sessions import Sessions
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Key

__all__ = ["Desk"]

_HEALTH: Final = f"/{NodePage.HEALTH}"
_LOWEST_ERROR: Final = 400


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
        clock: Clock | None = None,
    ) -> None:
        self._callers = callers
        self._authority = authority
        self._paces = paces
        self._places = places
        self._sessions = sessions
        self._pages = pages
        self._clock = clock or RealClock()

    async def answer(self, exchange: Exchange) -> bool:
        """Whether the connection may be used again."""
        if exchange.head.method == "GET" and exchange.head.target == _HEALTH:
            # Probes of a kubelet cannot say who they are, and learn no more than that we listen.
            await exchange.answer(200, b"ok")
            return True
        entry = Entry(exchange, self._clock)
        try:
            await self._serve(exchange, entry)
        except Refusal as refusal:
            entry.outcome = str(refusal)
            await _refuse(exchange, refusal.status, str(refusal))
        except Unreachable as error:
            entry.outcome = str(error)
            if not exchange.status:
                await _refuse(exchange, 502, "the worker cluster does not answer")
        except ApiError as error:
            entry.outcome = str(error)
            if not exchange.status:
                status = error.status if error.status >= _LOWEST_ERROR else 502
                await _refuse(exchange, status, str(error))
        finally:
            entry.close()
        return exchange.status != 101 and not entry.outcome.startswith("lost")

    async def _serve(self, exchange: Exchange, entry: Entry) -> None:
        headers = exchange.head.headers
        caller = entry.caller = await self._callers.identify(
            exchange.certificate, headers.get("Authorization", "")
        )
        if not self._paces.allows(caller):
            raise Refusal(429, "too many requests of this caller")
        asked = entry.route = route(exchange.head.method, exchange.head.target)
        vnode = entry.vnode = self._vnode(exchange, asked)
        await self._authority.permit(caller, needed(asked), vnode)
        if not vnode:
            raise Refusal(404, "which virtual node is meant?")
        match asked:
            case Page():
                await self._pages.answer(exchange, asked, vnode)
            case Logs():
                where = self._place(asked, vnode)
                await self._sessions.logs(exchange, asked, where)
            case Session():
                where = self._place(asked, vnode)
                await self._sessions.enter(exchange, asked, where, entry)
            case Run():
                where = self._place(asked, vnode)
                await self._sessions.run(exchange, asked, where)

    def _vnode(self, exchange: Exchange, asked: Route) -> str:
        """Through its own door a node is known; through the common one, by the pod on it."""
        if exchange.vnode or isinstance(asked, Page):
            return exchange.vnode
        return self._places.vnode_of(Key(asked.namespace, asked.pod))

    def _place(self, asked: Logs | Session | Run, vnode: str) -> Place:
        uid = "" if isinstance(asked, Logs) else asked.uid
        pod = Key(asked.namespace, asked.pod)
        return self._places.find(pod, vnode, uid=uid, container=asked.container)


async def _refuse(exchange: Exchange, status: int, why: str) -> None:
    await exchange.answer(status, f"{why}\n".encode())
