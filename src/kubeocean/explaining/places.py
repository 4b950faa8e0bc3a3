"""Places: which virtual nodes a pod could go to, and what keeps it off the others.

Pure. All virtual nodes go through one sieve after the other: what the pod selects, what it
tolerates, whose window is open, who takes pods, who has enough. The first sieve that lets none
through is why the pod waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.explaining.facts import PodFacts
from kubeocean.explaining.nodes import is_ready
from kubeocean.explaining.story import Rule
from kubeocean.explaining.wording import taint_text
from kubeocean.leasing.amounts import Amounts, add, read_amounts
from kubeocean.leasing.counted import CountedPod
from kubeocean.leasing.requests import requests_of
from kubeocean.leasing.tolerations import (
    NO_EXECUTE,
    NO_SCHEDULE,
    Toleration,
    tolerates,
)
from kubeocean.runtime.codec import decode_object
from kubeocean.runtime.kinds import Node, Taint
from kubeocean.runtime.nodeselectors import NodeSelector
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = ["Sieve", "Sifted", "free_on", "lacks", "requests", "sift"]

_BUILT_IN: Final = "node.kubernetes.io/"  # taints that Kubernetes puts on and takes off


@dataclass(frozen=True, slots=True)
class Sieve:
    """What one sieve let through, and why it kept back each of the others."""

    rule: Rule
    label: str
    through: tuple[Node, ...]
    kept: dict[str, str]  # by node


@dataclass(frozen=True, slots=True)
class Sifted:
    """All sieves up to the first that let nothing through; `rule` is `FITS` if there is none."""

    total: int
    sieves: tuple[Sieve, ...]

    @property
    def rule(self) -> Rule:
        if not self.total:
            return Rule.NO_NODE
        last = self.sieves[-1]
        return Rule.FITS if last.through else last.rule

    @property
    def last(self) -> Sieve:
        return self.sieves[-1]

    @property
    def candidates(self) -> tuple[Node, ...]:
        """The nodes that came as far as any: that passed all sieves, or all but the last."""
        if not self.sieves:
            return ()
        return self.last.through or (self.sieves[-2].through if len(self.sieves) > 1 else ())


def requests(pod: bytes) -> Amounts:
    """What a pod asks of its node."""
    return requests_of(decode_object(CountedPod, pod, keep_raw=False))


def free_on(node: Node, taken: Sequence[CountedPod]) -> dict[str, Quantity]:
    """What a node has for further pods, as the scheduler counts it."""
    used: dict[str, Quantity] = {}
    for pod in taken:
        add(used, requests_of(pod))
    has = read_amounts(node.status.allocatable)
    return {name: amount - used.get(name, ZERO) for name, amount in has.items()}


def lacks(wanted: Amounts, free: Amounts) -> list[str]:
    """The resources of which there is not enough."""
    return [name for name, amount in wanted.items() if amount > free.get(name, ZERO)]


def sift(facts: PodFacts) -> Sifted:
    """Let all virtual nodes through the sieves."""
    assert facts.pod is not None
    body = facts.pod.content()
    spec: Json = body["spec"]
    tolerations = facts.pod.spec.tolerations or ()
    wanted = requests(facts.pod.raw)
    selects = _selector(spec)
    checks: tuple[tuple[Rule, str, Callable[[Node], str]], ...] = (
        (Rule.NOT_SELECTED, "match its selectors", selects),
        (Rule.NOT_TOLERATED, "are tolerated", lambda n: _taints(n, tolerations, facts.domain)),
        (Rule.WINDOW_CLOSED, "are in their window", lambda n: _closed(n, tolerations, facts)),
        (Rule.CLOSED_TO_PODS, "take new pods", lambda n: _takes(n, tolerations, facts.domain)),
        (Rule.TOO_LITTLE, "have enough left", lambda n: _enough(n, wanted, facts)),
    )
    return Sifted(len(facts.nodes), tuple(_sieves(facts.nodes, checks)))


def _sieves(
    nodes: tuple[Node, ...], checks: Sequence[tuple[Rule, str, Callable[[Node], str]]]
) -> Iterator[Sieve]:
    left = nodes
    for rule, label, check in checks:
        if not left:
            return
        answers = {node.name: check(node) for node in left}
        kept = {name: why for name, why in answers.items() if why}
        left = tuple(node for node in left if node.name not in kept)
        yield Sieve(rule, label, left, kept)


def _selector(spec: Json) -> Callable[[Node], str]:
    wanted: dict[str, str] = spec.get("nodeSelector") or {}
    affinity: Json = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required: Json | None = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    try:
        terms = NodeSelector.from_document(required) if required is not None else None
    except ConfigError:
        terms = None  # of a newer kind than we know: the scheduler decides

    def why(node: Node) -> str:
        for key, value in wanted.items():
            if node.labels.get(key) != value:
                return f"its label {key} is not {value}"
        if terms is not None and not terms.matches(node.name, node.labels):
            return "the pod's required node affinity does not match it"
        return ""

    return why


def _untolerated(node: Node, tolerations: Sequence[Toleration]) -> list[Taint]:
    return [
        taint
        for taint in node.spec.taints or ()
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE)
        and not any(tolerates(each, taint) for each in tolerations)
    ]


def _taints(node: Node, tolerations: Sequence[Toleration], domain: Domain) -> str:
    """Taints that somebody means; windows and the state of the node have sieves of their own."""
    ours = (domain.taint_out_of_time_windows, domain.taint_vnode_deleting)
    found = [
        taint
        for taint in _untolerated(node, tolerations)
        if taint.key not in ours and not taint.key.startswith(_BUILT_IN)
    ]
    return f"the pod does not tolerate {', '.join(map(taint_text, found))}" if found else ""


def _closed(node: Node, tolerations: Sequence[Toleration], facts: PodFacts) -> str:
    key = facts.domain.taint_out_of_time_windows
    found = [taint for taint in _untolerated(node, tolerations) if taint.key == key]
    policy = node.annotations.get(facts.domain.policies_applied, "")
    return f"the window of policy {policy} is closed" if found else ""


def _takes(node: Node, tolerations: Sequence[Toleration], domain: Domain) -> str:
    found = _untolerated(node, tolerations)
    if any(taint.key == domain.taint_vnode_deleting for taint in found):
        return "it is being taken back"
    if node.spec.unschedulable:
        return "it is cordoned"
    if not is_ready(node):
        return "it is not Ready"
    return f"it has the taint {', '.join(map(taint_text, found))}" if found else ""


def _enough(node: Node, wanted: Amounts, facts: PodFacts) -> str:
    free = free_on(node, facts.taken.get(node.name, ()))
    short = [f"{name} {max(free.get(name, ZERO), ZERO)} free" for name in lacks(wanted, free)]
    return ", ".join(short)
