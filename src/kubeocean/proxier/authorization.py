"""Authorization: the right that a request needs, and whether the caller has that right.

Rights are those of a kubelet: subresources of the node. Every request that leads into a pod needs
`create`, also where a WebSocket begins with GET: a caller that may only read must not get a shell.
Some pages have a finer right of their own, which is enough.

The computing cluster decides by SubjectAccessReview; decisions are cached for a few seconds.
Without a decision the request is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from kubeocean.errors import ApiError, Refusal
from kubeocean.proxier.authentication import Caller
from kubeocean.proxier.routes import Logs, NodePage, Page, Route, Run, Session
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Json
from kubeocean.runtime.ttl_cache import TtlCache

__all__ = ["Authorizer", "Right", "required_rights"]

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ALLOWED_S: Final = 10.0
_DENIED_S: Final = 5.0
_MAX_CACHED: Final = 4_096


@dataclass(frozen=True, slots=True)
class Right:
    """A right of a caller: a verb on a subresource of the node."""

    verb: str
    subresource: str


_GET_STATS: Final = Right("get", "stats")
_GET_METRICS: Final = Right("get", "metrics")
_READ: Final = Right("get", "proxy")
_ENTER: Final = Right("create", "proxy")
_PAGES: Final = {
    NodePage.STATS: (_GET_STATS,),
    NodePage.METRICS: (_GET_METRICS,),
    NodePage.CADVISOR: (_GET_METRICS,),
    NodePage.RESOURCE: (_GET_METRICS,),
    NodePage.PROBES: (_GET_METRICS,),
    NodePage.PODS: (Right("get", "pods"), _READ),
    NodePage.RUNNING_PODS: (Right("get", "pods"), _READ),
    NodePage.HEALTH: (Right("get", "healthz"), _READ),
    NodePage.CONFIG: (Right("get", "configz"), _READ),
}


def required_rights(route: Route) -> tuple[Right, ...]:
    """Return the rights for a route; the caller needs any one of them."""
    match route:
        case Session() | Run():
            return (_ENTER,)
        case Logs():
            return (_READ,)
        case Page():
            return _PAGES.get(route.page, (_READ,))
        case _:
            assert_never(route)


class Authorizer:
    """Authorizes callers by SubjectAccessReviews of the computing cluster."""

    def __init__(self, computing: Client, *, clock: Clock | None = None) -> None:
        self._computing = computing
        # Why a caller does not have a right to a virtual node; empty if it has.
        self._denials: TtlCache[tuple[Caller, Right, str], str] = TtlCache(
            _MAX_CACHED, clock=clock or RealClock()
        )

    async def authorize(self, caller: Caller, rights: tuple[Right, ...], vnode: str) -> None:
        """Check that the caller has any of these rights to a virtual node.

        :raises Refusal: the caller has none (403), or the computing cluster could not be asked
            (503).
        """
        denial = "no right permits this request"
        for right in rights:
            denial = await self._denial(caller, right, vnode)
            if not denial:
                return
        raise Refusal(403, denial)

    async def _denial(self, caller: Caller, right: Right, vnode: str) -> str:
        """Return why the caller lacks a right to a virtual node; empty if not."""
        key = (caller, right, vnode)
        denial = self._denials.get(key)
        if denial is None:
            denial = await self._review(caller, right, vnode)
            self._denials.put(key, denial, _DENIED_S if denial else _ALLOWED_S)
        return denial

    async def _review(self, caller: Caller, right: Right, vnode: str) -> str:
        attributes: Json = {
            "verb": right.verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": right.subresource,
            "name": vnode,
        }
        body: Json = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                **caller.subject(),
                "resourceAttributes": attributes,
            },
        }
        try:
            answer = await self._computing.request_json(
                "POST", _REVIEWS, body=body, idempotent=True
            )
        except ApiError as error:
            message = f"could not review the access of user {caller.user!r}: {error.reason}"
            raise Refusal(503, message) from error
        status = answer.get("status") or {}
        if status.get("allowed") is True and status.get("denied") is not True:
            return ""
        resource = f"nodes/{right.subresource}"
        return f"user {caller.user!r} may not {right.verb} {resource} of node {vnode!r}"
