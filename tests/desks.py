"""Desks in front of no cluster: whoever has a certificate is somebody, and may do what is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeocean.errors import Refusal
from kubeocean.proxier.authority import Authority
from kubeocean.proxier.callers import Caller, Callers, from_certificate
from kubeocean.proxier.desk import Desk
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.figures import Figures
from kubeocean.proxier.paces import Paces
from kubeocean.proxier.pages import Pages
from kubeocean.proxier.permissions import Right
from kubeocean.proxier.places import Place, Places
from kubeocean.proxier.routes import Page
from kubeocean.proxier.sessions import Sessions
from kubeocean.runtime.objects import Key

__all__ = ["ENTERS", "READS", "Rule", "desk_of"]

READS = frozenset({Right("get", "proxy"), Right("get", "metrics"), Right("get", "stats")})
ENTERS = READS | {Right("create", "proxy")}


class _Callers(Callers):
    def __init__(self) -> None:
        pass

    async def identify(
        self, certificate: Mapping[str, Any] | None, authorization: str, peer: str = ""
    ) -> Caller:
        found = from_certificate(certificate)
        if found is None:
            raise Refusal(401, "nobody")
        return found


class Rule(Authority):
    """What everybody may, and how often somebody was let do it."""

    def __init__(self, rights: frozenset[Right]) -> None:
        self.rights = rights
        self.permitted = 0

    async def permit(self, caller: Caller, rights: tuple[Right, ...], vnode: str) -> None:
        if not self.rights & set(rights):
            raise Refusal(403, "may not do this")
        self.permitted += 1


class _Places(Places):
    def __init__(self) -> None:
        pass

    def vnode_of(self, pod: Key) -> str:
        return "v1" if pod.namespace in ("ns", "other") else ""

    def find(self, pod: Key, vnode: str, *, uid: str = "", container: str = "") -> Place:
        if pod not in (Key("ns", "pod"), Key("other", "pod")):
            raise Refusal(404, "not there")
        return Place(pod, "u1", vnode, Key("below", "pod-1"), "b1")


class _Pages(Pages):
    def __init__(self) -> None:
        pass

    async def answer(self, exchange: Exchange, asked: Page, vnode: str) -> None:
        await exchange.answer(200, b"a page")


def desk_of(
    rule: Rule,
    sessions: Sessions,
    *,
    figures: Figures | None = None,
    paces: Paces | None = None,
) -> Desk:
    """A desk for the pods `ns/pod` and `other/pod` on the node `v1`; both run as `below/pod-1`."""
    return Desk(
        callers=_Callers(),
        authority=rule,
        paces=paces or Paces(rate=1e6, burst=1e6),
        places=_Places(),
        sessions=sessions,
        pages=_Pages(),
        figures=figures,
    )
