"""Mistakes in policies that only the worker's nodes and the other policies reveal.

Whether a limit names an existing resource depends on the nodes that the policy selects; whether a
second policy for a node has any effect depends on which policy is older. The findings are in the
status of the policy. A limit with an unknown name withholds the resource that its author probably
meant (`leasing.limits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kubeocean.leasing.capacity import resources_of
from kubeocean.leasing.decision import applies
from kubeocean.leasing.limits import unknown_resources, withheld_resources
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Key
from kubeocean.syncer.clusters import Clusters

__all__ = ["Overlaps", "PolicyFindings", "SelectedResources"]


@dataclass(frozen=True, slots=True)
class PolicyFindings:
    """The mistakes of one policy.

    `overlaps` counts the nodes that an older policy decides about instead, by the name of the older
    policy; None means that not every node was reconciled yet.
    """

    unknown: tuple[str, ...] = ()  # resources of limits that no selected node has
    withheld: tuple[str, ...] = ()  # resources that are not lent because of `unknown`
    overlaps: Mapping[str, int] | None = field(default_factory=dict)


@dataclass(slots=True)
class _Survey:
    """The resources of all nodes that a policy selects, as of one version of the cache."""

    version: str
    parsed: ParsedPolicy
    selector: NodeSelector | None
    resources: frozenset[str]


class SelectedResources:
    """The resources of the worker's nodes that each policy selects.

    For each limit, one node that has the resource is remembered; other nodes are read only if there
    is none.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._examples: dict[tuple[str, str], str] = {}  # a node, by policy and resource
        self._surveys: dict[str, _Survey] = {}

    def unknown(
        self, policy: str, parsed: ParsedPolicy, selector: NodeSelector | None
    ) -> tuple[str, ...]:
        """Return the resources in a policy's limits that none of the selected nodes has."""
        doubtful = [
            limit
            for limit in parsed.limits
            if not self._has_example(policy, limit.resource, parsed, selector)
        ]
        if not doubtful:
            return ()
        return unknown_resources(doubtful, self._survey(policy, parsed, selector))

    def withheld(
        self, policy: str, parsed: ParsedPolicy, selector: NodeSelector | None
    ) -> tuple[str, ...]:
        """Return the resources that are not lent because a limit has an unknown name."""
        unknown = self.unknown(policy, parsed, selector)
        if not unknown:
            return ()
        resources = self._survey(policy, parsed, selector)
        return withheld_resources(parsed.limits, unknown, resources)

    def forget(self, policy: str) -> None:
        """Drop the memory of a policy that does not exist any more."""
        self._surveys.pop(policy, None)
        for key in [key for key in self._examples if key[0] == policy]:
            del self._examples[key]

    def _has_example(
        self, policy: str, resource: str, parsed: ParsedPolicy, selector: NodeSelector | None
    ) -> bool:
        name = self._examples.get((policy, resource))
        pnode = self._clusters.pnodes.get(Key("", name)) if name is not None else None
        if pnode is None or resource not in resources_of(pnode):
            return False
        return applies(parsed, pnode, selector, lent=True)

    def _survey(
        self, policy: str, parsed: ParsedPolicy, selector: NodeSelector | None
    ) -> frozenset[str]:
        pnodes, last = self._clusters.pnodes, self._surveys.get(policy)
        if (
            last is not None
            and last.version == pnodes.version
            and (last.parsed is parsed and last.selector == selector)
        ):
            return last.resources
        resources: set[str] = set()
        for pnode in pnodes.items():
            if applies(parsed, pnode, selector, lent=True):
                for resource in resources_of(pnode) - resources:
                    self._examples[policy, resource] = pnode.name
                    resources.add(resource)
        self._surveys[policy] = _Survey(pnodes.version, parsed, selector, frozenset(resources))
        return self._surveys[policy].resources


class Overlaps:
    """The worker's nodes that more than one policy selects, as of the last reconciles."""

    def __init__(self) -> None:
        self._deciders: dict[str, str] = {}  # by the worker's node; empty if no policy decides
        self._others: dict[str, tuple[str, ...]] = {}  # policies that do not decide, by node
        self._handlers: list[Callable[[str], None]] = []

    def on_change(self, handler: Callable[[str], None]) -> None:
        """Call the handler with the name of a policy whose overlaps changed."""
        self._handlers.append(handler)

    def record(self, pnode: str, decider: str = "", others: tuple[str, ...] = ()) -> None:
        """Record which policy decides about a worker's node, and which `others` select it."""
        before = self._deciders.get(pnode, ""), self._others.get(pnode, ())
        self._deciders[pnode] = decider
        if others:
            self._others[pnode] = others
        else:
            self._others.pop(pnode, None)
        if (before[1] or others) and before != (decider, others):
            self._changed(*before[1], *others)

    def forget(self, pnode: str) -> None:
        """Drop the record of a worker node that does not exist any more."""
        self._deciders.pop(pnode, None)
        self._changed(*self._others.pop(pnode, ()))

    def is_recorded(self, pnode: str) -> bool:
        """Whether a reconcile has recorded the policies of a worker's node."""
        return pnode in self._deciders

    def of(self, policy: str) -> dict[str, int]:
        """Return how many nodes that `policy` selects are decided by each older policy."""
        nodes = (pnode for pnode, others in self._others.items() if policy in others)
        return dict(sorted(Counter(self._deciders[pnode] for pnode in nodes).items()))

    def _changed(self, *policies: str) -> None:
        for policy in dict.fromkeys(policies):
            for handler in self._handlers:
                handler(policy)
