"""A minimal pod controller that uses `PodCopies`.

The controller creates a bare physical pod for each virtual pod when all copies exist, attaches the
tokens, and deletes the physical pod with the virtual one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from kubeocean.api.ownership import ownership_labels
from kubeocean.errors import AlreadyExists, Conflict, Forbidden, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json, Key, ObjectT, Resource
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.forge_context import CopyNames
from kubeocean.syncer.pods.referenced_objects import references
from kubeocean.syncer.pods.views import PHYSICAL_PODS, PhysicalPod, VirtualPod
from kubeocean.syncer.replication.missing import Missing
from kubeocean.syncer.replication.pod_copies import PodCopies
from support.controller_env import ControllerEnv, Crash
from support.faults import Crashed, Faults
from support.wait import until

__all__ = [
    "MOUNT",
    "PodCopiesDriver",
    "bind_pod",
    "crashing",
    "delete_pod",
    "make_namespace",
    "read_in_worker",
]

MOUNT = "kubeocean-worker"
LINGER_S = 0.3


class PodCopiesDriver:
    """Runs `PodCopies` for the pods of a binding; `answers` has the last result for each pod."""

    def __init__(self, clusters: Clusters, *, linger_s: float = LINGER_S) -> None:
        self.clusters = clusters
        self.pod_copies = PodCopies(clusters, linger_s=linger_s)
        self.answers: dict[Key, CopyNames | Missing] = {}
        self.controller: Controller[Key] = Controller(
            "driver", self.reconcile, workers=16, gate=self._caught_up
        )
        self.parts: tuple[Runnable, ...] = (
            clusters.vpods,
            clusters.ppods,
            clusters.pnodes,
            *self.pod_copies.parts,
            self.controller,
        )
        clusters.vpods.on_change(self._changed)
        self.pod_copies.on_change(self.controller.enqueue)

    def _changed(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        for pod in (old, new):
            if pod is not None:
                self.controller.enqueue(pod.key)

    async def _caught_up(self, key: Key) -> bool:
        clusters = self.clusters
        if not (clusters.vpods.has_synced and clusters.ppods.has_synced):
            return False
        return await clusters.ppods.caught_up(self._physical(key))

    def _physical(self, key: Key) -> Key:
        return Key(self.clusters.mount_namespace, f"{key.name}-{key.namespace}")

    async def reconcile(self, key: Key) -> Outcome:
        vpod = self.clusters.vpods.get(key)
        ppod = next(iter(self.clusters.ppods.by("virtual", str(key))), None)
        if vpod is None or (ppod is not None and self._uid_of(ppod) != vpod.uid):
            await self._remove(ppod)
        if vpod is None:
            self.pod_copies.release(key)
            return Done()
        refs = references(vpod.content())
        if ppod is None:
            self.answers[key] = names = await self.pod_copies.prepare(vpod, refs)
            if isinstance(names, Missing):
                return Done()
            ppod = await self._create(vpod)
        await self.pod_copies.attach(vpod, ppod, refs)
        return Done()

    def _uid_of(self, ppod: PhysicalPod) -> str | None:
        return ppod.annotations.get(self.clusters.domain.virtual_pod_uid)

    async def _create(self, vpod: VirtualPod) -> PhysicalPod:
        domain, key = self.clusters.domain, self._physical(vpod.key)
        body: Json = {
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": ownership_labels(self.clusters.ids, domain),
                "annotations": {
                    domain.virtual_pod_namespace: vpod.namespace,
                    domain.virtual_pod_name: vpod.name,
                    domain.virtual_pod_uid: vpod.uid,
                },
            },
            "spec": {"containers": [{"name": "c", "image": "none"}]},
        }
        ppod = await self.clusters.worker.create(PHYSICAL_PODS, body)
        self.clusters.ppods.wrote(ppod)
        return ppod

    async def _remove(self, ppod: PhysicalPod | None) -> None:
        if ppod is None:
            return
        with suppress(NotFound, Conflict):
            await self.clusters.worker.delete(
                PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=0
            )
        self.clusters.ppods.deleted(ppod)


async def make_namespace(client: Client, name: str, *, account: bool = True) -> None:
    """Create a namespace and wait until pods can be created in it.

    Without `account`, no controller creates service accounts and none is required.
    """
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    if not account:
        with suppress(AlreadyExists):
            await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)
        return

    async def usable() -> bool:
        body = {
            "metadata": {"name": "probe"},
            "spec": {"containers": [{"name": "c", "image": "none"}]},
        }
        try:
            await client.create(PODS, body, namespace=name, dry_run=True)
        except Forbidden:
            return False
        return True

    await until(usable)


async def bind_pod(
    controller_env: ControllerEnv,
    namespace: str,
    name: str,
    *volumes: Json,
    node: str = "n",
    **spec: object,
) -> VirtualPod:
    """Create a virtual pod on a virtual node, which is created as well; without tokens."""
    with suppress(AlreadyExists):
        await controller_env.lend(node)
    body: Json = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": controller_env.vnode(node),
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": f"v{n}", **volume} for n, volume in enumerate(volumes)],
            **spec,
        },
    }
    return await controller_env.computing_api.create(_VIRTUAL, body)


_VIRTUAL: Resource[VirtualPod] = Resource("", "v1", "pods", "Pod", True, VirtualPod)


async def delete_pod(controller_env: ControllerEnv, pod: VirtualPod) -> None:
    await controller_env.computing_api.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0)


async def read_in_worker(
    controller_env: ControllerEnv, resource: Resource[ObjectT], name: str, namespace: str = MOUNT
) -> ObjectT | None:
    """Read an object from the worker, with its bytes; None if it does not exist."""
    try:
        return await controller_env.worker_api.get(resource, name, namespace, keep_raw=True)
    except NotFound:
        return None


@asynccontextmanager
async def crashing(
    controller_env: ControllerEnv,
    n: int,
    part: Callable[[Clusters], PodCopiesDriver] = PodCopiesDriver,
) -> AsyncIterator[Crash]:
    """Run a part until its n-th write to either cluster, which is its last."""
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    with suppress(Crashed, BaseExceptionGroup):
        async with controller_env.syncing(part, computing_api=faults, worker_api=faults):
            yield crash
