"""The book of policies: those that lend to this binding, read once for each generation.

A policy that was made invalid is remembered as it last made sense, for as long as we run. Since
when a policy takes back by force is remembered for longer than that: its status says it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from kubeocean.api import naming
from kubeocean.api.policy import ResourceLeasingPolicy
from kubeocean.errors import ConfigError
from kubeocean.leasing.instants import ceil_second, instant_of
from kubeocean.leasing.merge import Candidate
from kubeocean.leasing.terms import Terms
from kubeocean.leasing.windows import within
from kubeocean.syncer.world import World

__all__ = ["Book", "Entry", "forced_since"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a policy says."""

    policy: ResourceLeasingPolicy
    terms: Terms | None
    problem: str
    last_valid: Terms | None
    forced_since: datetime | None = None  # None: it does not force

    @property
    def effective(self) -> Terms | None:
        return self.terms or self.last_valid

    def lends(self, now: datetime) -> bool:
        """Whether it makes sense and its windows are open."""
        return self.terms is not None and within(self.terms.calendar, now)

    def candidate(self) -> Candidate:
        return Candidate(
            name=self.policy.name,
            created=self.policy.metadata.creation_timestamp or "",
            terms=self.terms,
            problem=self.problem,
            last_valid=self.last_valid,
            deleting=self.policy.deleting,
            rules_since=self._rules_since(),
        )

    def _rules_since(self) -> datetime | None:
        deleted = instant_of(self.policy.metadata.deletion_timestamp)
        known = [each for each in (self.forced_since, deleted) if each is not None]
        return max(known, default=None)


class Book:
    """All policies that name this binding, and are not another cluster's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._entries: dict[str, Entry] = {}

    def follow(self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None) -> None:
        """A handler for the informer of policies."""
        if new is None:
            assert old is not None
            self._entries.pop(old.name, None)
            return
        if not self._world.concerns(new):
            self._entries.pop(new.name, None)
            return
        before = self._entries.get(new.name)
        if before is not None and before.policy.uid != new.uid:
            before = None
        self._entries[new.name] = self._read(new, before)

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def labelled(self, label: str) -> bool:
        """Whether a node's label names one of these."""
        return any(naming.label_value(name) == label for name in self._entries)

    def candidates(self) -> list[Candidate]:
        return [entry.candidate() for entry in self._entries.values()]

    def _read(self, policy: ResourceLeasingPolicy, before: Entry | None) -> Entry:
        last = before.effective if before is not None else None
        if before is not None and before.policy.spec == policy.spec:
            return replace(before, policy=policy)
        try:
            terms = Terms.of(policy.spec, local=self._world.zone)
        except ConfigError as error:
            forced = before.forced_since if before is not None else None
            return Entry(policy, None, str(error), last, forced)
        since = forced_since(policy, before, now=self._world.clock.now())
        return Entry(policy, terms, "", terms, since)


def forced_since(
    policy: ResourceLeasingPolicy, before: Entry | None, *, now: datetime
) -> datetime | None:
    """Since when a policy that makes sense takes back by force; None: it does not.

    `before` is what we knew of it. If that is nothing, its status tells what was known when it was
    written: a policy that did not force then does from now on, as far as anybody can say.
    """
    if not policy.spec.force_reclaim:
        return None
    if before is not None and before.effective is not None:
        forced = before.effective.spec.force_reclaim
        return before.forced_since if forced else ceil_second(now)
    told = policy.status
    if told.force_reclaim_time:
        return instant_of(told.force_reclaim_time)
    if told.observed_generation:
        return ceil_second(now)
    return instant_of(policy.metadata.creation_timestamp)
