"""The policies that lend to this binding, parsed once for each generation."""

from __future__ import annotations

from kubeocean.api import naming
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.leasing.cached_policy import CachedPolicy, read_policy
from kubeocean.leasing.merge import Candidate
from kubeocean.syncer.clusters import Clusters

__all__ = ["PolicyCache"]


class PolicyCache:
    """All policies that name this binding and are not claimed by another computing cluster."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._policies: dict[str, CachedPolicy] = {}

    def follow(self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None) -> None:
        """Update the cache; a handler for the informer of policies."""
        if new is None:
            assert old is not None
            self._policies.pop(old.name, None)
            return
        if not self._clusters.concerns(new):
            self._policies.pop(new.name, None)
            return
        before = self._policies.get(new.name)
        if before is not None and before.policy.uid != new.uid:
            before = None
        self._policies[new.name] = read_policy(
            new, before, zone=self._clusters.zone, now=self._clusters.clock.now()
        )

    def get(self, name: str) -> CachedPolicy | None:
        """Return a policy by its name."""
        return self._policies.get(name)

    def has_label(self, label: str) -> bool:
        """Whether the value of a node's label names one of these policies."""
        return any(naming.label_value(name) == label for name in self._policies)

    def candidates(self) -> list[Candidate]:
        """Return all policies, as candidates for a decision about a node."""
        return [policy.candidate() for policy in self._policies.values()]
