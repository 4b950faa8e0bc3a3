"""Policies: what they say of themselves, and the exact moments at which they open and close.

The key is a policy's name. A reconcile holds the finalizer, writes the status if it changed, and
wakes at the next edge of the windows, by timer; then every node is looked at. A policy that is
deleted stays until the last node that it lent is back.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api import conditions as said
from kubeocean.api.policy import (
    RESOURCE_LEASING_POLICIES,
    PolicyPhase,
    PolicyStatus,
    ResourceLeasingPolicy,
)
from kubeocean.errors import NotFound
from kubeocean.leasing.terms import Terms
from kubeocean.leasing.windows import next_edge, within
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Condition, Json, Key, set_condition
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.book import Book, Entry
from kubeocean.syncer.world import World

__all__ = ["Policies"]

# A wall clock may be set; a sleep that was computed before would not know.
LONGEST_NAP_S: Final = 30.0

_log = get_logger(__name__)


class Policies:
    """The policies of one binding."""

    def __init__(self, world: World, book: Book, enqueue_nodes: Callable[[], None]) -> None:
        self._world = world
        self._book = book
        self._enqueue_nodes = enqueue_nodes
        self._seen: dict[str, tuple[Terms | None, bool, bool]] = {}
        self.controller: Controller[Key] = Controller(
            f"resourceleasingpolicy-{world.binding_name}",
            self.reconcile,
            gate=world.policies.caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        world.policies.on_change(self._follow)
        world.vnodes.on_change(lambda old, new: self._enqueue_deleting())
        world.reach.on_change(lambda answers: self._enqueue_deleting())

    def _follow(self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None) -> None:
        either = new if new is not None else old
        assert either is not None
        self._book.follow(old, new)
        mine = self._world.binding_name
        if new is None or (
            old is not None and (old.spec.cluster == mine) != (new.spec.cluster == mine)
        ):
            self._seen.pop(either.name, None)
            self._enqueue_nodes()
        self.controller.enqueue(either.key)

    def _enqueue_deleting(self) -> None:
        for policy in self._world.policies.items():
            if policy.deleting:
                self.controller.enqueue(policy.key)

    async def reconcile(self, key: Key) -> Outcome:
        policy, entry = self._world.policies.get(key), self._book.get(key.name)
        if policy is None or not self._world.synced:
            return Done() if policy is None else After(1.0)
        if not self._world.reach.answers:
            return After(LONGEST_NAP_S)
        if entry is None or policy.deleting:
            return await self._let_go(policy)
        await self._hold(policy)
        now = self._world.clock.now()
        self._notice(entry, now)
        await self._tell(entry, now)
        return self._until_edge(entry, now)

    def _notice(self, entry: Entry, now: datetime) -> None:
        """Nodes are looked at when the policy says something else, or opens, or closes."""
        is_so = (entry.effective, self._open(entry, now), entry.policy.deleting)
        if self._seen.get(entry.policy.name) != is_so:
            self._seen[entry.policy.name] = is_so
            self._enqueue_nodes()

    def _open(self, entry: Entry, now: datetime) -> bool:
        return entry.effective is not None and within(entry.effective.calendar, now)

    def _until_edge(self, entry: Entry, now: datetime) -> Outcome:
        edge = next_edge(entry.effective.calendar, now) if entry.effective is not None else None
        if edge is None:
            return Done()
        return After(min(LONGEST_NAP_S, max(0.0, (edge - now).total_seconds())))

    # Writing

    async def _hold(self, policy: ResourceLeasingPolicy) -> None:
        ours = self._world.domain.finalizer_policy
        if ours not in (policy.metadata.finalizers or ()):
            await self._finalizers(policy, [*(policy.metadata.finalizers or ()), ours])

    async def _let_go(self, policy: ResourceLeasingPolicy) -> Outcome:
        """Once no node is lent by it any more; a policy of another binding is not ours to hold."""
        self._seen.pop(policy.name, None)
        self._enqueue_nodes()
        ours, now = self._world.domain.finalizer_policy, policy.metadata.finalizers or ()
        mine = policy.spec.cluster == self._world.binding_name
        if self._world.vnodes.by("policy", policy.name) or not mine or ours not in now:
            return Done()
        await self._finalizers(policy, [each for each in now if each != ours])
        return Done()

    async def _finalizers(self, policy: ResourceLeasingPolicy, finalizers: list[str]) -> None:
        metadata: Json = {"resourceVersion": policy.resource_version, "finalizers": finalizers}
        try:
            written = await self._world.worker.patch(
                RESOURCE_LEASING_POLICIES, policy.name, MergePatch({"metadata": metadata})
            )
        except NotFound:
            return
        self._world.policies.wrote(written)

    async def _tell(self, entry: Entry, now: datetime) -> None:
        """Write the status, if it says something else than before."""
        policy = self._world.policies.get(entry.policy.key)
        assert policy is not None
        wanted = self._status(entry, now)
        if wanted == policy.status:
            return
        before, then = msgspec.to_builtins(policy.status), msgspec.to_builtins(wanted)
        body: Json = {"status": {name: None for name in before if name not in then} | then}
        written = await self._world.worker.patch(
            RESOURCE_LEASING_POLICIES, policy.name, MergePatch(body), subresource="status"
        )
        self._world.policies.wrote(written)
        _log.info("Updated policy", policy=policy.name, phase=wanted.phase)

    def _status(self, entry: Entry, now: datetime) -> PolicyStatus:
        before, lends = entry.policy.status, entry.lends(now)
        edge = next_edge(entry.terms.calendar, now) if entry.terms is not None else None
        phase = PolicyPhase.FAILED
        if entry.terms is not None:
            phase = PolicyPhase.ACTIVE if lends else PolicyPhase.INACTIVE
        flipped = (before.phase, before.active_time_window) != (phase, lends)
        told = before.conditions
        for condition in self._conditions(entry, lends, edge):
            told = set_condition(told, condition, now=self._world.now_text())
        return msgspec.structs.replace(
            before,
            phase=str(phase),
            conditions=told,
            last_applied_time=self._world.now_text() if flipped else before.last_applied_time,
            active_time_window=lends,
            observed_generation=entry.policy.metadata.generation,
            next_transition_time=_written(edge),
        )

    def _conditions(
        self, entry: Entry, lends: bool, edge: datetime | None
    ) -> tuple[Condition, Condition]:
        generation = entry.policy.metadata.generation
        if entry.terms is None:
            return (
                said.POLICY_INVALID.condition(generation=generation, problems=entry.problem),
                said.POLICY_NOT_ACTIVATED.condition(generation=generation),
            )
        verdict = said.POLICY_ACTIVE if lends else said.POLICY_INACTIVE
        until = f" until {_written(edge)}" if edge is not None else ""
        return (
            said.POLICY_VALID.condition(generation=generation, notes=""),
            verdict.condition(generation=generation, until=until),
        )


def _written(instant: datetime | None) -> str | None:
    return None if instant is None else f"{instant:%Y-%m-%dT%H:%M:%SZ}"
