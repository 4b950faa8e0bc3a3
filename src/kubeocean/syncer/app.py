"""The syncer: the caches of both clusters and all controllers of one binding, wired and run.

A `Syncer` runs while its process is the leader. `Syncer.run` ends when cancelled, and may be called
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized

from kubeocean.api.bindings import ClusterBinding
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.objects import Condition
from kubeocean.syncer.cleanup.binding_deletion import BindingCleanup
from kubeocean.syncer.cleanup.deletion_progress import Leftovers, Unconfirmed
from kubeocean.syncer.cleanup.sweep import Sweep
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.metrics import SyncerMetrics
from kubeocean.syncer.nodes.controller import NodeController
from kubeocean.syncer.nodes.csinodes import CsiNodes
from kubeocean.syncer.nodes.evictions import Evictor
from kubeocean.syncer.nodes.heartbeats import Heartbeats
from kubeocean.syncer.nodes.host_ports import HostPorts
from kubeocean.syncer.nodes.policies import PolicyController
from kubeocean.syncer.nodes.policy_cache import PolicyCache
from kubeocean.syncer.nodes.policy_findings import Overlaps, SelectedResources
from kubeocean.syncer.nodes.reclaim_progress import ReclaimProgress
from kubeocean.syncer.pods.controller import PodController
from kubeocean.syncer.replication.cluster_endpoints import ClusterEndpoints
from kubeocean.syncer.replication.log_configs import LogConfigs
from kubeocean.syncer.replication.pod_copies import PodCopies
from kubeocean.syncer.replication.services import Services
from kubeocean.syncer.settings import Given

__all__ = ["Syncer"]


class Syncer:
    """All controllers of one binding; `given` holds the flags about the computing cluster.

    Handlers of a cache run in the order in which they were registered, which is the order of
    construction in `__init__`. For virtual pods that is: nodes, references of pods, pods (admission
    first), metrics, evictions. No handler depends on another handler having run before.
    """

    def __init__(self, clusters: Clusters, given: Given | None = None) -> None:
        self.clusters = clusters
        self.policy_cache = policy_cache = PolicyCache(clusters)
        reclaims, unconfirmed = ReclaimProgress(), Unconfirmed()
        evictor = Evictor(clusters, reclaims, unconfirmed)
        resources, overlaps = SelectedResources(clusters), Overlaps()
        self.nodes = NodeController(
            clusters, policy_cache, evictor, reclaims, unconfirmed, resources, overlaps
        )
        self.policies = PolicyController(
            clusters, policy_cache, reclaims, resources, overlaps, self.nodes.enqueue_all
        )
        self.heartbeats = Heartbeats(clusters)
        self.csinodes = CsiNodes(clusters)
        self.host_ports = HostPorts(clusters)
        self.endpoints = ClusterEndpoints(clusters, given)
        self.services = Services(clusters, self.endpoints)
        self.log_configs = LogConfigs(clusters)
        self.pod_copies = PodCopies(clusters)
        self.pods = PodController(clusters, self.pod_copies, self.endpoints)
        self.bindings = BindingCleanup(
            clusters,
            reclaims,
            unconfirmed,
            policies_with_finalizer=self.policies.with_finalizer,
            labelled_nodes=self.nodes.labels.left,
            more_conditions=self._binding_conditions,
            claimed=self.policies.claimed,
            leftovers=Leftovers(self.pods, self.pod_copies, self.services, self.log_configs),
        )
        self.sweep = Sweep(
            clusters,
            self.pod_copies,
            self.csinodes,
            self.host_ports,
            nudge=self.pods.controller.enqueue,
        )
        self.metrics = SyncerMetrics(
            clusters,
            self.nodes.usage.of,
            is_idle=lambda: not any(map(len, self._queues)),
        )
        clusters.vpods.on_change(evictor.follow)

    @property
    def ready(self) -> bool:
        return self.clusters.synced

    def _binding_conditions(self, binding: ClusterBinding) -> list[Condition]:
        """Return the conditions of the binding about its policies and its nodes."""
        own = self.nodes.expiry(binding)
        if self.clusters.worker_health.answers:
            own.append(self.policies.summary(binding.metadata.generation))
        return own

    @property
    def _queues(self) -> tuple[Sized, ...]:
        """Return the work queues of the node, policy and pod controllers."""
        return (
            self.nodes.controller.queue,
            self.policies.controller.queue,
            self.pods.controller.queue,
        )

    @property
    def parts(self) -> tuple[Runnable, ...]:
        """All recorders, caches and controllers; each comes after the parts that it reads from."""
        return (
            self.clusters.events,
            self.clusters.worker_events,
            self.clusters.worker_health,
            *self.clusters.caches,
            self.bindings.controller,
            self.policies.controller,
            self.nodes.controller,
            *self.heartbeats.parts,
            *self.csinodes.parts,
            *self.host_ports.parts,
            *self.endpoints.parts,
            *self.services.parts,
            *self.log_configs.parts,
            *self.pod_copies.parts,
            *self.pods.parts,
            *self.sweep.parts,
        )

    def retry_failed(self) -> None:
        """Retry the keys that failed during an outage of the computing cluster."""
        for part in self.parts:
            if isinstance(part, Controller):
                part.retry_failed()

    async def run(self) -> None:
        """Run all controllers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self.parts:
                group.create_task(part.run())
