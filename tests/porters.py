"""The least that a controller of pods does with what pods need: a physical pod, and its tokens.

It makes a bare pod for each virtual one when everything is there, and removes it afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from kubeocean.api.ownership import ownership
from kubeocean.errors import AlreadyExists, Conflict, Forbidden, NotFound
from kubeocean.local.faults import Crashed, Faults
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json, Key, ObjectT, Resource
from kubeocean.runtime.outcomes import Done, Outcome
from kubeocean.syncer.forge.podcontext import Names
from kubeocean.syncer.forge.references import references
from kubeocean.syncer.podviews import PHYSICAL_PODS, PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.dependents import Dependents
from kubeocean.syncer.topdown.missing import Missing
from kubeocean.syncer.world import World
from straits import Crash, Strait
from waiting import until

__all__ = ["MOUNT", "Porter", "bind_pod", "crashing", "make_namespace", "seen_below", "unbind"]

MOUNT = "kubeocean-worker"
LINGER_S = 0.3


class Porter:
    """Dependents at work for the pods of a binding."""

    def __init__(self, world: World, *, linger_s: float = LINGER_S) -> None:
        self.world = world
        self.dependents = Dependents(world, linger_s=linger_s)
        self.answers: dict[Key, Names | Missing] = {}
        self.controller: Controller[Key] = Controller(
            "porter", self.reconcile, workers=16, gate=self._caught_up
        )
        self.parts: tuple[Runnable, ...] = (
            world.vpods,
            world.ppods,
            world.pnodes,
            *self.dependents.parts,
            self.controller,
        )
        world.vpods.on_change(self._changed)
        self.dependents.on_change(self.controller.enqueue)

    def _changed(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        for pod in (old, new):
            if pod is not None:
                self.controller.enqueue(pod.key)

    async def _caught_up(self, key: Key) -> bool:
        world = self.world
        if not (world.vpods.has_synced and world.ppods.has_synced):
            return False
        return await world.ppods.caught_up(self._physical(key))

    def _physical(self, key: Key) -> Key:
        return Key(self.world.mount_namespace, f"{key.name}-{key.namespace}")

    async def reconcile(self, key: Key) -> Outcome:
        vpod = self.world.vpods.get(key)
        ppod = next(iter(self.world.ppods.by("virtual", str(key))), None)
        if vpod is None or (ppod is not None and self._uid_of(ppod) != vpod.uid):
            await self._remove(ppod)
        if vpod is None:
            self.dependents.release(key)
            return Done()
        refs = references(vpod.content())
        if ppod is None:
            self.answers[key] = names = await self.dependents.prepare(vpod, refs)
            if isinstance(names, Missing):
                return Done()
            ppod = await self._create(vpod)
        await self.dependents.attach(vpod, ppod, refs)
        return Done()

    def _uid_of(self, ppod: PhysicalPod) -> str | None:
        return ppod.annotations.get(self.world.domain.virtual_pod_uid)

    async def _create(self, vpod: VirtualPod) -> PhysicalPod:
        domain, key = self.world.domain, self._physical(vpod.key)
        body: Json = {
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": ownership(self.world.ids, domain),
                "annotations": {
                    domain.virtual_pod_namespace: vpod.namespace,
                    domain.virtual_pod_name: vpod.name,
                    domain.virtual_pod_uid: vpod.uid,
                },
            },
            "spec": {"containers": [{"name": "c", "image": "none"}]},
        }
        ppod = await self.world.worker.create(PHYSICAL_PODS, body)
        self.world.ppods.wrote(ppod)
        return ppod

    async def _remove(self, ppod: PhysicalPod | None) -> None:
        if ppod is None:
            return
        with suppress(NotFound, Conflict):
            await self.world.worker.delete(
                PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=0
            )
        self.world.ppods.deleted(ppod)


async def make_namespace(client: Client, name: str, *, account: bool = True) -> None:
    """A namespace in which pods can be made."""
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    if not account:  # nobody there makes them, nor asks for them
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
    strait: Strait, namespace: str, name: str, *volumes: Json, node: str = "n", **spec: object
) -> VirtualPod:
    """A pod above on a virtual node, made if there is none, without a token unless it asks."""
    with suppress(AlreadyExists):
        await strait.lend(node)
    body: Json = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": strait.vnode(node),
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": f"v{n}", **volume} for n, volume in enumerate(volumes)],
            **spec,
        },
    }
    return await strait.above.create(_VIRTUAL, body)


_VIRTUAL: Resource[VirtualPod] = Resource("", "v1", "pods", "Pod", True, VirtualPod)


async def unbind(strait: Strait, pod: VirtualPod) -> None:
    await strait.above.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0)


async def seen_below(
    strait: Strait, resource: Resource[ObjectT], name: str, namespace: str = MOUNT
) -> ObjectT | None:
    """An object below, read fresh and whole, if it is there."""
    try:
        return await strait.below.get(resource, name, namespace, keep_raw=True)
    except NotFound:
        return None


@asynccontextmanager
async def crashing(
    strait: Strait, n: int, part: Callable[[World], Porter] = Porter
) -> AsyncIterator[Crash]:
    """The part at work until its n-th write on either side, which is its last."""
    faults, crash = Faults(), Crash()
    faults.crash_after_write(n, by=crash.set)
    with suppress(Crashed, BaseExceptionGroup):
        async with strait.syncing(part, above=faults, below=faults):
            yield crash
