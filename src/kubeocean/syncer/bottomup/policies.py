"""Policies: what they say of themselves, and the exact moments at which they open and close.

The key is a policy's name. A reconcile holds the finalizer, writes the status if it changed, and
wakes at the next edge of the windows, by timer; then every node is looked at. A policy that is
deleted stays until the last node that it lent is back; one whose binding goes, or that names
another binding, is let go of then, too.

With the finalizer comes our claim: a binding of the same name in another computing cluster stays
off a policy that we claimed, and we off one that it did, until the claim is taken away.

What happens to nodes and pods is told at most once in `TELL_EVERY_S`, however much happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.ownership import is_holder, policy_claim
from kubeocean.api.policy import (
    RESOURCE_LEASING_POLICIES,
    PolicyStatus,
    ReclaimStatus,
    ResourceLeasingPolicy,
)
from kubeocean.api.reasons import PolicyEvent
from kubeocean.errors import NotFound
from kubeocean.leasing.report import News
from kubeocean.leasing.terms import Terms
from kubeocean.leasing.windows import next_edge, within
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.bottomup.book import Book, Entry
from kubeocean.syncer.bottomup.reclaims import Reclaims
from kubeocean.syncer.bottomup.telling import difference, happenings, own_status, with_news
from kubeocean.syncer.world import World

__all__ = ["Policies"]

# A wall clock may be set; a sleep that was computed before would not know.
LONGEST_NAP_S: Final = 30.0
TELL_EVERY_S: Final = 1.0

_log = get_logger(__name__)


class Policies:
    """The policies of one binding."""

    def __init__(
        self, world: World, book: Book, reclaims: Reclaims, enqueue_nodes: Callable[[], None]
    ) -> None:
        self._world = world
        self._book = book
        self._reclaims = reclaims
        self._enqueue_nodes = enqueue_nodes
        self._seen: dict[str, tuple[Terms | None, bool, bool]] = {}
        self._told_at: dict[str, float] = {}
        self.controller: Controller[Key] = Controller(
            f"resourceleasingpolicy-{world.binding_name}",
            self.reconcile,
            gate=world.policies.caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        world.policies.on_change(self._follow)
        world.vnodes.on_change(self._vnode_changed)
        world.bindings.on_change(self._binding_changed)
        world.reach.on_change(lambda answers: self._enqueue_all())
        reclaims.on_change(self._enqueue)

    # What makes us look

    def _follow(self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None) -> None:
        either = new if new is not None else old
        assert either is not None
        self._book.follow(old, new)
        was, is_ = self._world.concerns(old), self._world.concerns(new)
        if new is None or (old is not None and was != is_):
            self._seen.pop(either.name, None)
            self._enqueue_nodes()
        elif self._world.holds(new) and not self._world.holds(old):
            self._enqueue_nodes()
        self.controller.enqueue(either.key)

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        applied = self._world.domain.policies_applied
        before, after = (
            vnode.annotations.get(applied, "") if vnode is not None else "" for vnode in (old, new)
        )
        if before != after:
            for name in (before, after):
                self._enqueue(name)

    def _enqueue(self, name: str) -> None:
        if self._world.policies.get(Key("", name)) is not None:
            self.controller.enqueue(Key("", name))

    def _enqueue_all(self) -> None:
        for policy in self._world.policies.items():
            self.controller.enqueue(policy.key)

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        held = self._world.is_held
        if old is None or new is None or old.deleting != new.deleting or held(old) != held(new):
            self._enqueue_all()

    @property
    def _is_ending(self) -> bool:
        """Whether nobody is there, or soon is, to lend to."""
        binding = self._world.binding
        return binding is None or binding.deleting

    def _has_finalizer(self, policy: ResourceLeasingPolicy) -> bool:
        return self._world.domain.finalizer_policy in (policy.metadata.finalizers or ())

    def _is_left(self, policy: ResourceLeasingPolicy) -> bool:
        """Whether we claimed it, and it came to name another binding."""
        named = policy.spec.cluster == self._world.binding_name
        return not named and is_holder(policy, ids=self._world.ids, domain=self._world.domain)

    def held(self) -> Iterator[str]:
        """Those that nobody can delete without us."""
        for policy in self._world.policies.items():
            if self._world.concerns(policy) and self._has_finalizer(policy):
                yield policy.name

    def claimed(self) -> Iterator[str]:
        """Those that name our binding, and lend to another cluster's of that name."""
        for policy in self._world.policies.items():
            named = policy.spec.cluster == self._world.binding_name
            if named and not self._world.concerns(policy):
                yield policy.name

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        policy, entry = self._world.policies.get(key), self._book.get(key.name)
        if policy is None:
            self._told_at.pop(key.name, None)
            self._reclaims.forget(key.name)
            return Done()
        if not self._world.synced:
            return After(1.0)
        if not self._world.reach.answers:
            return After(LONGEST_NAP_S)
        now = self._world.clock.now()
        if entry is not None:
            self._notice(entry, now)
        if entry is None or policy.deleting or self._is_ending:
            return await self._let_go(policy, entry, now)
        if not self._world.is_held(self._world.binding):
            return Done()  # who deletes it now finds nothing held; we are called again
        version = await self._hold(policy)
        rest = await self._tell(entry, now, version)
        return self._until_edge(entry, now, rest)

    def _notice(self, entry: Entry, now: datetime) -> None:
        """Nodes are looked at when the policy says something else, or opens, or closes."""
        is_so = (entry.effective, self._open(entry, now), entry.policy.deleting)
        if self._seen.get(entry.policy.name) != is_so:
            self._seen[entry.policy.name] = is_so
            self._enqueue_nodes()

    def _open(self, entry: Entry, now: datetime) -> bool:
        return entry.effective is not None and within(entry.effective.calendar, now)

    def _until_edge(self, entry: Entry, now: datetime, rest_s: float | None) -> Outcome:
        edge = next_edge(entry.effective.calendar, now) if entry.effective is not None else None
        waits = [] if rest_s is None else [rest_s]
        if edge is not None:
            waits.append(min(LONGEST_NAP_S, max(0.0, (edge - now).total_seconds())))
        return After(min(waits)) if waits else Done()

    # Holding and letting go

    async def _hold(self, policy: ResourceLeasingPolicy) -> str:
        """Our finalizer and claim are there; the version that the policy has then."""
        if self._world.holds(policy):
            return policy.resource_version
        ours, there = self._world.domain.finalizer_policy, policy.metadata.finalizers or ()
        finalizers = [*(each for each in there if each != ours), ours]
        claim: Json = dict(policy_claim(self._world.ids, self._world.domain))
        written = await self._mark(policy, finalizers, claim)
        return policy.resource_version if written is None else written.resource_version

    async def _let_go(
        self, policy: ResourceLeasingPolicy, entry: Entry | None, now: datetime
    ) -> Outcome:
        """Once no node is lent by it any more; a policy of another binding is not ours to hold."""
        rest_s, version, world = None, policy.resource_version, self._world
        lent = world.vnodes.by("policy", policy.name)
        if entry is not None and (lent or not policy.deleting):
            rest_s = await self._tell(entry, now, version)
        mine = world.concerns(policy) or self._is_left(policy)
        claim = policy_claim(world.ids, world.domain)
        marked = self._has_finalizer(policy) or not claim.keys().isdisjoint(policy.annotations)
        if lent or not mine or not marked or rest_s is not None:
            return Done() if rest_s is None else After(rest_s)
        if entry is not None and policy.deleting:
            self._tell_end(policy)
        there = policy.metadata.finalizers or ()
        finalizers = [each for each in there if each != world.domain.finalizer_policy]
        await self._mark(policy, finalizers, dict.fromkeys(claim))
        return Done()

    def _tell_end(self, policy: ResourceLeasingPolicy) -> None:
        """There will be no status to tell it."""
        reclaim = policy.status.reclaim or ReclaimStatus()
        if reclaim.start_time is not None and reclaim.completion_time is None:
            said = "Taken back; nothing is lent by this policy any more"
            target = reference(RESOURCE_LEASING_POLICIES, policy)
            self._world.worker_events.emit(target, "Normal", PolicyEvent.RECLAIMED, said)

    async def _mark(
        self, policy: ResourceLeasingPolicy, finalizers: list[str], claim: Json
    ) -> ResourceLeasingPolicy | None:
        metadata: Json = {
            "resourceVersion": policy.resource_version,
            "finalizers": finalizers,
            "annotations": claim,
        }
        try:
            written = await self._world.worker.patch(
                RESOURCE_LEASING_POLICIES, policy.name, MergePatch({"metadata": metadata})
            )
        except NotFound:
            return None
        self._world.policies.wrote(written)
        return written

    # Telling

    async def _tell(self, entry: Entry, now: datetime, version: str) -> float | None:
        """Write the status, if it says something else; the seconds until the rest may be told."""
        policy, name = entry.policy, entry.policy.name
        news = self._news(entry, now)
        own = own_status(entry, now=now, ending=self._is_ending)
        wanted = with_news(
            own,
            news,
            leased=len(self._world.vnodes.by("policy", name)),
            generation=policy.metadata.generation,
            now=now,
        )
        if wanted == policy.status:
            if news is not None:
                self._reclaims.told(name, news)
            return None
        since_s = self._world.clock.monotonic() - self._told_at.get(name, -TELL_EVERY_S)
        if own == policy.status and since_s < TELL_EVERY_S:
            return TELL_EVERY_S - since_s
        await self._write(policy, wanted, version)
        if news is not None:
            self._reclaims.told(name, news)
        return None

    def _news(self, entry: Entry, now: datetime) -> News | None:
        """None, while there is a node that seems to be on its way back and was not looked at."""
        name, domain = entry.policy.name, self._world.domain
        keys = (domain.taint_out_of_time_windows, domain.taint_vnode_deleting)
        for vnode in self._world.vnodes.by("policy", name):
            noticed = any(taint.key in keys for taint in vnode.spec.taints or ())
            if noticed and not self._reclaims.knows(vnode.name):
                return None
        ending = entry.policy.deleting or self._is_ending
        return self._reclaims.news(name, lends=entry.lends(now) and not ending)

    async def _write(
        self, policy: ResourceLeasingPolicy, wanted: PolicyStatus, version: str
    ) -> None:
        before: Json = msgspec.to_builtins(policy.status)
        status = difference(before, msgspec.to_builtins(wanted))
        body: Json = {"metadata": {"resourceVersion": version}, "status": status}
        written = await self._world.worker.patch(
            RESOURCE_LEASING_POLICIES, policy.name, MergePatch(body), subresource="status"
        )
        self._world.policies.wrote(written)
        self._told_at[policy.name] = self._world.clock.monotonic()
        _log.info("Updated policy", policy=policy.name, phase=wanted.phase)
        target = reference(RESOURCE_LEASING_POLICIES, policy)
        for event in happenings(policy.status, wanted):
            self._world.worker_events.emit(target, event.type, event.reason, event.message)
