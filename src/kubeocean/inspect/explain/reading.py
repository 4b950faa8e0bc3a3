"""Reads the parts of both clusters from which a node, a pod or a binding is explained.

For a bound pod only the objects that concern it are read; for a pending pod all virtual nodes, and
the worker's node behind the one that comes closest; for a deleted pod the evictions that policies
record. Each binding and its worker is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import NODE_LEASE_NAMESPACE
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.inspect.explain.node_decision import limits_absent_resource
from kubeocean.inspect.explain.pending import closest_node, filter_nodes
from kubeocean.inspect.explain.snapshots import (
    BindingDetails,
    BindingSnapshot,
    EvictionRecord,
    NodeSnapshot,
    PodSnapshot,
    RolloutSnapshot,
)
from kubeocean.inspect.reader import SnapshotReader, concurrently, exists
from kubeocean.inspect.snapshot import (
    NOT_REQUESTED,
    NotRead,
    SnapshotPart,
    WorkerSnapshot,
    failures,
    known,
    read_object,
    read_part,
)
from kubeocean.inspect.workers import WorkerConnection, list_policies, read_server
from kubeocean.install.wait import rollout
from kubeocean.leasing.requests import COUNTED_PODS, CountedPod
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import (
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    Event,
    Lease,
    Node,
)
from kubeocean.runtime.objects import Key
from kubeocean.syncer.pods.referenced_objects import references
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod, VirtualPod
from kubeocean.syncer.replication.kinds.table import REPLICATED_KINDS
from kubeocean.worker_access.client import find_binding

__all__ = ["ExplainReader"]


class ExplainReader(SnapshotReader):
    """Reads the snapshot for one explanation; `zone` is the time zone of policies that set none."""

    def __init__(self, computing: Client, *, zone: tzinfo = UTC, **options: Any) -> None:
        super().__init__(computing, **options)
        self._zone = zone
        self._bindings: dict[str, BindingSnapshot] = {}
        self._connections: dict[str, WorkerConnection] = {}

    # Bindings

    async def binding(self, name: str) -> BindingSnapshot:
        """Return a binding with its worker and the election of its syncers."""
        if name not in self._bindings:
            self._bindings[name] = await self._read_binding(name)
        return self._bindings[name]

    async def binding_details(self, name: str) -> BindingDetails:
        """Return all parts from which a binding is explained."""
        binding = await self.binding(name)
        worker = binding.present
        if worker is None:
            return BindingDetails(binding=binding)
        listing = await read_part("bindings", self.computing.list(CLUSTER_BINDINGS))
        client = self._client(name)
        if client is not None:
            worker = replace(
                worker,
                server=await read_server(client, "the worker", self.clock),
                missing=await self.missing_rights(client, binding.mount, "rights in the worker"),
                namespace=await exists(client, NAMESPACES, Key("", binding.mount)),
            )
        return BindingDetails(
            binding=replace(binding, worker=worker),
            others=listing
            if isinstance(listing, NotRead)
            else tuple(each for each in listing.items if each.name != name),
            nodes=await self.nodes(name),
            rollouts=await self._rollouts(worker.binding),
        )

    async def _all_bindings(self) -> SnapshotPart[list[BindingSnapshot]]:
        """Read all bindings concurrently: a worker that does not answer delays no other one."""
        listing = await read_part("bindings", self.computing.list(CLUSTER_BINDINGS))
        if isinstance(listing, NotRead):
            return listing
        await self.now()  # both are read once, before all bindings need them
        await self.identity()
        return await concurrently([each.name for each in listing.items], self.binding)

    async def _read_binding(self, name: str) -> BindingSnapshot:
        snapshot = BindingSnapshot(
            now=await self.now(), name=name, zone=self._zone, domain=self.domain
        )
        if not name:
            return snapshot
        reading = self.computing.get(CLUSTER_BINDINGS, name)
        binding = await read_object(f"binding {name}", reading)
        if binding is None or isinstance(binding, NotRead):
            return replace(snapshot, worker=binding)
        connection = await self.workers.probe(await self.workers.connect(binding))
        self._connections[name] = connection
        policies: SnapshotPart[tuple[ResourceLeasingPolicy, ...]] = NOT_REQUESTED
        if connection.client is not None:
            policies = await read_part("policies of the worker", list_policies(connection.client))
        worker = WorkerSnapshot(
            binding=binding,
            ids=await self.ids_of(binding),
            state=connection.state,
            message=connection.message,
            access=connection.access,
            policies=policies,
        )
        return replace(snapshot, worker=worker, election=await self._election(binding))

    async def _election(self, binding: ClusterBinding) -> Lease | NotRead | None:
        """Return the election Lease of a binding's syncers, under either of its possible names."""
        names = (
            naming.syncer_election(binding.name, self.domain),
            naming.syncer_deployment(binding.spec.cluster_id, self.domain),
        )
        namespace, leases = self.domain.system_namespace, []
        for name in dict.fromkeys(names):
            reading = self.computing.get(LEASES, name, namespace)
            lease = await read_object("leases of syncers", reading)
            if isinstance(lease, NotRead):
                return lease
            leases += [lease] if lease is not None else []
        return max(leases, key=lambda each: each.spec.renew_time or "", default=None)

    async def _rollouts(self, binding: ClusterBinding) -> SnapshotPart[tuple[RolloutSnapshot, ...]]:
        domain, cluster_id = self.domain, binding.spec.cluster_id
        rollouts = []
        for name in (
            naming.syncer_deployment(cluster_id, domain),
            naming.proxier_deployment(cluster_id, domain),
        ):
            reading = self.computing.get(DEPLOYMENTS, name, domain.system_namespace, keep_raw=True)
            deployment = await read_object("Deployments", reading)
            if isinstance(deployment, NotRead):
                return deployment
            if deployment is not None:
                state = rollout(deployment.content())
                rollouts.append(RolloutSnapshot(name, state.message, state.done))
        return tuple(rollouts)

    def _client(self, binding: str) -> Client | None:
        connection = self._connections.get(binding)
        return connection.client if connection is not None else None

    # Nodes

    async def node(self, name: str, binding: str = "") -> NodeSnapshot:
        """Return the snapshot of a node: a virtual node of this name, or a worker's node.

        :raises ConfigError: there is no such binding.
        """
        vnode = await _node(self.computing, name)
        if isinstance(vnode, Node):
            return await self._virtual_node(vnode)
        bindings = await self._searched_bindings(binding)
        unread = failures(vnode, bindings)
        if isinstance(bindings, NotRead):
            empty = await self.binding("")
            return NodeSnapshot(binding=empty, name=name, vnode=vnode, searched=unread)
        for position, each in enumerate(bindings, 1):
            node = await self._worker_node(each, name)
            if isinstance(node, NotRead):
                unread += (node,)
            elif node is not None:
                namesakes = await self._namesakes(bindings[position:], name)
                return replace(node, namesakes=namesakes)
            if each.problem:
                unread += (NotRead(f"worker {each.name}", each.problem),)
            unread += failures(each.worker)
        first = bindings[0] if binding else await self.binding("")
        return NodeSnapshot(binding=first, name=name, vnode=vnode, searched=unread)

    async def _searched_bindings(self, name: str) -> SnapshotPart[list[BindingSnapshot]]:
        if not name:
            return await self._all_bindings()
        binding = await self.binding(name)
        if binding.worker is None:
            await find_binding(self.computing, name, "--binding")
        return [binding]

    async def _virtual_node(self, vnode: Node) -> NodeSnapshot:
        domain = self.domain
        if vnode.labels.get(domain.managed_by) != domain.product:
            return NodeSnapshot(binding=await self.binding(""), name=vnode.name, vnode=vnode)
        binding = await self.binding(vnode.labels.get(domain.cluster_binding, ""))
        key = domain.physical_node_name
        pnode_name = vnode.annotations.get(key) or vnode.labels.get(key, "")
        pnode: Node | NotRead | None = None
        client = self._client(binding.name)
        if client is not None and pnode_name:
            pnode = await _node(client, pnode_name, " of the worker")
        return await self._with_pods(binding, vnode, pnode, pnode_name)

    async def _worker_node(
        self, binding: BindingSnapshot, name: str
    ) -> NodeSnapshot | NotRead | None:
        """Return a worker's node of this name, or one whose virtual node has this name."""
        client, present = self._client(binding.name), binding.present
        if client is None or present is None:
            return None
        cluster_id = present.binding.spec.cluster_id
        pnode = await _node(client, name, " of the worker")
        if pnode is None and name.startswith(naming.virtual_node_prefix(cluster_id)):
            nodes = await read_part("nodes of the worker", client.list(NODES))
            if isinstance(nodes, NotRead):
                return nodes
            named = (n for n in nodes.items if naming.virtual_node(cluster_id, n.name) == name)
            pnode = next(named, None)
        if pnode is None or isinstance(pnode, NotRead):
            return pnode
        vnode = await _node(self.computing, naming.virtual_node(cluster_id, pnode.name))
        return await self._with_pods(binding, vnode, pnode, pnode.name)

    async def _namesakes(self, bindings: Sequence[BindingSnapshot], name: str) -> tuple[str, ...]:
        """Return those of the bindings whose worker has a node of this name, too."""
        namesakes = []
        for binding in bindings:
            client = self._client(binding.name)
            if client is not None and isinstance(await _node(client, name), Node):
                namesakes.append(binding.name)
        return tuple(namesakes)

    async def _with_pods(
        self,
        binding: BindingSnapshot,
        vnode: Node | NotRead | None,
        pnode: Node | NotRead | None,
        pnode_name: str,
    ) -> NodeSnapshot:
        cluster_id = binding.binding.spec.cluster_id if binding.binding is not None else ""
        virtual = isinstance(vnode, Node)
        name = (
            vnode.name if isinstance(vnode, Node) else naming.virtual_node(cluster_id, pnode_name)
        )
        node = NodeSnapshot(
            binding=binding, name=name, pnode_name=pnode_name, vnode=vnode, pnode=pnode
        )
        client = self._client(binding.name)
        if client is not None and isinstance(pnode, Node):
            pods = await read_part("pods on the worker's node", _counted_pods(client, pnode.name))
            node = replace(node, worker_pods=pods)
            if limits_absent_resource(binding, pnode):
                nodes = await read_part("nodes of the worker", _nodes(client))
                node = replace(node, worker_nodes=nodes)
        if virtual:
            lease = self.computing.get(LEASES, name, NODE_LEASE_NAMESPACE)
            node = replace(
                node,
                pods=await read_part("pods on the node", _virtual_pods(self.computing, name)),
                heartbeat=await read_object("lease of the node", lease),
            )
        return node

    # Pods

    async def pod(self, key: Key) -> PodSnapshot:
        """Return all parts from which a pod is explained."""
        reading = self.computing.get(VIRTUAL_PODS, key.name, key.namespace, keep_raw=True)
        pod = await read_object(f"pod {key}", reading)
        events = await read_part("events", _events(self.computing, key))
        now = await self.now()
        snapshot = PodSnapshot(key=key, now=now, domain=self.domain, pod=pod, events=events)
        if isinstance(pod, NotRead):
            return snapshot
        if pod is None or pod.deleting:
            snapshot = await self._with_evictions(snapshot)
        if pod is not None and pod.spec.node_name:
            return await self._bound_pod(snapshot, pod)
        if pod is not None and not pod.finished and not pod.deleting:
            return await self._pending_pod(snapshot)
        return snapshot

    async def _with_evictions(self, snapshot: PodSnapshot) -> PodSnapshot:
        """Return the snapshot with the evictions of pods of this name that policies record."""
        bindings = await self._all_bindings()
        if isinstance(bindings, NotRead):
            return replace(snapshot, others=(*snapshot.others, bindings))
        records: list[EvictionRecord] = []
        unread: list[NotRead] = []
        for binding in bindings:
            worker = binding.present
            if binding.problem:
                unread.append(NotRead(f"worker {binding.name}", binding.problem))
            unread += binding.unread
            for policy in known(worker.policies, ()) if worker is not None else ():
                if policy.spec.cluster != binding.name or policy.status.reclaim is None:
                    continue
                records += [
                    EvictionRecord(policy.name, binding.name, each)
                    for each in policy.status.reclaim.last_evictions or ()
                    if (each.namespace, each.name) == snapshot.key
                ]
        others = (*snapshot.others, *unread)
        return replace(snapshot, evictions=tuple(records), others=others)

    async def _pending_pod(self, snapshot: PodSnapshot) -> PodSnapshot:
        nodes = await self.nodes()
        names = {node.name for node in known(nodes, ())}
        pods = await read_part("pods on nodes", self._node_pods(names))
        snapshot = replace(snapshot, nodes=nodes, node_pods=pods)
        node = closest_node(snapshot, filter_nodes(snapshot))
        if node is None:
            return snapshot
        closest = await self._virtual_node(node)
        others = snapshot.others
        if closest.binding.problem:
            worker = f"worker {closest.binding.name}"
            others = (*others, NotRead(worker, closest.binding.problem))
        return replace(snapshot, closest={node.name: closest}, others=others)

    async def _node_pods(self, names: set[str]) -> dict[str, tuple[CountedPod, ...]]:
        """Return the pods on virtual nodes; the many pods on other nodes are not kept."""
        pods: dict[str, list[CountedPod]] = defaultdict(list)
        async for page in self.computing.pages(COUNTED_PODS, fields="spec.nodeName!="):
            if page.begins:
                pods.clear()
            for pod in page.items:
                if pod.spec.node_name in names:
                    pods[pod.spec.node_name].append(pod)
        return {name: tuple(each) for name, each in pods.items()}

    async def _bound_pod(self, snapshot: PodSnapshot, pod: VirtualPod) -> PodSnapshot:
        vnode = await _node(self.computing, pod.spec.node_name)
        if not isinstance(vnode, Node):
            return replace(snapshot, node=vnode)
        node = await self._virtual_node(vnode)
        snapshot = replace(snapshot, node=node)
        client = self._client(node.binding.name)
        if node.binding.present is None or client is None:
            return snapshot
        ppods: list[PhysicalPod] = []
        for key in _physical_names(pod, node):
            reading = client.get(PHYSICAL_PODS, key.name, key.namespace, keep_raw=True)
            ppod = await read_object(f"pod {key} of the worker", reading)
            if isinstance(ppod, NotRead):
                return replace(snapshot, ppods=ppod)
            ppods += [ppod] if ppod is not None else []
        uid = self.domain.virtual_pod_uid
        own = [each for each in ppods if each.annotations.get(uid) == pod.uid]
        events: tuple[Event, ...] = ()
        others = snapshot.others
        for ppod in own:
            part = await read_part("events of the worker", _events(client, ppod.key))
            others += failures(part)
            events += tuple(
                each for each in known(part, ()) if each.involved_object.uid == ppod.uid
            )
        snapshot = replace(snapshot, ppods=tuple(ppods), worker_events=events, others=others)
        return snapshot if own else await self._with_absent(snapshot, pod)

    async def _with_absent(self, snapshot: PodSnapshot, pod: VirtualPod) -> PodSnapshot:
        """Return the snapshot with the objects that the pod needs and that do not exist."""
        refs = references(pod.content())
        needed = [
            (kind.sources, reference.name)
            for kind, _ in REPLICATED_KINDS
            for reference in kind.pod_references(refs)
            if not reference.optional
        ]
        absent, others = list(snapshot.absent), snapshot.others
        for resource, name in needed:
            present = await exists(self.computing, resource, Key(pod.namespace, name))
            others += failures(present)
            if present is False:
                absent.append(f"{resource.kind} {pod.namespace}/{name}")
        return replace(snapshot, absent=tuple(absent), others=others)


