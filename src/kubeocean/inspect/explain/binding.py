"""Explains a binding: whether it works, and if not, the first reason.

Pure. The rules are applied in order; the first rule with an answer decides. If a rule needs a part
that could not be read, the answer is `NotRead`.
"""

from __future__ import annotations

from collections.abc import Callable

from kubeocean.api.bindings import BindingPhase, ClusterBinding, problems
from kubeocean.api.conditions import DRAINED, READY
from kubeocean.api.validation import blocking, describe
from kubeocean.inspect.explain.node import is_ready
from kubeocean.inspect.explain.node_decision import own_policies, window_text
from kubeocean.inspect.explain.report import Answer, Explanation, ExplanationRule, Section, not_read
from kubeocean.inspect.explain.snapshots import BindingDetails
from kubeocean.inspect.format import few
from kubeocean.inspect.policy_findings import policy_warnings
from kubeocean.inspect.snapshot import NotRead, WorkerSnapshot, WorkerState, known
from kubeocean.install.join import join_command
from kubeocean.leasing.cached_policy import CachedPolicy
from kubeocean.leasing.report import counted
from kubeocean.manager.status import oldest_claimant
from kubeocean.runtime.objects import find_condition

__all__ = ["explain_binding"]


def explain_binding(details: BindingDetails) -> Explanation:
    """Return the explanation of a binding."""
    about, unread = f"binding {details.binding.name}", details.unread
    worker = details.binding.present
    if worker is None:
        missing = not_read((details.binding.worker,))
        answer = missing or Answer(ExplanationRule.NOT_FOUND, "there is no such binding")
        return Explanation.of(about, answer, unread=unread)
    rules: tuple[Callable[[BindingDetails, WorkerSnapshot], Answer | None], ...] = (
        _draining,
        _invalid,
        _duplicate,
        _without_credential,
        _unreachable,
        _powerless,
        _unread_policies,
        _lends_nothing,
        _unfinished,
        _unread,
    )
    answers = (rule(details, worker) for rule in rules)
    return Explanation.of(
        about,
        next((each for each in answers if each is not None), None) or _works(details),
        sections=(
            Section("conditions", _conditions(worker.binding)),
            Section("policies", _policies(details)),
            Section(
                "programs",
                tuple(f"{each.name}: {each.message}" for each in known(details.rollouts, ())),
            ),
            Section("worker", _worker(details, worker)),
        ),
        unread=unread,
    )


