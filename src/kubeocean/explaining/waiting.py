"""Waiting: why a pod has no node yet.

Pure.
"""

from __future__ import annotations

from kubeocean.explaining.deal import Deal, figures, sentence, strike, window_text
from kubeocean.explaining.facts import NodeFacts, PodFacts
from kubeocean.explaining.nodes import policy_lines
from kubeocean.explaining.places import Sieve, Sifted, free_on, lacks, requests, sift
from kubeocean.explaining.story import Figure, Rule, Section, Story
from kubeocean.explaining.wording import amounts, few
from kubeocean.leasing.report import counted
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Json, find_condition
from kubeocean.runtime.quantity import ZERO
from kubeocean.syncer.bottomup.lending import Lend

__all__ = ["best_of", "explain_waiting"]

_SHOWN = 10
_ONE = {
    "match its selectors": "matches its selectors",
    "are tolerated": "is tolerated",
    "are in their window": "is in its window",
    "take new pods": "takes new pods",
    "have enough left": "has enough left",
}


def explain_waiting(facts: PodFacts) -> Story:
    """The page about a pod without a node."""
    assert facts.pod is not None
    about = f"pod {facts.key}"
    spec: Json = facts.pod.content()["spec"]
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    if gates:
        said = f"it waits for its scheduling gates: {few(gates)}"
        lifted = ("whoever set the gates has to lift them",)
        return Story(about, Rule.GATED, said, remedies=lifted, unread=facts.unread)
    sifted = sift(facts)
    best = best_of(facts, sifted)
    known = facts.bindings.get(best.name) if best is not None else None
    deal = strike(known) if known is not None and not known.side.problem else None
    said, remedies = _verdict(facts, sifted, best, known, deal)
    return Story(
        about,
        sifted.rule,
        said,
        tuple(_reasons(facts, sifted)),
        figures=_figures(sifted, deal),
        sections=(
            Section("virtual nodes", _kept(sifted)),
            Section("policies", _policies(known, deal)),
        ),
        remedies=remedies,
        unread=facts.unread,
    )


def best_of(facts: PodFacts, sifted: Sifted) -> Node | None:
    """The node that comes closest: of those that came furthest, that with the most to give."""
    assert facts.pod is not None
    wanted = requests(facts.pod.raw)

    def rank(node: Node) -> tuple[int, int, str]:
        free = free_on(node, facts.taken.get(node.name, ()))
        short = lacks(wanted, free)
        return len(short), -sum(free.get(name, ZERO).nano for name in short), node.name

    return min(sifted.candidates, key=rank, default=None)


def _verdict(
    facts: PodFacts,
    sifted: Sifted,
    best: Node | None,
    known: NodeFacts | None,
    deal: Deal | None,
) -> tuple[str, tuple[str, ...]]:
    match sifted.rule:
        case Rule.NO_NODE:
            said = "it is pending: there is no virtual node at all; nothing is lent"
            return said, ("a binding and a policy that lends; see: kubeocean status",)
        case Rule.NOT_SELECTED:
            said = f"it is pending: its selectors match none of {_count(sifted)}"
            return said, ("another nodeSelector or node affinity in the pod",)
        case Rule.NOT_TOLERATED:
            taints = few(sorted(set(sifted.last.kept.values())))
            said = f"it is pending: no virtual node is tolerated: {taints}"
            return said, ("tolerations for these taints in the pod",)
        case Rule.WINDOW_CLOSED:
            return _closed(sifted, known, deal)
        case Rule.CLOSED_TO_PODS:
            why = few(sorted(set(sifted.last.kept.values())))
            said = f"it is pending: no virtual node that it could go to takes new pods: {why}"
            return said, ("see: kubeocean explain node NAME",)
        case Rule.TOO_LITTLE:
            assert best is not None
            said, remedies = _too_little(facts, best, deal)
            return said, (*remedies, *_openings(sifted))
        case _:
            return _fits(facts, sifted)


