"""Bindings: whether one works, and if not, what stands in its way first.

Pure. The rules are asked in order, and the first one that has an answer decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kubeocean.api.binding import BindingPhase, ClusterBinding, problems
from kubeocean.api.conditions import DRAINED, READY
from kubeocean.api.problems import blocking, describe
from kubeocean.explaining.deal import own_policies, window_text
from kubeocean.explaining.facts import BindingFacts
from kubeocean.explaining.nodes import is_ready
from kubeocean.explaining.story import Rule, Section, Story
from kubeocean.explaining.wording import few
from kubeocean.installation.bindings import join_command
from kubeocean.leasing.report import counted
from kubeocean.manager.verdicts import rightful
from kubeocean.runtime.objects import find_condition
from kubeocean.syncer.bottomup.book import Entry

__all__ = ["explain_binding"]

_Answer: TypeAlias = tuple[Rule, str, tuple[str, ...], tuple[str, ...]]


def explain_binding(facts: BindingFacts) -> Story:
    """The page about a binding."""
    side = facts.side
    binding, about = side.binding, f"binding {side.name}"
    unread = (*side.unread, *facts.unread)
    if binding is None:
        return Story(about, Rule.NOT_FOUND, "there is no such binding", unread=unread)
    rules: tuple[Callable[[BindingFacts, ClusterBinding], _Answer | None], ...] = (
        _draining,
        _invalid,
        _duplicate,
        _unreachable,
        _powerless,
        _lends_nothing,
        _unfinished,
    )
    for rule in rules:
        if (answer := rule(facts, binding)) is not None:
            break
    else:
        answer = _works(facts)
    return Story(
        about,
        answer[0],
        answer[1],
        answer[2],
        sections=(
            Section("conditions", _conditions(binding)),
            Section("policies", _policies(facts)),
            Section("programs", tuple(f"{each.name}: {each.said}" for each in facts.rolls)),
            Section("worker", _worker(facts)),
        ),
        remedies=answer[3],
        unread=unread,
    )


def _draining(facts: BindingFacts, binding: ClusterBinding) -> _Answer | None:
    if not binding.deleting:
        return None
    drained = find_condition(binding.status.conditions, DRAINED)
    waits = drained.message if drained is not None else "nobody has said what is waited for"
    held = few(binding.metadata.finalizers or ()) or "nothing"
    said = f"it is being deleted since {binding.metadata.deletion_timestamp}: {waits}"
    reasons = [f"it is held by the finalizers {held}"]
    if facts.side.problem:
        reasons.append(f"its worker cannot be read: {facts.side.problem}")
    remedies = (f"kubeocean leave {binding.name} --force gives up what cannot be confirmed",)
    return Rule.DRAINING, said, tuple(reasons), remedies


def _invalid(facts: BindingFacts, binding: ClusterBinding) -> _Answer | None:
    wrong = blocking(problems(binding.spec))
    if not wrong:
        return None
    said = f"it is not well-formed: {describe(wrong)}"
    return Rule.INVALID, said, (), ("correct these fields",)


def _duplicate(facts: BindingFacts, binding: ClusterBinding) -> _Answer | None:
    holder = rightful(binding, facts.others)
    if holder.name == binding.name:
        return None
    said = (
        f"its clusterID {binding.spec.cluster_id} belongs to binding {holder.name}, the older one"
    )
    return Rule.DUPLICATE, said, (), ("delete this one, and bind it with another clusterID",)


def _unreachable(facts: BindingFacts, binding: ClusterBinding) -> _Answer | None:
    where = binding.spec.secret_ref
    if facts.secret:
        said = f"Secret {where.namespace}/{where.name} gives no way to its worker: {facts.secret}"
        return Rule.NO_CREDENTIAL, said, (), (join_command(binding, "--renew"),)
    if facts.side.problem:
        said = f"its worker does not answer: {facts.side.problem}"
        reasons = ("nothing is deleted meanwhile; its nodes get no heartbeats",)
        return Rule.UNREACHABLE, said, reasons, ("the worker's API server, or the way to it",)
    return None


def _powerless(facts: BindingFacts, binding: ClusterBinding) -> _Answer | None:
    if facts.missing:
        said = f"its credential lacks {counted(len(facts.missing), 'right')} in the worker"
        reasons = tuple(f"it may not {each}" for each in facts.missing[:20])
        return Rule.RIGHTS, said, reasons, (join_command(binding),)
    if facts.namespace is False:
        said = f"namespace {facts.side.mount} is not there in the worker: pods have no place"
        return Rule.NO_NAMESPACE, said, (), (f"make it, or {join_command(binding)}",)
    return None


def _lends_nothing(facts: BindingFacts, binding: ClusterBinding) -> _Answer | None:
    own = own_policies(facts.side)
    if not own:
        said = "it lends nothing: no policy of the worker names it"
        others = sorted({each.spec.cluster for each in facts.side.policies})
        reasons = (f"policies there name {few(others)}",) if others else ()
        return Rule.NO_POLICY, said, reasons, (f"a policy with spec.cluster: {binding.name}",)
    broken = [each for each in own if each.terms is None]
    if len(broken) < len(own):
        return None
    said = f"it lends nothing new: none of its policies is valid: {broken[0].problem}"
    return Rule.POLICY_INVALID, said, (), ("correct the policies; what runs stays meanwhile",)


def _unfinished(facts: BindingFacts, binding: ClusterBinding) -> _Answer | None:
    waits = [f"{each.name}: {each.said}" for each in facts.rolls if not each.done]
    ready = find_condition(binding.status.conditions, READY)
    if binding.status.phase != BindingPhase.READY:
        said = f"it is {binding.status.phase or 'new'}: "
        said += ready.message if ready is not None else "no manager has looked at it"
        return (
            Rule.UNFINISHED,
            said,
            tuple(waits),
            ("a manager at work; see its logs: deployment/kubeocean-manager in kubeocean-system",),
        )
    if waits:
        said = f"its programs are not all there: {'; '.join(waits)}"
        return Rule.UNFINISHED, said, (), ("see the pods of these Deployments",)
    return None


def _works(facts: BindingFacts) -> _Answer:
    ready = sum(is_ready(node) for node in facts.nodes)
    own = own_policies(facts.side)
    open_ = [each.policy.name for each in own if each.lends(facts.side.now)]
    lend = f"lent now by {few(open_)}" if open_ else "no window is open now"
    said = f"it works: {ready} of {counted(len(facts.nodes), 'virtual node')} Ready; {lend}"
    broken = tuple(f"policy {each.policy.name}: {each.problem}" for each in own if not each.terms)
    return Rule.WORKS, said, broken, ()


# What stands in all of them


def _conditions(binding: ClusterBinding) -> tuple[str, ...]:
    return tuple(
        f"{each.type} {each.status} since {each.last_transition_time} ({each.reason}):"
        f" {each.message}"
        for each in binding.status.conditions or ()
    )


def _policies(facts: BindingFacts) -> tuple[str, ...]:
    return tuple(_policy(each, facts) for each in own_policies(facts.side))


def _policy(entry: Entry, facts: BindingFacts) -> str:
    name, leased = entry.policy.name, entry.policy.status.leased_nodes
    if entry.terms is None:
        return f"{name}: invalid, and so changes nothing: {entry.problem}"
    window = window_text(entry.terms, facts.side.now)
    going = ", being deleted" if entry.policy.deleting else ""
    return f"{name}: {counted(leased, 'node')} lent{going}; its window is {window}"


def _worker(facts: BindingFacts) -> tuple[str, ...]:
    said = [f"Kubernetes {facts.version}"] if facts.version else []
    return (*said, f"pods run in namespace {facts.side.mount}")
