"""Leases: the heartbeats of virtual nodes, all from one place, and only while the worker answers.

A worker that does not answer is a worker whose nodes are not known to be well: their heartbeats
stop, and Kubernetes shows them as NotReady by its own rules. When it answers again so do they.

A new node's lease is made, or taken over, by a controller. From then on it is renewed in rounds, as
cheaply as can be: with many nodes that is nearly all that a syncer does. A renewal that fails has
three more turns before the lease ends; a lease that is gone, or another one, is the controller's.
Where several share a binding, the heartbeat of a node that is not ours is left to its owner.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api.group import NODE_LEASE_DURATION_S, NODE_LEASE_NAMESPACE
from kubeocean.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.kinds import LEASES, Lease, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.patches import MergePatch
from kubeocean.sharding.fencing import NotOurs
from kubeocean.syncer.bottomup.rounds import Rounds
from kubeocean.syncer.parts import WHOLE, Part, of_node
from kubeocean.syncer.world import World

__all__ = ["Leases"]

WORKERS: Final = 16
RENEW_S: Final = NODE_LEASE_DURATION_S / 4

_log = get_logger(__name__)


class Leases:
    """One lease for each virtual node; the key is the name of the node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._part: Part = WHOLE
        self._known: dict[str, str] = {}  # node -> UID of its lease, which names it as its owner
        self._failing = False
        self._rounds = Rounds(self._beat, period_s=RENEW_S, at_once=WORKERS, clock=world.clock)
        self.controller: Controller[Key] = Controller(
            f"lease-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.parts: tuple[Runnable, ...] = (self.controller, self._rounds)
        renewals = world.metrics.counter(
            "kubeocean_syncer_lease_renewals_total", "Renewals of node leases", ["result"]
        )
        self._renewed, self._failed = renewals.labels("renewed"), renewals.labels("failed")
        world.vnodes.on_change(self._follow)
        world.reach.on_change(self._reached)

    def share(self, part: Part) -> None:
        """Renew the leases of this part only; before anything runs."""
        self._part = part

    def _follow(self, old: Node | None, new: Node | None) -> None:
        if old is not None and (new is None or new.uid != old.uid or new.deleting):
            self._forget(old.name)
        if new is not None and (old is None or old.uid != new.uid):
            self.controller.enqueue(new.key)

    def _reached(self, answers: bool) -> None:
        if answers:
            self._rounds.hurry()
            for vnode in self._world.vnodes.items():
                if vnode.name not in self._known:
                    self.controller.enqueue(vnode.key)

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._rounds.leave(name)

    # A lease that is not known yet

    async def reconcile(self, key: Key) -> Outcome:
        vnode = self._world.vnodes.get(key)
        if vnode is None or vnode.deleting or not self._world.reach.answers:
            return Done()
        try:
            lease = await self._create(vnode)
        except AlreadyExists:
            try:
                lease = await self._adopt(vnode)
            except NotFound:
                return After(0.0)  # it went with an earlier node of that name
        now = self._world.vnodes.get(key)
        if now is not None and not now.deleting:  # else nobody would tell the rounds to stop
            self._known[key.name] = lease.uid
            self._rounds.join(key.name)
        return Done()

    async def _create(self, vnode: Node) -> Lease:
        body: Json = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": vnode.name,
                "namespace": NODE_LEASE_NAMESPACE,
                "ownerReferences": [_owner(vnode)],
            },
            "spec": self._spec(vnode.name),
        }
        return await self._world.computing.create(LEASES, body)

    async def _adopt(self, vnode: Node) -> Lease:
        metadata: Json = {"ownerReferences": [_owner(vnode)]}
        body = MergePatch({"metadata": metadata, "spec": self._spec(vnode.name)})
        return await self._world.computing.patch(LEASES, vnode.name, body, NODE_LEASE_NAMESPACE)

    # A lease that is known

    async def _beat(self, name: str) -> None:
        uid = self._known.get(name)
        if uid is None or not self._world.reach.answers:
            return
        try:
            async with self._part.turn(of_node(name)):
                await self._renew(name, uid)
        except NotOurs:
            self._forget(name)

    async def _renew(self, name: str, uid: str) -> None:
        body = MergePatch({"metadata": {"uid": uid}, "spec": self._spec(name)})
        try:
            await self._world.computing.patch(LEASES, name, body, NODE_LEASE_NAMESPACE)
        except (NotFound, Conflict, Invalid):
            self._forget(name)
            self.controller.enqueue(Key("", name))
        except ApiError as error:
            self._note_failure(error)
        else:
            self._renewed.inc()
            self._failing = False

    def _note_failure(self, error: ApiError) -> None:
        """In one line, not in one for each node: what fails for one fails for all of them."""
        self._failed.inc()
        if not self._failing:
            self._failing = True
            _log.warning("Could not renew node lease", error=str(error), leases=len(self._rounds))

    def _spec(self, name: str) -> Json:
        return {
            "holderIdentity": name,
            "leaseDurationSeconds": NODE_LEASE_DURATION_S,
            "renewTime": f"{self._world.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}",
        }


def _owner(vnode: Node) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "name": vnode.name, "uid": vnode.uid}
