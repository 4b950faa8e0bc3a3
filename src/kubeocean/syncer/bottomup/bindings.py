"""The binding, as the syncer sees it: held while there is something of it, and then let go.

Three conditions of it are ours, and nobody else's: `Connected`, whether the worker answers and
since when not; `Conflicted`, if policies that name it lend to another cluster's binding of that
name; and, while it is deleted, `Drained`, what is still waited for.

When it is deleted its virtual nodes are taken back, by the rules of a deletion that has to end;
then pods, copies and mirrors go, our label from the worker's nodes and our finalizer from its
policies; then ours from the binding. A worker that has not answered for `PATIENCE_S` does not hold
that up, nor one that does not let us clean up for longer than anything may take: condition and
event say what was not confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from kubeocean.api import conditions as said
from kubeocean.api.binding import CLUSTER_BINDINGS, BindingStatus, ClusterBinding
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.api.reasons import BindingEvent
from kubeocean.errors import NotFound
from kubeocean.leasing.instants import instant_of, text_of
from kubeocean.leasing.rules import ABANDON_S, DEADLINE_S
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.correlator import EventType
from kubeocean.runtime.events import reference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Condition, Json, Key, find_condition, set_condition
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.drain import Unconfirmed, ends_by, first_few, remaining
from kubeocean.syncer.bottomup.reclaims import Reclaims
from kubeocean.syncer.leftovers import Leftovers
from kubeocean.syncer.world import World

__all__ = ["Bindings"]

PATIENCE_S: Final = 30.0  # a worker that blinks is worth waiting for
GIVE_UP_S: Final = DEADLINE_S + ABANDON_S  # what an answering worker may take to be cleaned up
FREE_S: Final = 10.0  # what the computing cluster may take to be freed of a dead worker's marks
TELL_EVERY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 1.0
_ASK_EVERY_S: Final = 30.0

_log = get_logger(__name__)
_Names = Callable[[], Iterable[str]]


class Bindings:
    """One binding; the key is its name.

    `held` are the policies that carry our finalizer, `claimed` those that another cluster holds,
    `marked` the worker's nodes with our label, `leftovers` everything else that is ours.
    """

    def __init__(
        self,
        world: World,
        reclaims: Reclaims,
        unconfirmed: Unconfirmed,
        *,
        held: _Names,
        claimed: _Names,
        marked: _Names,
        leftovers: Leftovers,
    ) -> None:
        self._world = world
        self._reclaims = reclaims
        self._unconfirmed = unconfirmed
        self._held = held
        self._claimed = claimed
        self._marked = marked
        self._leftovers = leftovers
        self._told_at = -TELL_EVERY_S
        self._asks_at = 0.0
        self.controller: Controller[Key] = Controller(
            f"clusterbinding-{world.binding_name}",
            self.reconcile,
            gate=world.bindings.caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        self._follow()

    # What makes us look

    def _follow(self) -> None:
        world = self._world
        world.bindings.on_change(lambda old, new: self._enqueue())
        world.vnodes.on_change(lambda old, new: self._counts(old is None or new is None))
        world.pnodes.on_change(lambda old, new: self._counts(False))
        world.policies.on_change(self._policy_changed)
        world.reach.on_change(self._reached)
        self._reclaims.on_change(lambda policy: self._counts(False))

    def _enqueue(self) -> None:
        self.controller.enqueue(Key("", self._world.binding_name))

    def _counts(self, always: bool) -> None:
        binding = self._world.binding
        if binding is not None and (always or binding.deleting):
            self._enqueue()

    def _policy_changed(
        self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None
    ) -> None:
        named = [p for p in (old, new) if p and p.spec.cluster == self._world.binding_name]
        self._counts(any(not self._world.concerns(policy) for policy in named))

    def _reached(self, answers: bool) -> None:
        if answers:
            self._unconfirmed.clear()
            self._emit("Normal", BindingEvent.WORKER_ANSWERS, "The worker answers again")
        elif (reach := self._world.reach).mistaken:
            message = f"The kubeconfig leads to another cluster: {reach.error}"
            self._emit("Warning", BindingEvent.ANOTHER_WORKER, message)
        else:
            message = "The worker does not answer; its nodes get no heartbeats until it does"
            self._emit("Warning", BindingEvent.WORKER_UNREACHABLE, message)
        self._enqueue()

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        world, binding = self._world, self._world.binding
        if binding is None:
            return Done()
        ours, finalizers = world.domain.finalizer_syncer, binding.metadata.finalizers or ()
        if binding.deleting:
            return await self._end(binding) if ours in finalizers else Done()
        version = binding.resource_version
        if ours not in finalizers:
            version = await self._finalizers(binding, [*finalizers, ours], version)
        if world.reach.answers and not world.synced:
            if not world.policies.has_synced:
                await self._look_for_policies(binding, version)
            return After(_LOOK_AGAIN_S)  # nobody knows yet
        version = await self._record(binding, version)
        told = [self._connected(binding), *self._conflicted(binding)]
        return _later(await self._tell(binding, told, version))

    def _connected(self, binding: ClusterBinding) -> Condition:
        reach, generation = self._world.reach, binding.metadata.generation
        if reach.answers:
            return said.CONNECTION_PASSED.condition(generation=generation)
        lost = said.CONNECTION_MISTAKEN if reach.mistaken else said.CONNECTION_LOST
        since = text_of(reach.since)
        return lost.condition(generation=generation, since=since, error=reach.error)

    async def _look_for_policies(self, binding: ClusterBinding, version: str) -> None:
        """Say so, if the worker has no policies because it does not know what that is."""
        now = self._world.clock.monotonic()
        if now < self._asks_at:
            return
        self._asks_at = now + _ASK_EVERY_S
        try:
            await self._world.worker.list(RESOURCE_LEASING_POLICIES)
        except NotFound:
            kind, generation = RESOURCE_LEASING_POLICIES.kind, binding.metadata.generation
            told = said.CONNECTION_WITHOUT_POLICIES.condition(generation=generation, kind=kind)
            if _differs(binding.status, told):
                await self._write(binding, [told], version)
                self._emit("Warning", BindingEvent.POLICY_KIND_MISSING, told.message)

    def _conflicted(self, binding: ClusterBinding) -> list[Condition]:
        generation, claimed = binding.metadata.generation, list(self._claimed())
        if claimed:
            policies = first_few(claimed)
            return [said.CONFLICT_POLICIES.condition(generation=generation, policies=policies)]
        known = find_condition(binding.status.conditions, said.CONFLICTED) is not None
        return [said.CONFLICT_NONE.condition(generation=generation)] if known else []

    # The end

    async def _end(self, binding: ClusterBinding) -> Outcome:
        world, now = self._world, self._world.clock.now()
        if not world.computing_synced or (world.reach.answers and not world.synced):
            return After(_LOOK_AGAIN_S)
        waits_for, at_most = self._waits_for(binding, now)
        if waits_for and at_most is None:
            return _later(await self._drains(binding, waits_for))
        if waits_for and at_most is not None and now < at_most:
            await self._drains(binding, waits_for)
            # Not all that is waited for says when it goes.
            return After(min((at_most - now).total_seconds(), _LOOK_AGAIN_S))
        await self._let_go(binding, waits_for, now)
        return Done()

    def _waits_for(self, binding: ClusterBinding, now: datetime) -> tuple[str, datetime | None]:
        """What is still there, and how long that can hold us up; None: until it is gone."""
        world = self._world
        vnodes = [vnode.name for vnode in world.vnodes.items()]
        if vnodes:
            reports = self._reclaims.reports()
            return remaining(reports, vnodes) + ends_by(reports), None
        if not world.reach.answers:
            return self._unconfirmed.describe(), self._patience_ends(now)
        self._leftovers.drain(confirmed=True)
        held, marked = list(self._held()), list(self._marked())
        parts = [f"our label on nodes {first_few(marked)}"] if marked else []
        parts += [f"our finalizer on policies {first_few(held)}"] if held else []
        parts += [left] if (left := self._leftovers.describe()) else []
        since = instant_of(binding.metadata.deletion_timestamp) or now
        return ", ".join(parts), since + timedelta(seconds=GIVE_UP_S)

    def _patience_ends(self, now: datetime) -> datetime:
        """When a worker that does not answer is not waited for any more; what is above is freed."""
        ends = self._world.reach.since + timedelta(seconds=PATIENCE_S)
        if now < ends:
            return ends
        self._leftovers.drain(confirmed=False)
        return ends + timedelta(seconds=FREE_S) if self._leftovers.marks else ends

    async def _drains(self, binding: ClusterBinding, waits_for: str) -> float | None:
        generation = binding.metadata.generation
        drained = said.DRAIN_RUNNING.condition(generation=generation, remaining=waits_for)
        told = [self._connected(binding), drained]
        return await self._tell(binding, told, binding.resource_version)

    async def _let_go(self, binding: ClusterBinding, left: str, now: datetime) -> None:
        """Say how it ended, and end it; `left` was not confirmed."""
        world, generation = self._world, binding.metadata.generation
        drained = said.DRAIN_DONE.condition(generation=generation)
        if left:
            since = instant_of(binding.metadata.deletion_timestamp) or now
            after = round((now - since).total_seconds())
            drained = said.DRAIN_UNCONFIRMED.condition(
                generation=generation, after=max(after, 0), remaining=left
            )
        version = await self._write(binding, [self._connected(binding), drained])
        if left:
            dead = f"The worker has not answered since {text_of(world.reach.since)}. "
            message = f"{'' if world.reach.answers else dead}Not confirmed gone: {left}"
            self._emit("Warning", BindingEvent.CLEANUP_UNCONFIRMED, message)
        ours = world.domain.finalizer_syncer
        there = binding.metadata.finalizers or ()
        await self._finalizers(binding, [each for each in there if each != ours], version)
        _log.info("Let go of binding", binding=binding.name, unconfirmed=left)

    # Writing

    async def _tell(
        self, binding: ClusterBinding, told: list[Condition], version: str
    ) -> float | None:
        """Write the status, if it says something else; the seconds until the rest may be told."""
        wanted = self._status(binding, told)
        if wanted == binding.status:
            return None
        urgent = any(_differs(binding.status, condition) for condition in told)
        since_s = self._world.clock.monotonic() - self._told_at
        if not urgent and since_s < TELL_EVERY_S:
            return TELL_EVERY_S - since_s
        await self._write(binding, told, version)
        return None

    async def _write(
        self, binding: ClusterBinding, told: list[Condition], version: str = ""
    ) -> str:
        """The version that the binding has then."""
        version = version or binding.resource_version
        wanted = self._status(binding, told)
        if wanted == binding.status:
            return version
        status: Json = msgspec.to_builtins(wanted)
        body: Json = {
            "metadata": {"resourceVersion": version},
            "status": {
                "conditions": status["conditions"],
                "virtualNodes": status.get("virtualNodes", 0),
            },
        }
        try:
            written = await self._world.computing.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch(body), subresource="status"
            )
        except NotFound:
            return version
        self._world.bindings.wrote(written)
        self._told_at = self._world.clock.monotonic()
        for condition in told:
            conflict = condition.reason == said.CONFLICT_POLICIES.reason
            if conflict and _differs(binding.status, condition):
                self._emit("Warning", BindingEvent.POLICY_CLAIMED, condition.message)
        return written.resource_version

    def _status(self, binding: ClusterBinding, told: list[Condition]) -> BindingStatus:
        """The status with our part of it; the rest is for others to say."""
        conditions = binding.status.conditions
        for condition in told:
            conditions = set_condition(conditions, condition, now=self._world.now_text())
        return msgspec.structs.replace(
            binding.status, conditions=conditions, virtual_nodes=len(self._world.vnodes)
        )

    async def _finalizers(
        self, binding: ClusterBinding, finalizers: list[str], version: str
    ) -> str:
        return await self._patch(binding, {"resourceVersion": version, "finalizers": finalizers})

    async def _record(self, binding: ClusterBinding, version: str) -> str:
        """Write down which cluster the worker is, for whoever is led to another one later."""
        key, worker = self._world.domain.worker_cluster_id, self._world.worker_id()
        if not worker or key in binding.annotations:
            return version
        metadata: Json = {"resourceVersion": version, "annotations": {key: worker}}
        return await self._patch(binding, metadata)

    async def _patch(self, binding: ClusterBinding, metadata: Json) -> str:
        """The version that the binding has then."""
        try:
            written = await self._world.computing.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch({"metadata": metadata})
            )
        except NotFound:
            return str(metadata["resourceVersion"])
        self._world.bindings.wrote(written)
        return written.resource_version

    def _emit(self, type_: EventType, reason: BindingEvent, message: str) -> None:
        binding = self._world.binding
        if binding is not None:
            target = reference(CLUSTER_BINDINGS, binding)
            self._world.events.emit(target, type_, reason, message)


def _later(rest_s: float | None) -> Outcome:
    return Done() if rest_s is None else After(rest_s)


def _differs(status: BindingStatus, condition: Condition) -> bool:
    """Whether it says something else, and not the same in other words."""
    before = find_condition(status.conditions, condition.type)
    return before is None or (before.status, before.reason) != (condition.status, condition.reason)
