"""Pods: a pod that is bound to a virtual node runs in the worker, and is seen above as if there.

The key is the virtual pod's. Both caches are read, a plan is made, the difference is written, on
whichever side. There is one writer of either pod, so it never conflicts with itself.

What seems to be gone is asked for at its server before anything is ended or given up for it: no
cache that is empty, old or behind does harm. While the worker does not answer nothing is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import product
from typing import Final

from kubeocean.api import naming
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.ownership import Claim, bears_ids, ownership, pod_marks
from kubeocean.api.reasons import PodEvent
from kubeocean.errors import Conflict, Forbidden, NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, find_condition
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.forge import podshown, podstatus
from kubeocean.syncer.parts import Part
from kubeocean.syncer.podplan import (
    Move,
    Plan,
    claim_of,
    grace_of,
    is_due,
    is_lent,
    is_wanted,
    plan,
)
from kubeocean.syncer.podviews import (
    PHYSICAL_PODS,
    VIRTUAL_PODS,
    PhysicalPod,
    VirtualPod,
    virtual_key,
)
from kubeocean.syncer.removals import Removals
from kubeocean.syncer.topdown.podcreation import Creation, Made, Taken
from kubeocean.syncer.topdown.podevents import PodEvents
from kubeocean.syncer.topdown.podfollowing import Following, soonest
from kubeocean.syncer.topdown.podlags import PodLags
from kubeocean.syncer.topdown.podneeds import PodNeeds
from kubeocean.syncer.topdown.podrefusals import Refusals
from kubeocean.syncer.topdown.podwrites import PodWrites
from kubeocean.syncer.topdown.surroundings import Surroundings
from kubeocean.syncer.world import World

__all__ = ["Pods"]

WORKERS: Final = 100
_BEHIND_S: Final = 1.0  # a server says what its watch has not said yet

_LATE_S: Final = 3.0  # news that is older than this may be no news
_NO_NAMES: Final = {"", ".", ".."}
_ELSEWHERE_S: Final = 30.0  # how often we ask for what no cache of ours holds

_log = get_logger(__name__)


class Pods:
    """The pods of one binding."""

    def __init__(self, world: World, needs: PodNeeds, surroundings: Surroundings) -> None:
        self.world = world
        self.needs = needs
        self._writes = PodWrites(world)
        self._refusals = Refusals(world, self._writes)
        self._lags = PodLags(world.binding_name, world.clock, world.metrics)
        self._creation = Creation(
            world, needs, surroundings, writes=self._writes, refusals=self._refusals
        )
        self._following = Following(
            world,
            needs,
            self._creation,
            writes=self._writes,
            refusals=self._refusals,
            lags=self._lags,
        )
        self._ran: set[str] = set()  # virtual UIDs for which a physical pod was seen
        self._ended: dict[str, PhysicalPod | None] = {}  # by virtual UID: the last of it, if untold
        self._dated: set[str] = set()  # virtual UIDs that may be gone again by now
        self._let_go: set[str] = set()  # virtual UIDs that we removed, until they are gone
        self._removals = Removals(world.clock)
        self._doubts: dict[
            str, float
        ] = {}  # by physical UID: seconds until it is asked about again
        self._told: dict[str, int | None] = {}  # by physical UID: the grace it was deleted with
        self.controller: Controller[Key] = Controller(
            f"virtualpod-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._writes.caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.events = PodEvents(world)
        self.parts: tuple[Runnable, ...] = (self.controller, self.events)
        world.vpods.on_change(self._virtual_changed)
        world.ppods.on_change(self._physical_changed)
        world.vnodes.on_change(self._vnode_changed)
        world.bindings.on_change(self._binding_changed)
        world.reach.on_change(self._reached)
        needs.on_change(self._hurry)
        surroundings.on_change(self._hurry_all)

    def share(self, part: Part) -> None:
        """Tell of the pods of this part only; before anything runs."""
        self.events.share(part)
        self._lags.share(part)

    def remaining(self) -> list[PhysicalPod]:
        """The physical pods of this binding that are still there, as far as we know."""
        world = self.world
        return [p for p in world.ppods.items() if bears_ids(p, ids=world.ids, domain=world.domain)]

    # What makes us look

    def _virtual_changed(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        pod = new or old
        assert pod is not None
        if new is None:
            self._ran.discard(pod.uid)
            self._ended.pop(pod.uid, None)
            self._let_go.discard(pod.uid)
            self._removals.forget(pod)
            self._dated.discard(pod.uid)
            self._following.forget(pod)
            self._refusals.forget(pod.key)
            self._lags.forget(pod.key)
        elif old is None and not pod.deleting:
            self._lags.bound(pod.key)
            late = _bound_for_s(pod, self.world.clock.now()) > _LATE_S
            if late or not self.world.vpods.has_synced:
                self._dated.add(pod.uid)
        if new is None or not self._following.is_own_write(new):
            self.controller.enqueue(pod.key)

    def _physical_changed(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        pod = new or old
        assert pod is not None
        key = virtual_key(pod, self.world.domain)
        virtual = pod.annotations.get(self.world.domain.virtual_pod_uid, "")
        vpod = self.world.vpods.get(key)
        if vpod is not None and vpod.uid == virtual:
            self._ran.add(virtual)
            self._lags.changed(key)
            if new is None:
                told = vpod.finished and pod.finished
                self._ended[virtual] = None if told else pod
        if new is None:
            self._told.pop(pod.uid, None)
            self._doubts.pop(pod.uid, None)
            self._following.forget_physical(pod)
        if new is None or not self._following.is_no_news(new):
            self.controller.enqueue(key)
        if old is not None and (before := virtual_key(old, self.world.domain)) != key:
            self.controller.enqueue(before)  # somebody took away what it said

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        # Most changes are heartbeats and amounts, and concern no pod.
        if old is None or new is None:
            vnode = new or old
            assert vnode is not None
            for pod in self.world.vpods.by("node", vnode.name):
                self._following.unsettle(pod)
                self.controller.enqueue(pod.key)

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._hurry_all()  # what it did not allow it may allow now
            self._enqueue_all()

    def _reached(self, answers: bool) -> None:
        if answers:
            self._enqueue_all()

    def _enqueue_all(self) -> None:
        world = self.world
        for vpod in world.vpods.items():
            self._following.unsettle(vpod)
            self.controller.enqueue(vpod.key)
        for ppod in world.ppods.items():
            self.controller.enqueue(virtual_key(ppod, world.domain))

    def _hurry(self, key: Key) -> None:
        self._refusals.hurry(key)
        if (vpod := self.world.vpods.get(key)) is not None:
            self._following.unsettle(vpod)
        self.controller.enqueue(key)

    def _hurry_all(self) -> None:
        for key in self._refusals.waiting():
            self._hurry(key)

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        world = self.world
        if not (key.namespace and key.name) or not world.reach.answers:
            return Done()  # it does not say whose it is; or we are called again when it answers
        vpod = world.vpods.get(key)
        vnode = world.vnodes.get(Key("", vpod.spec.node_name)) if vpod is not None else None
        todo = plan(
            vpod,
            world.ppods.by("virtual", str(key)),
            lent=is_lent(vnode, world.ids, world.domain),
            wanted=vpod is not None and is_wanted(vpod, world.binding, world.domain),
            had_one=lambda: vpod is not None and self._had_one(vpod),
            ids=world.ids,
            domain=world.domain,
        )
        if todo.ppod is not None:
            self._lags.runs(key)
        outcomes = [await self._remove_stray(key, stray, todo) for stray in todo.strays]
        if vpod is None:
            self.needs.release(key)
            return soonest(outcomes)
        return soonest([*outcomes, await self._carry_out(todo, vpod, vnode)])

    async def _carry_out(self, todo: Plan, vpod: VirtualPod, vnode: Node | None) -> Outcome:
        match todo.move:
            case Move.CREATE:
                assert vnode is not None
                return await self._create(vpod, vnode)
            case Move.FOLLOW:
                assert todo.ppod is not None
                return await self._following.follow(vpod, todo.ppod, vnode)
            case Move.STOP:
                assert todo.ppod is not None
                return await self._stop(vpod, todo.ppod)
            case Move.RELEASE:
                return await self._release(vpod)
            case Move.MOURN:
                return await self._mourn(vpod)
            case _:
                return Done()

    async def _create(self, vpod: VirtualPod, vnode: Node) -> Outcome:
        if (left_s := self._refusals.left_s(vpod)) > 0:
            return After(left_s)
        if vpod.uid in self._dated and not await self._is_current(vpod):
            return After(_BEHIND_S)
        answer = await self._creation.create(vpod, vnode, is_current=self._is_current)
        if isinstance(answer, Taken):
            return await self._remove_stray(vpod.key, answer.ppod, Plan(Move.CREATE))
        if not isinstance(answer, Made):
            self._dated.add(vpod.uid)  # when its turn comes again, time has passed
            return answer
        self._refusals.forget(vpod.key)
        self._ran.add(vpod.uid)
        self._lags.created(vpod.key)
        if not answer.new:
            return After(_BEHIND_S)  # the cache will show it, and then it is followed
        first = self._following.made(answer.ppod)
        return soonest([first, await self._following.attach(vpod, answer.ppod, answer.refs)])

    # The end

    async def _stop(self, vpod: VirtualPod, ppod: PhysicalPod) -> Outcome:
        await self._delete_below(vpod.key, ppod, grace_of(vpod))
        return await self._following.show_end(vpod, ppod)

    async def _release(self, vpod: VirtualPod) -> Outcome:
        """Nothing runs for a pod that was deleted: nobody else would remove it."""
        if vpod.uid in self._let_go:
            return Done()
        ended = self._ended.get(vpod.uid)
        # One that had not ended may have lost no more than the label that our cache knows it by.
        sure = vpod.uid in self._ended and (ended is None or ended.finished)
        if not sure and (ppod := await self._find(vpod)) is not None:
            stopped = await self._stop(vpod, ppod)
            await self._mend(vpod, ppod)
            return soonest([stopped, After(_BEHIND_S)])
        current = await self._last_words(vpod, ended)
        due_in_s = self._removals.due_in_s(vpod)
        if current is None or due_in_s is None:
            return Done()
        if due_in_s:
            return After(due_in_s)
        with suppress(NotFound, Conflict):
            await self.world.computing.delete(
                VIRTUAL_PODS, vpod.name, vpod.namespace, uid=vpod.uid, grace_s=0
            )
        self._let_go.add(vpod.uid)
        _log.debug("Removed deleted pod", vpod=str(vpod.key))
        return Done()

    async def _mourn(self, vpod: VirtualPod) -> Outcome:
        """It ran, and is not there: how it ended, or that it was lost."""
        if (found := await self._find(vpod)) is not None:
            if found.namespace == self.world.mount_namespace:
                await self._mend(vpod, found)
                return After(_BEHIND_S)
            followed = await self._following.follow(vpod, found, None)
            return soonest([followed, After(_ELSEWHERE_S)])
        before = self._ended.get(vpod.uid)
        if before is not None and before.finished:
            await self._last_words(vpod, before)
            return Done()
        status = podstatus.lost(vpod.content(), now=self.world.now_text())
        await self._following.write_above(vpod, status)
        said = reference(VIRTUAL_PODS, vpod)
        self.world.events.emit(said, "Warning", PodEvent.LOST, status["message"])
        _log.warning("Lost physical pod", vpod=str(vpod.key))
        return Done()

    async def _mend(self, vpod: VirtualPod, ppod: PhysicalPod) -> None:
        """Give a pod back what our cache knows it by, if somebody took it away."""
        world, key = self.world, vpod.key
        marks = pod_marks(key, vpod.uid, world.domain)
        labels = _lost(ownership(world.ids, world.domain), ppod.labels)
        annotations = _lost(marks, ppod.annotations)
        if ppod.namespace != world.mount_namespace or not (labels or annotations):
            return
        metadata = {"uid": ppod.uid, "labels": labels, "annotations": annotations}
        with suppress(NotFound, Conflict):
            body = MergePatch({"metadata": metadata})
            written = await world.worker.patch(PHYSICAL_PODS, ppod.name, body, ppod.namespace)
            self._writes.wrote_below(key, written)
            _log.info("Mended marks of pod", vpod=str(key), ppod=str(ppod.key))

    async def _last_words(self, vpod: VirtualPod, ended: PhysicalPod | None) -> VirtualPod | None:
        """How the containers ended, if that is known and not told yet; None if the pod is gone.

        Who holds a pod by a finalizer waits for it to have ended, so then it ends in any case.
        """
        if vpod.finished:
            return vpod
        if ended is not None and ended.finished:
            status = podstatus.mirror(vpod.content(), ended.content())
        elif vpod.metadata.finalizers:
            status = podstatus.lost(vpod.content(), now=self.world.now_text())
        else:
            return vpod
        return await self._following.write_above(vpod, status)

    async def _remove_stray(self, key: Key, stray: PhysicalPod, todo: Plan) -> Outcome:
        """One that runs for nobody, or a twin, goes; unless its virtual pod is there after all."""
        world = self.world
        if not self._is_due(stray, grace_of(None)):
            return Done()
        virtual = stray.annotations.get(world.domain.virtual_pod_uid, "")
        try:
            live = await world.computing.get(VIRTUAL_PODS, key.name, key.namespace)
        except NotFound:
            live = None
        twin = todo.ppod is not None and todo.ppod.uid != stray.uid
        if live is not None and live.uid == virtual and not twin:
            # Our cache is behind; or does not hold it at all, and then there is no hurry.
            wait_s = self._doubts.get(stray.uid, _BEHIND_S)
            self._doubts[stray.uid] = min(wait_s * 2, _ELSEWHERE_S)
            return After(wait_s)
        _log.info("Found physical pod that runs for nobody", vpod=str(key), ppod=str(stray.key))
        await self._delete_below(key, stray, grace_of(None))
        return Done()

    async def _delete_below(self, key: Key, ppod: PhysicalPod, grace_s: int | None) -> None:
        if not self._is_due(ppod, grace_s):
            return
        with suppress(NotFound, Conflict):
            await self.world.worker.delete(
                PHYSICAL_PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=grace_s
            )
            self._told[ppod.uid] = grace_s
        self._writes.deleted_below(key, ppod)
        _log.info("Deleted pod", vpod=str(key), ppod=str(ppod.key), grace_s=grace_s)

    def _is_due(self, ppod: PhysicalPod, grace_s: int | None) -> bool:
        told_already = ppod.uid in self._told and self._told[ppod.uid] == grace_s
        return is_due(ppod, grace_s) and not told_already

    # Small questions

    async def _is_current(self, vpod: VirtualPod) -> bool:
        """Whether a pod that we saw late is still as we saw it: it may have come and gone."""
        try:
            live = await self.world.computing.get(
                VIRTUAL_PODS, vpod.name, vpod.namespace, keep_raw=True
            )
        except NotFound:
            return False
        if live.uid != vpod.uid or live.deleting or live.finished or self._had_one(live):
            return False
        self._dated.discard(vpod.uid)
        return True

    def _had_one(self, vpod: VirtualPod) -> bool:
        domain = self.world.domain
        if vpod.uid in self._ran:
            return True
        recorded = domain.physical_pod_uid in vpod.annotations
        return recorded and not podshown.is_copied(vpod.content(), domain)

    async def _find(self, vpod: VirtualPod) -> PhysicalPod | None:
        """The physical pod, asked for at the server under every name that it can have."""
        world, domain = self.world, self.world.domain
        names = (
            naming.physical_name(vpod.name, vpod.namespace),
            naming.second_physical_name(vpod.name, vpod.namespace, uid=vpod.uid),
        )
        # Another namespace, if the binding had another one when the pod was made.
        recorded = vpod.annotations.get(domain.physical_pod_namespace, "")
        namespaces = {world.mount_namespace, recorded} - _NO_NAMES
        for namespace, name in product(sorted(namespaces), names):
            # Where we may not look there is nothing of ours: whoever wrote that down has erred.
            elsewhere = () if namespace == world.mount_namespace else (Forbidden,)
            with suppress(NotFound, *elsewhere):
                found = await world.worker.get(PHYSICAL_PODS, name, namespace, keep_raw=True)
                if self._claim(vpod, found) in (Claim.OURS, Claim.TAKEABLE):
                    return found
        return None

    def _claim(self, vpod: VirtualPod, ppod: PhysicalPod) -> Claim:
        return claim_of(vpod, ppod, ids=self.world.ids, domain=self.world.domain)


def _lost(marks: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in marks.items() if key not in there}


def _bound_for_s(vpod: VirtualPod, now: datetime) -> float:
    """For how long a pod has been bound to its node, in whole seconds."""
    scheduled = find_condition(vpod.status.conditions, "PodScheduled")
    since = scheduled.last_transition_time if scheduled is not None else None
    since = since or vpod.metadata.creation_timestamp
    return (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0
