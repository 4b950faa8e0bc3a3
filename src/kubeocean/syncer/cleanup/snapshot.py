"""A comparison of both clusters of a binding, with every list read from the API servers.

For `kubeocean repair` and `kubeocean doctor`, whether a syncer runs or not. A kind that the
credentials may not list is named, and the objects that depend on it count as wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from kubeocean.api import naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, is_virtual_node_of
from kubeocean.errors import Forbidden
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, SECRETS, Node
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource, Untyped
from kubeocean.syncer.cleanup.diff import (
    CSI_NODE,
    POD,
    PORT_RESERVATION,
    TOKEN,
    ComparedPod,
    Counterpart,
    Difference,
    ObjectSet,
    beside_node,
    compare,
    compared_pod,
    counterparts,
    untyped,
)
from kubeocean.syncer.nodes.csinodes import CSI_NODES
from kubeocean.syncer.nodes.host_port_forge import RESERVATION_PODS
from kubeocean.syncer.pods.plan import is_own_node
from kubeocean.syncer.pods.referenced_objects import references
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, bound_pods
from kubeocean.syncer.replication.copy_forge import ReplicatedKind
from kubeocean.syncer.replication.kinds.table import REPLICATED_KINDS, references_of
from kubeocean.syncer.replication.referring_pods import Reference

__all__ = ["ClusterSnapshot", "Comparison"]


def _holders(kind: str) -> list[ReplicatedKind]:
    """Return the kinds whose copies may refer to copies of `kind`."""
    return [holder for holder, _ in REPLICATED_KINDS if holder.refers_to == kind]


@dataclass(slots=True)
class Comparison:
    """The objects of both clusters as listed at one time, and their differences."""

    pods: dict[Key, ComparedPod] = field(default_factory=dict)
    used: set[Reference] = field(default_factory=set)
    # Copies that other copies refer to
    referenced: set[tuple[str, Key]] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)  # kinds that may not be listed
    findings: tuple[Difference, ...] = ()

    def is_unused(self, copy: Counterpart) -> bool:
        """Whether no pod and no other copy uses a copy, and all kinds that could use it were
        listed.
        """
        if (copy.kind, copy.virtual) in self.used or (copy.kind, copy.key) in self.referenced:
            return False
        return all(holder.copies.kind not in self.skipped for holder in _holders(copy.kind))

    def is_wanted(self, copy: Counterpart) -> bool:
        """Whether a pod or another copy uses a copy, or may do so in a kind that was not listed."""
        return not self.is_unused(copy)

    def has_pod(self, obj: Counterpart) -> bool:
        """Whether the virtual pod for which an object was created exists."""
        pod = self.pods.get(obj.virtual)
        return pod is not None and pod.uid == obj.virtual_uid


class ClusterSnapshot:
    """Reads and compares both clusters of one binding."""

    def __init__(
        self, computing: Client, worker: Client, *, ids: Ids, mount_namespace: str, domain: Domain
    ) -> None:
        self._computing = computing
        self._worker = worker
        self._ids = ids
        self._mount = mount_namespace
        self._domain = domain

    async def look(self) -> Comparison:
        """List all objects of the binding in both clusters, and return the comparison.

        The worker is read first: an object that is created meanwhile has its virtual pod already,
        and is not mistaken for an orphan.
        """
        comparison, domain = Comparison(), self._domain
        managed = f"{domain.managed_by}={domain.product}"
        pods = await self._list(
            comparison, self._worker, PHYSICAL_PODS, self._mount, labels=managed
        )
        token = domain.service_account_token
        tokens = await self._list(
            comparison, self._worker, SECRETS, self._mount, labels=f"{managed},{token}"
        )
        copies = [
            (kind, await self._read_copies(comparison, kind, f"{managed},!{token}"))
            for kind, _ in REPLICATED_KINDS
        ]
        beside_nodes, nodes = await self._read_nodes(comparison, managed)
        names = {each.name for each in nodes}
        await self._read_pods(comparison, await self._foreign_nodes())
        vnodes = {each.name for each in nodes if self._is_vnode(each)}
        for_pods = self._for_pods(pods, POD, untyped(PHYSICAL_PODS), vnodes)
        # Token Secrets of pods of the Go implementation are deleted with these pods.
        legacy = {each.virtual_uid for each in for_pods if each.legacy_node}
        for_tokens = [
            each
            for each in self._for_pods(tokens, TOKEN, untyped(SECRETS))
            if each.ours or each.virtual_uid not in legacy
        ]
        sets = [
            ObjectSet(for_pods, comparison.has_pod),
            ObjectSet(for_tokens, comparison.has_pod),
            *(ObjectSet(self._copies(each, kind), comparison.is_wanted) for kind, each in copies),
            ObjectSet(beside_nodes, lambda each: each.virtual.name in names),
        ]
        comparison.findings = tuple(compare(sets, comparison.pods))
        return comparison

    async def is_used_now(self, copy: Counterpart) -> bool:
        """Whether a pod, or a copy of another kind, uses a copy, as the API servers answer now."""
        for holder in _holders(copy.kind):
            namespace = self._mount if holder.copies.namespaced else ""
            listing = await self._worker.list(untyped(holder.copies), namespace, keep_raw=True)
            if any(copy.key in holder.copy_references(each.content()) for each in listing.items):
                return True
        if not copy.original.namespaced:
            return False  # pods refer to objects of their namespace
        comparison = Comparison()
        await self._read_pods(comparison, await self._foreign_nodes(), copy.virtual.namespace)
        return (copy.kind, copy.virtual) in comparison.used

    # The worker

    async def _read_copies(
        self, comparison: Comparison, kind: ReplicatedKind, labels: str
    ) -> list[Untyped]:
        namespace = self._mount if kind.copies.namespaced else ""
        resource = untyped(kind.copies)
        copies = await self._list(comparison, self._worker, resource, namespace, labels=labels)
        for copy in copies:
            references = kind.copy_references(copy.content())
            comparison.referenced |= {(kind.refers_to, key) for key in references}
        return copies

    # The computing cluster

    async def _read_nodes(
        self, comparison: Comparison, managed: str
    ) -> tuple[list[Counterpart], list[Node]]:
        """Return the CSINodes and reservations of virtual nodes, and nodes with our labels."""
        computing, domain = self._computing, self._domain
        ours = f"{managed},{domain.cluster_binding}={naming.label_value(self._ids.binding)}"
        csinodes = await self._list(comparison, computing, CSI_NODES, labels=ours)
        reservations = await self._list(
            comparison, computing, RESERVATION_PODS, domain.host_port_namespace, labels=ours
        )
        vnodes = (await computing.list(NODES, labels=ours)).items
        return [
            *(beside_node(each, CSI_NODE, CSI_NODES, each.name) for each in csinodes),
            *(
                beside_node(each, PORT_RESERVATION, RESERVATION_PODS, each.spec.node_name)
                for each in reservations
            ),
        ], vnodes

    def _is_vnode(self, node: Node) -> bool:
        ids = self._ids
        return is_virtual_node_of(
            node, binding=ids.binding, cluster_id=ids.cluster_id, domain=self._domain
        )

    async def _foreign_nodes(self) -> set[str]:
        """Return the names of the virtual nodes of other workers.

        One clusterID may begin with another, so the name alone does not identify the worker of a
        virtual node. Of a node that is gone only the name is known; such a node counts as ours.
        """
        domain = self._domain
        managed = f"{domain.managed_by}={domain.product}"
        nodes = (await self._computing.list(NODES, labels=managed)).items
        return {each.name for each in nodes if not is_own_node(each, self._ids, domain)}

    async def _read_pods(
        self, comparison: Comparison, foreign: Set[str], namespace: str = ""
    ) -> None:
        """Read the virtual pods of this worker, page by page: there may be many other pods."""
        prefix = naming.virtual_node_prefix(self._ids.cluster_id)
        async for page in self._computing.pages(
            VIRTUAL_PODS, namespace, fields=bound_pods(self._domain), keep_raw=True
        ):
            if page.begins:
                comparison.pods.clear()
                comparison.used.clear()
            for pod in page.items:
                node = pod.spec.node_name
                if node.startswith(prefix) and node not in foreign:
                    comparison.pods[pod.key] = compared_pod(pod, self._domain)
                    comparison.used |= references_of(references(pod.content()), pod.namespace)

    # Both clusters

    async def _list(
        self,
        comparison: Comparison,
        client: Client,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        labels: str,
    ) -> list[ObjectT]:
        try:
            listing = await client.list(resource, namespace, labels=labels, keep_raw=True)
        except Forbidden:
            comparison.skipped.add(resource.kind)
            return []
        return listing.items

    def _for_pods(
        self,
        objects: Iterable[Object],
        kind: str,
        resource: Resource[Untyped],
        vnodes: Set[str] = frozenset(),
    ) -> list[Counterpart]:
        ids, domain, virtual = self._ids, self._domain, untyped(VIRTUAL_PODS)
        return counterparts(objects, kind, resource, virtual, ids=ids, domain=domain, vnodes=vnodes)

    def _copies(self, objects: Iterable[Object], kind: ReplicatedKind) -> list[Counterpart]:
        ids, domain, source = self._ids, self._domain, untyped(kind.sources)
        resource = untyped(kind.copies)
        return counterparts(objects, source.kind, resource, source, ids=ids, domain=domain)
