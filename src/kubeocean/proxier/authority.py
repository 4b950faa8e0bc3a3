"""Authority: whether a caller may do something to a virtual node, as the computing cluster says.

Asked by SubjectAccessReview; the answer is remembered for a few seconds. No answer is a no.
"""

from __future__ import annotations

from typing import Final

from kubeocean.errors import ApiError, Refusal
from kubeocean.proxier.callers import Caller
from kubeocean.proxier.permissions import Right
from kubeocean.proxier.remembered import Remembered
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Json

__all__ = ["Authority"]

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ALLOWED_S: Final = 10.0
_DENIED_S: Final = 5.0
_MOST: Final = 4_096


class Authority:
    """The computing cluster's word."""

    def __init__(self, computing: Client, *, clock: Clock | None = None) -> None:
        self._computing = computing
        self._said: Remembered[tuple[Caller, Right, str], str] = Remembered(
            _MOST, clock=clock or RealClock()
        )

    async def permit(self, caller: Caller, rights: tuple[Right, ...], vnode: str) -> None:
        """Return if the caller has any of these rights.

        :raises Refusal: it has none, or the computing cluster could not be asked.
        """
        refusal = "nobody may do this"
        for right in rights:
            refusal = await self._ask(caller, right, vnode)
            if not refusal:
                return
        raise Refusal(403, refusal)

    async def _ask(self, caller: Caller, right: Right, vnode: str) -> str:
        """Why not; nothing if they may."""
        question = (caller, right, vnode)
        refusal = self._said.get(question)
        if refusal is None:
            refusal = await self._review(caller, right, vnode)
            self._said.put(question, refusal, _DENIED_S if refusal else _ALLOWED_S)
        return refusal

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
                "user": caller.user,
                "groups": list(caller.groups),
                "uid": caller.uid,
                "extra": {name: list(values) for name, values in caller.extra},
                "resourceAttributes": attributes,
            },
        }
        try:
            answer = await self._computing.request_json("POST", _REVIEWS, body=body)
        except ApiError as error:
            why = f"could not ask whether {caller.user} may: {error.reason}"
            raise Refusal(503, why) from error
        status = answer.get("status") or {}
        if status.get("allowed") is True and status.get("denied") is not True:
            return ""
        what = f"nodes/{right.subresource}"
        return f"user {caller.user!r} may not {right.verb} {what} of node {vnode!r}"