def _draining(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    binding = worker.binding
    if not binding.deleting:
        return None
    drained = find_condition(binding.status.conditions, DRAINED)
    waits = drained.message if drained is not None else "the condition Drained is not reported yet"
    held = few(binding.metadata.finalizers or ()) or "nothing"
    verdict = f"it is being deleted since {binding.metadata.deletion_timestamp}: {waits}"
    reasons = [f"it is held by the finalizers {held}"]
    if details.binding.problem:
        reasons.append(f"its worker cannot be read: {details.binding.problem}")
    remedy = f"kubeocean leave {binding.name} --force deletes it without confirmation"
    return Answer(ExplanationRule.DRAINING, verdict, tuple(reasons), (remedy,))


def _invalid(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    wrong = blocking(problems(worker.binding.spec))
    if not wrong:
        return None
    verdict = f"its spec is not valid: {describe(wrong)}"
    return Answer(ExplanationRule.INVALID, verdict, remedies=("correct these fields",))


def _duplicate(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    binding = worker.binding
    holder = oldest_claimant(binding, known(details.others, ()))
    if holder.name == binding.name:
        return None
    cluster_id = binding.spec.cluster_id
    verdict = f"its clusterID {cluster_id} belongs to binding {holder.name}, the older one"
    remedy = "delete this one, and bind the worker with another clusterID"
    return Answer(ExplanationRule.DUPLICATE, verdict, remedies=(remedy,))


def _without_credential(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    binding, where = worker.binding, worker.binding.spec.secret_ref
    secret = f"Secret {where.namespace}/{where.name}"
    if worker.state in (WorkerState.NOT_ALLOWED, WorkerState.NOT_ASKED):
        forbidden = worker.state is WorkerState.NOT_ALLOWED
        return not_read((NotRead(secret, worker.message, forbidden),))
    if worker.state is not WorkerState.UNUSABLE:
        return None
    verdict = f"{secret} holds no usable credential: {worker.message}"
    return Answer(
        ExplanationRule.NO_CREDENTIAL, verdict, remedies=(join_command(binding, "--renew"),)
    )


def _unreachable(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    if not details.binding.problem:
        return None
    verdict = f"its worker does not answer: {details.binding.problem}"
    reasons = ("nothing is deleted meanwhile; its nodes get no heartbeats",)
    remedy = "the worker's API server, or the network to it"
    return Answer(ExplanationRule.UNREACHABLE, verdict, reasons, (remedy,))


def _powerless(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    if missing := known(worker.missing, ()):
        verdict = f"its credential lacks {counted(len(missing), 'right')} in the worker"
        reasons = tuple(f"it may not {each}" for each in missing[:20])
        return Answer(ExplanationRule.RIGHTS, verdict, reasons, (join_command(worker.binding),))
    if worker.namespace is False:
        mount = details.binding.mount
        verdict = f"namespace {mount} does not exist in the worker: pods cannot be created"
        remedy = f"create it, or {join_command(worker.binding)}"
        return Answer(ExplanationRule.NO_NAMESPACE, verdict, remedies=(remedy,))
    return None


def _unread_policies(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    return not_read((worker.policies, worker.ids))


def _lends_nothing(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    own = own_policies(details.binding)
    if not own:
        verdict = "it lends nothing: no policy of the worker names it"
        others = sorted({each.spec.cluster for each in known(worker.policies, ())})
        reasons = (f"its policies name {few(others)}",) if others else ()
        remedy = f"a policy with spec.cluster: {worker.name}"
        return Answer(ExplanationRule.NO_POLICY, verdict, reasons, (remedy,))
    invalid = [each for each in own if each.parsed is None]
    if len(invalid) < len(own):
        return None
    verdict = f"it lends nothing new: none of its policies is valid: {invalid[0].problem}"
    remedy = "correct the policies; pods that run stay meanwhile"
    return Answer(ExplanationRule.POLICY_INVALID, verdict, remedies=(remedy,))


def _unfinished(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    waits = [
        f"{each.name}: {each.message}" for each in known(details.rollouts, ()) if not each.done
    ]
    status, domain = worker.binding.status, details.binding.domain
    ready = find_condition(status.conditions, READY)
    if status.phase != BindingPhase.READY:
        message = ready.message if ready is not None else "no manager has reported on it"
        verdict = f"it is {status.phase or 'new'}: {message}"
        logs = f"deployment/{domain.manager} in {domain.system_namespace}"
        remedy = f"a manager at work; see its logs: {logs}"
        return Answer(ExplanationRule.UNFINISHED, verdict, tuple(waits), (remedy,))
    if waits:
        verdict = f"its programs are not all available: {'; '.join(waits)}"
        return Answer(
            ExplanationRule.UNFINISHED, verdict, remedies=("see the pods of these Deployments",)
        )
    return None


def _unread(details: BindingDetails, worker: WorkerSnapshot) -> Answer | None:
    parts = (worker.missing, worker.namespace, details.others, details.nodes, details.rollouts)
    return not_read(parts, "no problem was found, but not everything could be read")


def _works(details: BindingDetails) -> Answer:
    nodes = known(details.nodes, ())
    ready = sum(is_ready(node) for node in nodes)
    own = own_policies(details.binding)
    open_ = [each.policy.name for each in own if each.lends(details.binding.now)]
    lending = f"lent now by {few(open_)}" if open_ else "no window is open now"
    verdict = f"it works: {ready} of {counted(len(nodes), 'virtual node')} Ready; {lending}"
    invalid = (each for each in own if each.parsed is None)
    warnings = [warning for each in own for warning in policy_warnings(each.policy)]
    return Answer(
        ExplanationRule.WORKS,
        verdict,
        (*(f"policy {each.policy.name}: {each.problem}" for each in invalid), *map(str, warnings)),
        tuple(warning.remedy for warning in warnings),
    )


# Sections


def _conditions(binding: ClusterBinding) -> tuple[str, ...]:
    return tuple(
        f"{each.type} {each.status} since {each.last_transition_time} ({each.reason}):"
        f" {each.message}"
        for each in binding.status.conditions or ()
    )


def _policies(details: BindingDetails) -> tuple[str, ...]:
    return tuple(_policy(each, details) for each in own_policies(details.binding))


def _policy(entry: CachedPolicy, details: BindingDetails) -> str:
    name, leased = entry.policy.name, entry.policy.status.leased_nodes
    if entry.parsed is None:
        return f"{name}: invalid, and so changes nothing: {entry.problem}"
    window = window_text(entry.parsed, details.binding.now)
    deleting = ", being deleted" if entry.policy.deleting else ""
    return f"{name}: {counted(leased, 'node')} lent{deleting}; its window is {window}"


def _worker(details: BindingDetails, worker: WorkerSnapshot) -> tuple[str, ...]:
    version = known(worker.server.version, {}).get("gitVersion")
    lines = [f"Kubernetes {version}"] if version else []
    return (*lines, f"pods run in namespace {details.binding.mount}")
