"""Mistakes in policies that only the worker's nodes and the other policies show.

Whether a limit names a resource depends on the nodes that the policy selects, and whether a second
policy has any effect on which policy is older. The findings are in the status of the policy, and a
limit with an unknown name withholds what its author probably meant (`leasing.limits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kubeocean.leasing.decision import applies
from kubeocean.leasing.limits import withheld_resources
from kubeocean.leasing.policy_choice import ParsedPolicy
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Key
from kubeocean.syncer.clusters import Clusters

__all__ = ["Overlaps", "PolicyFindings", "SelectedResources", "resources_of"]


@dataclass(frozen=True, slots=True)
class PolicyFindings:
    """The mistakes of one policy.

    `overlaps` counts nodes by the older policy that decides about them instead; None means that not
    every node was reconciled yet.
    """

    unknown: tuple[str, ...] = ()  # resources of limits that no selected node has
    withheld: tuple[str, ...] = ()  # resources of which nothing is lent because of that
    overlaps: Mapping[str, int] | None = field(default_factory=dict)


def resources_of(pnode: Node) -> frozenset[str]:
    """Return the names of a node's resources."""
    return frozenset(pnode.status.allocatable or pnode.status.capacity or ())


@dataclass(slots=True)
class _Survey:
    """The resources of all nodes that a policy selects, as of one version of the cache."""

    version: str
    parsed: ParsedPolicy
    selector: NodeSelector | None
    resources: frozenset[str]


class SelectedResources:
    """The resources that the nodes of policies have.

    As a rule every limit names a resource of some known node, and no other node is looked at.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._examples: dict[tuple[str, str], str] = {}  # a node, by policy and resource
        self._surveys: dict[str, _Survey] = {}

    def unknown(
        self, policy: str, parsed: ParsedPolicy, selector: NodeSelector | None
    ) -> tuple[str, ...]:
        """Return the limited resources that no node has which policy and binding select."""
        doubtful = [
            name
            for name in dict.fromkeys(limit.resource for limit in parsed.limits)
            if not self._has_example(policy, name, parsed, selector)
        ]
        if not doubtful:
            return ()
        resources = self._survey(policy, parsed, selector)
        return tuple(name for name in doubtful if resources and name not in resources)

    def withheld(
        self, policy: str, parsed: ParsedPolicy, selector: NodeSelector | None
    ) -> tuple[str, ...]:
        """Return the resources of which nothing is lent because of an unknown name."""
        unknown = self.unknown(policy, parsed, selector)
        if not unknown:
            return ()
        resources = self._survey(policy, parsed, selector)
        return withheld_resources(parsed.limits, unknown, resources)

    def forget(self, policy: str) -> None:
        """Forget a policy that is gone."""
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
    """The nodes that more than one policy selects, as their last reconciles decided."""

    def __init__(self) -> None:
        self._deciders: dict[str, str] = {}  # by the worker's node; empty if no policy decides
        self._others: dict[str, tuple[str, ...]] = {}  # policies that do not decide, by node
        self._handlers: list[Callable[[str], None]] = []

    def on_change(self, handler: Callable[[str], None]) -> None:
        """Call the handler with the name of a policy whose overlaps changed."""
        self._handlers.append(handler)

    def record(self, pnode: str, decider: str = "", others: tuple[str, ...] = ()) -> None:
        """Record which policy decides about a node, and which select the node besides."""
        before = self._deciders.get(pnode, ""), self._others.get(pnode, ())
        self._deciders[pnode] = decider
        if others:
            self._others[pnode] = others
        else:
            self._others.pop(pnode, None)
        if (before[1] or others) and before != (decider, others):
            self._changed(*before[1], *others)

    def forget(self, pnode: str) -> None:
        """Forget a node of the worker that is gone."""
        self._deciders.pop(pnode, None)
        self._changed(*self._others.pop(pnode, ()))

    def is_recorded(self, pnode: str) -> bool:
        """Whether a reconcile has recorded the node."""
        return pnode in self._deciders

    def of(self, policy: str) -> dict[str, int]:
        """Return how many nodes of this policy older ones decide about, by the older policy."""
        nodes = (pnode for pnode, others in self._others.items() if policy in others)
        return dict(sorted(Counter(self._deciders[pnode] for pnode in nodes).items()))

    def _changed(self, *policies: str) -> None:
        for policy in dict.fromkeys(policies):
            for handler in self._handlers:
                handler(policy)