def _fits(facts: PodFacts, sifted: Sifted) -> tuple[str, tuple[str, ...]]:
    assert facts.pod is not None
    fits = few(node.name for node in sifted.candidates)
    scheduled = find_condition(facts.pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status == "True":
        said = f"it fits on {fits}, and waits for the scheduler of the computing cluster"
        return said, ("a scheduler that is at work",)
    said = f"it is pending: nothing of ours keeps it off {fits}, the scheduler has other reasons"
    return said, ("what the scheduler says: volumes, ports and other pods count there, too",)


def _closed(
    sifted: Sifted, known: NodeFacts | None, deal: Deal | None
) -> tuple[str, tuple[str, ...]]:
    terms = deal.terms if deal is not None else None
    if known is None or terms is None or deal is None or not isinstance(deal.decision, Lend):
        said = few(sorted(set(sifted.last.kept.values())))
        return f"it is pending: {said}", ("the next edge of the window",)
    window = window_text(terms, known.side.now)
    said = f"it is pending: the window of policy {deal.decision.policy.name} is {window}"
    return said, ("the next edge of the window; or other timeWindows in the policy",)


def _too_little(facts: PodFacts, best: Node, deal: Deal | None) -> tuple[str, tuple[str, ...]]:
    assert facts.pod is not None
    wanted = requests(facts.pod.raw)
    taken = facts.taken.get(best.name, ())
    free, has = free_on(best, taken), free_on(best, ())
    short = lacks(wanted, free)
    name = next((each for each in short if wanted[each] > has.get(each, ZERO)), short[0])
    said = (
        f"it is pending: it requests {name} {wanted[name]}, and no virtual node has more free"
        f" than {max(free.get(name, ZERO), ZERO)} ({best.name})"
    )
    remedies = ["smaller requests"]
    if deal is not None and deal.capacity is not None and name in deal.capacity.base:
        said += f"; that one offers {sentence(deal, name)}"
        assert isinstance(deal.decision, Lend)
        remedies.append(f"a higher limit in policy {deal.decision.policy.name}, or more nodes")
    else:
        said += f"; that one offers {has.get(name, ZERO)}"
    if free.get(name, ZERO) < has.get(name, ZERO):
        said += f", of which pods that are there take {has[name] - free[name]}"
        remedies.append("the end of pods that are there")
    return said, tuple(remedies)


def _openings(sifted: Sifted) -> tuple[str, ...]:
    """Nodes that were not even asked for what they have."""
    closed = next((each.kept for each in sifted.sieves if each.rule is Rule.WINDOW_CLOSED), {})
    shut = few(sorted(set(closed.values())))
    return (f"more nodes, at the next edge of a window: {shut}",) if closed else ()


def _reasons(facts: PodFacts, sifted: Sifted) -> list[str]:
    assert facts.pod is not None
    said = [f"it requests {amounts(requests(facts.pod.raw))}"]
    steps = "".join(f"; {_let_through(each)}" for each in sifted.sieves)
    said.append(f"{_count(sifted)}{steps}")
    scheduled = find_condition(facts.pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status != "True":
        said.append(f"the scheduler says: {scheduled.message or scheduled.reason}")
    return said


def _let_through(sieve: Sieve) -> str:
    number = len(sieve.through)
    label = _ONE.get(sieve.label, sieve.label) if number == 1 else sieve.label
    return f"{number} {label}"


def _count(sifted: Sifted) -> str:
    return counted(sifted.total, "virtual node")


def _kept(sifted: Sifted) -> tuple[str, ...]:
    """Of the last sieve; of others when that let some through."""
    if not sifted.sieves or sifted.rule is Rule.FITS:
        return ()
    kept = sifted.last.kept
    lines = [f"{name}: {why}" for name, why in sorted(kept.items())[:_SHOWN]]
    more = [f"and {len(kept) - _SHOWN} more"] if len(kept) > _SHOWN else []
    return (*lines, *more)


def _figures(sifted: Sifted, deal: Deal | None) -> tuple[Figure, ...]:
    return figures(deal) if deal is not None and sifted.rule is Rule.TOO_LITTLE else ()


def _policies(known: NodeFacts | None, deal: Deal | None) -> tuple[str, ...]:
    return policy_lines(known, deal) if known is not None and deal is not None else ()
