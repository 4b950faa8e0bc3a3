"""Parsed policies of a syncer: present and last valid spec, and since when `forceReclaim` is set.

The last valid spec of a policy is known for as long as the syncer runs. The time since which a
policy reclaims by force survives a restart, because the policy's status has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.errors import ConfigError
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.policy_choice import Candidate
from kubeocean.leasing.windows import within
from kubeocean.runtime.clock import ceil_second, instant_of

__all__ = ["CachedPolicy", "forced_since", "read_policy"]


@dataclass(frozen=True, slots=True)
class CachedPolicy:
    """A ResourceLeasingPolicy that lends to this binding, parsed once for each change of its
    spec."""

    policy: ResourceLeasingPolicy
    parsed: ParsedPolicy | None
    problem: str
    last_valid: ParsedPolicy | None
    forced_since: datetime | None = None  # None: the policy does not force

    @property
    def effective(self) -> ParsedPolicy | None:
        """The present spec if it is valid, else the last valid one; None if the policy was never
        valid."""
        return self.parsed or self.last_valid

    def lends(self, now: datetime) -> bool:
        """Whether the policy is valid and one of its time windows is open."""
        return self.parsed is not None and within(self.parsed.calendar, now)

    def candidate(self, *, withdrawn: bool = False) -> Candidate:
        """Return the policy as a `Candidate` for the choice of the policy that decides about a
        node. `withdrawn`: the policy names another binding now."""
        return Candidate(
            name=self.policy.name,
            created=self.policy.metadata.creation_timestamp or "",
            parsed=self.parsed,
            problem=self.problem,
            last_valid=self.last_valid,
            deleting=self.policy.deleting,
            withdrawn=withdrawn,
            rules_since=self._rules_since(),
        )

    def _rules_since(self) -> datetime | None:
        deleted = instant_of(self.policy.metadata.deletion_timestamp)
        known = [each for each in (self.forced_since, deleted) if each is not None]
        return max(known, default=None)


def read_policy(
    policy: ResourceLeasingPolicy, before: CachedPolicy | None, *, zone: tzinfo, now: datetime
) -> CachedPolicy:
    """Parse a policy. `before` is the policy as it was last parsed; `zone` is the time zone of a
    policy that names none."""
    if before is not None and before.policy.spec == policy.spec:
        return replace(before, policy=policy)
    try:
        parsed = ParsedPolicy.of(policy.spec, local=zone)
    except ConfigError as error:
        last = before.effective if before is not None else None
        forced = before.forced_since if before is not None else None
        return CachedPolicy(policy, None, str(error), last, forced)
    return CachedPolicy(policy, parsed, "", parsed, forced_since(policy, before, now=now))


def forced_since(
    policy: ResourceLeasingPolicy, before: CachedPolicy | None, *, now: datetime
) -> datetime | None:
    """Return since when `forceReclaim` has been set in a valid policy; None if it is not set.

    `before` is the policy as it was last parsed. Without `before`, the policy's status shows
    whether the policy forced when the status was written: if not, the policy counts as forcing from
    now on.
    """
    if not policy.spec.force_reclaim:
        return None
    if before is not None and before.effective is not None:
        forced = before.effective.spec.force_reclaim
        return before.forced_since if forced else ceil_second(now)
    status = policy.status
    if status.force_reclaim_time:
        return instant_of(status.force_reclaim_time)
    if status.observed_generation:
        return ceil_second(now)
    return instant_of(policy.metadata.creation_timestamp)
