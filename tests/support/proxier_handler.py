"""A `RequestHandler` without clusters: each caller with a certificate has the rights of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeocean.errors import Refusal
from kubeocean.proxier.authentication import Authenticator, Caller, from_certificate
from kubeocean.proxier.authorization import Authorizer, Right
from kubeocean.proxier.connection_limits import RateLimits
from kubeocean.proxier.handler import RequestHandler
from kubeocean.proxier.http import Exchange
from kubeocean.proxier.metrics import ProxierMetrics
from kubeocean.proxier.node_pages import NodePages
from kubeocean.proxier.pod_lookup import PodLocation, PodLookup
from kubeocean.proxier.routes import Page
from kubeocean.proxier.sessions import Sessions
from kubeocean.runtime.objects import Key

__all__ = ["ENTERS", "READS", "FixedRights", "handler_of"]

READS = frozenset({Right("get", "proxy"), Right("get", "metrics"), Right("get", "stats")})
ENTERS = READS | {Right("create", "proxy")}


class _CertificatesOnly(Authenticator):
    def __init__(self) -> None:
        pass

    async def authenticate(
        self, certificate: Mapping[str, Any] | None, authorization: str, peer: str = ""
    ) -> Caller:
        caller = from_certificate(certificate)
        if caller is None:
            raise Refusal(401, "not authenticated")
        return caller


class FixedRights(Authorizer):
    """The same rights for each caller, and the number of requests that were authorized."""

    def __init__(self, rights: frozenset[Right]) -> None:
        self.rights = rights
        self.authorized = 0

    async def authorize(self, caller: Caller, rights: tuple[Right, ...], vnode: str) -> None:
        if not self.rights & set(rights):
            raise Refusal(403, "not authorized")
        self.authorized += 1


class _TwoPods(PodLookup):
    def __init__(self) -> None:
        pass

    def vnode_of(self, pod: Key) -> str:
        return "v1" if pod.namespace in ("ns", "other") else ""

    def locate(self, pod: Key, vnode: str, *, uid: str = "", container: str = "") -> PodLocation:
        if pod not in (Key("ns", "pod"), Key("other", "pod")):
            raise Refusal(404, "no such pod")
        return PodLocation(pod, "u1", vnode, Key("worker", "pod-1"), "b1")


class _OnePage(NodePages):
    def __init__(self) -> None:
        pass

    async def serve(self, exchange: Exchange, route: Page, vnode: str) -> None:
        await exchange.respond(200, b"a page")


def handler_of(
    rights: FixedRights,
    sessions: Sessions,
    *,
    metrics: ProxierMetrics | None = None,
    rate_limits: RateLimits | None = None,
) -> RequestHandler:
    """Return a handler for the pods `ns/pod` and `other/pod` on node `v1`, which run as
    `worker/pod-1`."""
    return RequestHandler(
        authenticator=_CertificatesOnly(),
        authorizer=rights,
        rate_limits=rate_limits or RateLimits(rate=1e6, burst=1e6),
        pod_lookup=_TwoPods(),
        sessions=sessions,
        pages=_OnePage(),
        metrics=metrics,
    )
