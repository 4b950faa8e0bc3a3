"""The policies that lend to this binding, parsed once for each generation.

A policy that comes to name another binding keeps the claim of this one until its nodes are
reclaimed: for that, its rules are kept, too.
"""

from __future__ import annotations

from kubeocean.api import naming
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.leasing.cached_policy import CachedPolicy, read_policy
from kubeocean.leasing.policy_choice import Candidate
from kubeocean.syncer.clusters import Clusters

__all__ = ["PolicyCache"]


class PolicyCache:
    """Parsed policies that name this binding, unless another computing cluster has claimed them.

    Also policies with our claim that name another binding now.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._policies: dict[str, CachedPolicy] = {}
        self._withdrawn: dict[
            str, CachedPolicy
        ] = {}  # with our claim, and the name of another binding

    def follow(self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None) -> None:
        """Update the cache of policies; a handler for the informer of policies."""
        policy = new if new is not None else old
        assert policy is not None
        before = self._policies.pop(policy.name, None) or self._withdrawn.pop(policy.name, None)
        if new is None:
            return
        if self._clusters.concerns(new):
            policies = self._policies
        elif self._clusters.was_ours(new):
            policies = self._withdrawn
        else:
            return
        if before is not None and before.policy.uid != new.uid:
            before = None
        policies[new.name] = read_policy(
            new, before, zone=self._clusters.zone, now=self._clusters.clock.now()
        )

    def get(self, name: str) -> CachedPolicy | None:
        """Return the policy of that name, if it lends to this binding."""
        return self._policies.get(name)

    def has_label(self, label: str) -> bool:
        """Whether a node's label value names one of the policies that lend to this binding."""
        return any(naming.label_value(name) == label for name in self._policies)

    def candidates(self) -> list[Candidate]:
        """Return all policies, as candidates for a decision about a node."""
        return [
            *(policy.candidate() for policy in self._policies.values()),
            *(policy.candidate(withdrawn=True) for policy in self._withdrawn.values()),
        ]