def _physical_names(pod: VirtualPod, node: NodeSnapshot) -> list[Key]:
    """Return every name under which a pod may run in the worker."""
    domain, mount, annotations = node.binding.domain, node.binding.mount, pod.annotations
    names = [
        Key(mount, naming.physical_name(pod.name, pod.namespace)),
        Key(mount, naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)),
    ]
    if domain.physical_pod_name in annotations:
        namespace = annotations.get(domain.physical_pod_namespace, mount)
        names.append(Key(namespace, annotations[domain.physical_pod_name]))
    return list(dict.fromkeys(names))


async def _node(client: Client, name: str, of: str = "") -> Node | NotRead | None:
    return await read_object(f"node {name}{of}", client.get(NODES, name))


async def _counted_pods(client: Client, node: str) -> tuple[CountedPod, ...]:
    return tuple((await client.list(COUNTED_PODS, fields=f"spec.nodeName={node}")).items)


async def _virtual_pods(client: Client, node: str) -> tuple[VirtualPod, ...]:
    return tuple((await client.list(VIRTUAL_PODS, fields=f"spec.nodeName={node}")).items)


async def _events(client: Client, key: Key) -> tuple[Event, ...]:
    fields = f"involvedObject.kind=Pod,involvedObject.name={key.name}"
    return tuple((await client.list(EVENTS, key.namespace, fields=fields)).items)


async def _nodes(client: Client) -> tuple[Node, ...]:
    return tuple((await client.list(NODES)).items)
