"""Lookup of the physical pod that a virtual pod runs as.

The physical pod's name is computed from the virtual pod's name and UID, and its labels and
annotations must name that very pod and this binding. Annotations of the virtual pod are not read:
its owner can write them. Pods outside the binding's mount namespace are never located.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeocean.api import naming
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, Ownership, pod_ownership
from kubeocean.errors import Refusal
from kubeocean.proxier.metrics_text import PodName
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, Resource

__all__ = ["PodLocation", "PodLookup"]


class _VirtualPodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class _VirtualPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    spec: _VirtualPodSpec = msgspec.field(default_factory=_VirtualPodSpec)


class _Container(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _PhysicalPodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    ephemeral_containers: tuple[_Container, ...] | None = None


class _PhysicalPod(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    spec: _PhysicalPodSpec = msgspec.field(default_factory=_PhysicalPodSpec)

    @property
    def containers(self) -> Iterable[str]:
        spec = self.spec
        for containers in (spec.containers, spec.init_containers, spec.ephemeral_containers):
            yield from (each.name for each in containers or ())


_VIRTUAL_PODS: Final = Resource("", "v1", "pods", "Pod", True, _VirtualPod)
_PHYSICAL_PODS: Final = Resource("", "v1", "pods", "Pod", True, _PhysicalPod)


@dataclass(frozen=True, slots=True)
class PodLocation:
    """A virtual pod and the physical pod that it runs as."""

    virtual: Key
    uid: str
    vnode: str
    physical: Key
    physical_uid: str


class PodLookup:
    """The virtual nodes and pods of one binding, as the caches of its two clusters show them."""

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
        self._node_prefix = naming.virtual_node_prefix(ids.cluster_id)
        binding = naming.label_value(ids.binding)
        managed = f"{domain.managed_by}={domain.product}"
        self.vnodes: Informer[Node] = Informer(
            computing,
            NODES,
            labels=f"{managed},{domain.cluster_binding}={binding}",
            metrics=metrics,
        )
        self.virtual_pods: Informer[_VirtualPod] = Informer(
            computing,
            _VIRTUAL_PODS,
            # By namespace and not by label: owners of pods choose their labels.
            fields=f"spec.nodeName!=,metadata.namespace!={domain.host_port_namespace}",
            keep=lambda pod: pod.spec.node_name.startswith(self._node_prefix),
            metrics=metrics,
        )
        self.physical_pods: Informer[_PhysicalPod] = Informer(
            worker,
            _PHYSICAL_PODS,
            namespace=mount_namespace,
            labels=managed,
            indexes={"node": lambda pod: (pod.spec.node_name,)},
            metrics=metrics,
        )

    @property
    def informers(self) -> tuple[Runnable, ...]:
        return (self.vnodes, self.virtual_pods, self.physical_pods)

    @property
    def ready(self) -> bool:
        """Whether all caches have synced."""
        caches = (self.vnodes, self.virtual_pods, self.physical_pods)
        return all(cache.has_synced for cache in caches)

    def vnode_of(self, pod: Key) -> str:
        """Return the virtual node of this binding that a pod is bound to; empty if none."""
        virtual = self.virtual_pods.get(pod)
        if virtual is None or self.vnodes.get(Key("", virtual.spec.node_name)) is None:
            return ""
        return virtual.spec.node_name

    def locate(self, pod: Key, vnode: str, *, uid: str = "", container: str = "") -> PodLocation:
        """Locate the physical pod of a virtual pod.

        :raises Refusal: the pod is not on that virtual node, has another UID or no such container,
            or does not run in the worker cluster.
        """
        virtual = self.virtual_pods.get(pod)
        if virtual is None or not vnode or self.vnode_of(pod) != vnode:
            raise Refusal(404, f"pod {pod} is not on node {vnode}")
        if uid and uid != virtual.uid:
            raise Refusal(404, f"pod {pod} with UID {uid} is not on node {vnode}")
        physical = self._physical_pod(virtual)
        if physical is None:
            raise Refusal(404, f"pod {pod} does not run in the worker cluster")
        if container and container not in physical.containers:
            raise Refusal(404, f"container {container} is not in pod {pod}")
        return PodLocation(pod, virtual.uid, vnode, physical.key, physical.uid)

    def pods_on(self, vnode: str) -> dict[tuple[str, str], PodName]:
        """Return the pods that run on a virtual node, by namespace and name of the physical pod."""
        node = self.vnodes.get(Key("", vnode))
        if node is None:
            return {}
        names: dict[tuple[str, str], PodName] = {}
        for physical in self.physical_pods.by("node", self.pnode_of(node)):
            key = Key(
                physical.annotations.get(self.domain.virtual_pod_namespace, ""),
                physical.annotations.get(self.domain.virtual_pod_name, ""),
            )
            virtual = self.virtual_pods.get(key)
            if virtual is None or self.vnode_of(key) != vnode:
                continue
            if self._runs(physical, virtual):
                names[physical.key] = PodName(key.namespace, key.name, virtual.uid, physical.uid)
        return names

    def pnode_of(self, vnode: Node) -> str:
        """Return the name of the worker's node that a virtual node represents."""
        key = self.domain.physical_node_name
        return vnode.annotations.get(key) or vnode.labels.get(key, "")

    def _physical_pod(self, virtual: _VirtualPod) -> _PhysicalPod | None:
        name, namespace, uid = virtual.name, virtual.namespace, virtual.uid
        for candidate in (
            naming.physical_name(name, namespace),
            naming.second_physical_name(name, namespace, uid=uid),
        ):
            physical = self.physical_pods.get(Key(self.physical_pods.scope.namespace, candidate))
            if physical is not None and self._runs(physical, virtual):
                return physical
        return None

    def _runs(self, physical: _PhysicalPod, virtual: _VirtualPod) -> bool:
        """Whether a physical pod runs for a virtual pod, by labels and annotations."""
        ownership = pod_ownership(
            physical, virtual=virtual.key, uid=virtual.uid, ids=self._ids, domain=self.domain
        )
        return ownership in (Ownership.OURS, Ownership.TAKEABLE)
