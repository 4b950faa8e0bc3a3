"""Places: where a virtual pod really runs.

The physical pod is computed from the virtual one's name and UID, and must say on its side that it
runs for that very pod of this binding. What the virtual pod's annotations say is never looked at:
its owner can write them. Nothing outside of the binding's namespace is a place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeocean.api import naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Claim, Ids, claim_pod
from kubeocean.errors import Refusal
from kubeocean.proxier.exposition import PodName
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, Resource

__all__ = ["Place", "Places"]


class _Bound(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class _VirtualPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    spec: _Bound = msgspec.field(default_factory=_Bound)


class _Container(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _Running(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    ephemeral_containers: tuple[_Container, ...] | None = None


class _PhysicalPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    spec: _Running = msgspec.field(default_factory=_Running)

    @property
    def containers(self) -> Iterable[str]:
        spec = self.spec
        for group in (spec.containers, spec.init_containers, spec.ephemeral_containers):
            yield from (each.name for each in group or ())


_VIRTUAL: Final = Resource("", "v1", "pods", "Pod", True, _VirtualPod)
_PHYSICAL: Final = Resource("", "v1", "pods", "Pod", True, _PhysicalPod)


@dataclass(frozen=True, slots=True)
class Place:
    """A pod on both sides."""

    virtual: Key
    uid: str
    vnode: str
    physical: Key
    physical_uid: str


class Places:
    """The pods of one binding, as its two clusters show them."""

    def __init__(
        self,
        computing: Client,
        worker: Client,
        *,
        ids: Ids,
        domain: Domain,
        mount_namespace: str,
        metrics: Metrics | None = None,
    ) -> None:
        self._ids = ids
        self.domain = domain
        self._prefix = naming.virtual_node_prefix(ids.cluster_id)
        binding = naming.label_value(ids.binding)
        managed = f"{domain.managed_by}={domain.product}"
        self.vnodes: Informer[Node] = Informer(
            computing,
            NODES,
            labels=f"{managed},{domain.cluster_binding}={binding}",
            metrics=metrics,
        )
        self._above: Informer[_VirtualPod] = Informer(
            computing,
            _VIRTUAL,
            # By namespace: whose label a pod has is for its owner to say.
            fields=f"spec.nodeName!=,metadata.namespace!={domain.host_port_namespace}",
            keep=lambda pod: pod.spec.node_name.startswith(self._prefix),
            metrics=metrics,
        )
        self._below: Informer[_PhysicalPod] = Informer(
            worker,
            _PHYSICAL,
            namespace=mount_namespace,
            labels=managed,
            indexes={"node": lambda pod: (pod.spec.node_name,)},
            metrics=metrics,
        )

    @property
    def parts(self) -> tuple[Runnable, ...]:
        return (self.vnodes, self._above, self._below)

    @property
    def ready(self) -> bool:
        return all(cache.has_synced for cache in (self.vnodes, self._above, self._below))

    def vnode_of(self, pod: Key) -> str:
        """The virtual node that a pod is bound to; nothing if it is on none of ours."""
        found = self._above.get(pod)
        if found is None or self.vnodes.get(Key("", found.spec.node_name)) is None:
            return ""
        return found.spec.node_name

    def find(self, pod: Key, vnode: str, *, uid: str = "", container: str = "") -> Place:
        """Where the pod runs.

        :raises Refusal: it is not on that virtual node, or runs nowhere, or has no such container.
        """
        virtual = self._above.get(pod)
        if virtual is None or not vnode or self.vnode_of(pod) != vnode:
            raise Refusal(404, f"pod {pod} is not on node {vnode}")
        if uid and uid != virtual.uid:
            raise Refusal(404, f"pod {pod} with UID {uid} is not on node {vnode}")
        physical = self._physical(virtual)
        if physical is None:
            raise Refusal(404, f"pod {pod} does not run in the worker cluster")
        if container and container not in physical.containers:
            raise Refusal(404, f"container {container} is not in pod {pod}")
        return Place(pod, virtual.uid, vnode, physical.key, physical.uid)

    def on(self, vnode: str) -> dict[tuple[str, str], PodName]:
        """What runs on a virtual node: names below, and what they are above."""
        node = self.vnodes.get(Key("", vnode))
        if node is None:
            return {}
        names: dict[tuple[str, str], PodName] = {}
        for physical in self._below.by("node", self.pnode_of(node)):
            said = physical.annotations
            key = Key(
                said.get(self.domain.virtual_pod_namespace, ""),
                said.get(self.domain.virtual_pod_name, ""),
            )
            virtual = self._above.get(key)
            if (
                virtual is not None
                and self.vnode_of(key) == vnode
                and self._runs(physical, virtual)
            ):
                names[physical.key] = PodName(key.namespace, key.name, virtual.uid, physical.uid)
        return names

    def pnode_of(self, vnode: Node) -> str:
        """The name of the worker's node that a virtual one stands for."""
        said = vnode.annotations.get(self.domain.physical_node_name)
        return said or vnode.labels.get(self.domain.physical_node_name, "")

    def _physical(self, virtual: _VirtualPod) -> _PhysicalPod | None:
        name, namespace, uid = virtual.name, virtual.namespace, virtual.uid
        for candidate in (
            naming.physical_name(name, namespace),
            naming.second_physical_name(name, namespace, uid=uid),
        ):
            found = self._below.get(Key(self._below.scope.namespace, candidate))
            if found is not None and self._runs(found, virtual):
                return found
        return None

    def _runs(self, physical: _PhysicalPod, virtual: _VirtualPod) -> bool:
        claim = claim_pod(
            physical, virtual=virtual.key, uid=virtual.uid, ids=self._ids, domain=self.domain
        )
        return claim in (Claim.OURS, Claim.TAKEABLE)
