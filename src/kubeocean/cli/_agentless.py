"""Builds the member agent that a syncer runs while its binding is a member of a fleet.

`fleet` and `syncer` do not import each other: this module passes the syncer's clients, caches and
settings to the fleet's agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from kubeocean.fleet.agentless.member import AgentlessMember, MemberParts
from kubeocean.fleet.extensions import chosen
from kubeocean.fleet.properties.leasing import LeasedNode, LeasingFacts
from kubeocean.leasing.windows import Calendar
from kubeocean.runtime.quantity import Quantity

if TYPE_CHECKING:
    from kubeocean.syncer.app import Syncer
    from kubeocean.syncer.process import CompanionContext

__all__ = ["SyncerLeasing", "agentless_member"]


def agentless_member(context: CompanionContext) -> AgentlessMember:
    """Return the component that runs a member agent while the syncer's binding is a member."""
    clusters, settings = context.syncer.clusters, context.settings

    def certificate_authority() -> str:
        return (context.worker_access().ca or b"").decode("utf-8", "replace")

    parts = MemberParts(
        name=clusters.binding_name,
        hub=clusters.computing,
        member=context.worker,
        extensions=chosen(settings.status_extensions),
        leasing=SyncerLeasing(context.syncer),
        certificate_authority=certificate_authority,
        instance=context.instance,
        domain=clusters.domain,
        metrics=context.metrics,
    )
    return AgentlessMember(parts, clusters.bindings, clock=clusters.clock)


class SyncerLeasing:
    """Source of facts about leasing, which reads the caches of a syncer."""

    def __init__(self, syncer: Syncer) -> None:
        self._syncer = syncer

    def leasing(self, now: datetime) -> LeasingFacts | None:
        """Return the facts about leasing at `now`; None while the caches are not filled."""
        if not self._syncer.clusters.synced:
            return None
        return LeasingFacts(tuple(self._nodes()), tuple(self._calendars()), now)

    def _nodes(self) -> Iterator[LeasedNode]:
        clusters, usage = self._syncer.clusters, self._syncer.nodes.usage
        domain = clusters.domain
        closed = {domain.taint_out_of_time_windows, domain.taint_vnode_deleting}
        for vnode in clusters.vnodes.items():
            taints = {taint.key for taint in vnode.spec.taints or ()}
            if vnode.deleting or closed & taints:
                continue
            offered = {
                resource: Quantity.stored(amount)
                for resource, amount in (vnode.status.allocatable or {}).items()
            }
            yield LeasedNode(offered, usage.of(clusters.pnode_of(vnode)).ours)

    def _calendars(self) -> Iterator[Calendar]:
        for candidate in self._syncer.policy_cache.candidates():
            terms = candidate.effective
            if terms is not None and not candidate.deleting and not candidate.withdrawn:
                yield terms.calendar
