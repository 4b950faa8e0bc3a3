"""Leases: the heartbeats of virtual nodes, all from one place, and only while the worker answers.

A worker that does not answer is a worker whose nodes are not known to be well: their heartbeats
stop, and Kubernetes shows them as NotReady by its own rules. When it answers again so do they.
"""

from __future__ import annotations

import random
from typing import Final

from kubeocean.api.group import NODE_LEASE_DURATION_S, NODE_LEASE_NAMESPACE
from kubeocean.errors import AlreadyExists, NotFound
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.kinds import LEASES, Node
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.world import World

__all__ = ["Leases"]

WORKERS: Final = 16
RENEW_S: Final = NODE_LEASE_DURATION_S / 4


class Leases:
    """One lease for each virtual node; the key is the name of the node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owners: dict[str, str] = {}  # node -> its UID, where the lease is known to name it
        self.controller: Controller[Key] = Controller(
            f"lease-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            clock=world.clock,
            metrics=world.metrics,
        )
        world.vnodes.on_change(self._follow)
        world.reach.on_change(self._reached)

    def _follow(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self._owners.pop(old.name, None)
        elif old is None or old.uid != new.uid:
            self.controller.enqueue(new.key)

    def _reached(self, answers: bool) -> None:
        if answers:
            for vnode in self._world.vnodes.items():
                self.controller.enqueue(vnode.key, priority=1)

    async def reconcile(self, key: Key) -> Outcome:
        vnode = self._world.vnodes.get(key)
        if vnode is None or vnode.deleting or not self._world.reach.answers:
            return Done()
        owner = self._owners.get(key.name)
        if owner is None and await self._create(vnode):
            self._owners[key.name] = vnode.uid
        elif not await self._renew(vnode, adopt=owner != vnode.uid):
            self._owners.pop(key.name, None)
            return After(0.0)  # it went with an earlier node of that name
        else:
            self._owners[key.name] = vnode.uid
        # A little early and not all at once: nobody is late because of the queue.
        return After(RENEW_S * random.uniform(0.9, 0.98))  # noqa: S311 - spreading load

    async def _create(self, vnode: Node) -> bool:
        body: Json = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": vnode.name,
                "namespace": NODE_LEASE_NAMESPACE,
                "ownerReferences": [_owner(vnode)],
            },
            "spec": self._spec(vnode),
        }
        try:
            await self._world.computing.create(LEASES, body)
        except AlreadyExists:
            return False
        return True

    async def _renew(self, vnode: Node, *, adopt: bool) -> bool:
        body: Json = {"spec": self._spec(vnode)}
        if adopt:
            body["metadata"] = {"ownerReferences": [_owner(vnode)]}
        try:
            await self._world.computing.patch(
                LEASES, vnode.name, MergePatch(body), NODE_LEASE_NAMESPACE
            )
        except NotFound:
            return False
        return True

    def _spec(self, vnode: Node) -> Json:
        return {
            "holderIdentity": vnode.name,
            "leaseDurationSeconds": NODE_LEASE_DURATION_S,
            "renewTime": f"{self._world.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}",
        }


def _owner(vnode: Node) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "name": vnode.name, "uid": vnode.uid}
