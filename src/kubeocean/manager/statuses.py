"""Statuses: what we write on a binding, and tell of it.

Every write says which version of the binding it was decided upon, so that of two writers one has to
look again; what would change nothing is not written. Events follow what was written, once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kubeocean.api.binding import CLUSTER_BINDINGS, BindingStatus, ClusterBinding
from kubeocean.errors import NotFound
from kubeocean.manager.verdicts import happenings
from kubeocean.runtime.client import Client
from kubeocean.runtime.correlator import EventType
from kubeocean.runtime.events import EventRecorder, reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Condition, Json, set_condition
from kubeocean.runtime.patches import MergePatch

__all__ = ["Statuses", "with_conditions"]

_OURS = ("phase", "conditions", "lastSyncTime", "observedGeneration")


class Statuses:
    """Writes to bindings, for all who have something to say of them."""

    def __init__(
        self, client: Client, bindings: Informer[ClusterBinding], events: EventRecorder
    ) -> None:
        self._client = client
        self._bindings = bindings
        self._events = events

    async def write(self, binding: ClusterBinding, wanted: BindingStatus) -> ClusterBinding:
        """Make the status say this; the binding as it is then."""
        if wanted == binding.status:
            return binding
        status: Json = msgspec.to_builtins(wanted)
        # Others' conditions may have an empty message, which a server wants to see all the same.
        status["conditions"] = [{"message": ""} | each for each in status.get("conditions", ())]
        body: Json = {
            "metadata": {"resourceVersion": binding.resource_version},
            "status": {name: status[name] for name in _OURS if name in status},
        }
        written = await self._patch(binding, body, subresource="status")
        for each in happenings(binding.status, wanted):
            self.emit(binding, each.type, each.reason, each.message)
        return written

    async def finalize(self, binding: ClusterBinding, finalizers: Iterable[str]) -> ClusterBinding:
        """Let these hold the binding, and no others."""
        metadata = {"resourceVersion": binding.resource_version, "finalizers": list(finalizers)}
        return await self._patch(binding, {"metadata": metadata})

    def emit(self, binding: ClusterBinding, type_: EventType, reason: str, message: str) -> None:
        """Tell of something that happened to the binding."""
        self._events.emit(reference(CLUSTER_BINDINGS, binding), type_, reason, message)

    async def _patch(
        self, binding: ClusterBinding, body: Json, *, subresource: str = ""
    ) -> ClusterBinding:
        try:
            written = await self._client.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch(body), subresource=subresource
            )
        except NotFound:
            return binding  # it is gone, and nobody reads it any more
        self._bindings.wrote(written)
        return written


def with_conditions(
    status: BindingStatus, conditions: Iterable[Condition], *, now: str
) -> BindingStatus:
    """The status, with these conditions in the place of their types."""
    told = status.conditions
    for condition in conditions:
        told = set_condition(told, condition, now=now)
    return msgspec.structs.replace(status, conditions=told)
