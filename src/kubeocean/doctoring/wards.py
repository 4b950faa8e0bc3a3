"""Checks of one binding and its worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.api import conditions as said
from kubeocean.api import naming
from kubeocean.api.binding import BindingPhase, Privilege, problems
from kubeocean.api.ownership import Claim, claim_policy
from kubeocean.api.policy import ResourceLeasingPolicy
from kubeocean.api.policy import problems as policy_problems
from kubeocean.api.problems import describe
from kubeocean.doctoring.credentials import check_certificates, check_token
from kubeocean.doctoring.facts import Computing, Ward
from kubeocean.doctoring.findings import Finding, Severity, few
from kubeocean.doctoring.programs import says
from kubeocean.doctoring.servers import check_clock, check_definitions, check_version
from kubeocean.installation.bindings import join_command
from kubeocean.manager.verdicts import wrong_with
from kubeocean.runtime.objects import find_condition
from kubeocean.syncer.comparison import Problem

__all__ = ["CHECKS"]


def _check_binding(ward: Ward, above: Computing) -> Iterator[Finding]:
    """It is well-formed, nobody else's, and says that it works."""
    binding = ward.binding
    others = [each for each in above.bindings if each.name != binding.name]
    if wrong := wrong_with(binding, others):
        yield Finding("binding", Severity.ERROR, _name(ward), wrong, "correct these fields")
    for each in problems(binding.spec):
        if not each.blocks:
            yield Finding("binding", Severity.WARNING, _name(ward), str(each), "correct this field")
    if binding.deleting:
        drained = find_condition(binding.status.conditions, said.DRAINED)
        message = f"it is being deleted: {drained.message if drained else 'nothing is known yet'}"
        remedy = f"wait, or kubeocean leave {binding.name} --force"
        yield Finding("binding", Severity.WARNING, _name(ward), message, remedy)
    elif binding.status.phase != BindingPhase.READY and not wrong:
        ready = find_condition(binding.status.conditions, said.READY)
        message = ready.message if ready is not None else "no manager has looked at it"
        phase = binding.status.phase or "new"
        remedy = f"kubeocean explain binding {binding.name}"
        yield Finding("binding", Severity.ERROR, _name(ward), f"it is {phase}: {message}", remedy)


def _check_secret(ward: Ward, above: Computing) -> Iterator[Finding]:
    """There is a Secret, and a kubeconfig in it that can be used."""
    if ward.access is None:
        remedy = f"made again by: {join_command(ward.binding, '--renew')}"
        yield Finding("secret", Severity.ERROR, _name(ward), ward.problem, remedy)


def _check_reach(ward: Ward, above: Computing) -> Iterator[Finding]:
    """The worker answers us; and the syncer, as far as that says."""
    if ward.access is not None and ward.problem:
        remedy = "see whether the worker's API server runs, and can be reached from here"
        yield Finding("worker", Severity.ERROR, _name(ward), ward.problem, remedy)
    connected = find_condition(ward.binding.status.conditions, said.CONNECTED)
    if connected is not None and connected.status == "False":
        remedy = "see whether it can be reached from where the syncer runs"
        yield Finding("worker", Severity.ERROR, _name(ward), connected.message, remedy)


def _check_worker(ward: Ward, above: Computing) -> Iterator[Finding]:
    """Its version, its clock, its definitions."""
    about = f"worker {ward.binding.name}"
    remedy = f"installed by: {join_command(ward.binding)}"
    yield from check_version("worker version", about, ward.server)
    yield from check_clock("worker clock", about, ward.server)
    yield from check_definitions("worker definitions", about, ward.server, remedy)


def _check_namespace(ward: Ward, above: Computing) -> Iterator[Finding]:
    if ward.namespace is False:
        name = ward.binding.spec.mount_namespace
        message = f"namespace {name} is not there in the worker: pods have no place"
        remedy = f"kubectl create namespace {name} in the worker, or {join_command(ward.binding)}"
        yield Finding("mount namespace", Severity.ERROR, _name(ward), message, remedy)


def _check_rights(ward: Ward, above: Computing) -> Iterator[Finding]:
    """Granted against declared: not too few, and not too many."""
    if ward.missing:
        message = f"its credential may not {few(ward.missing)}"
        remedy = f"what is declared is granted by: {join_command(ward.binding)}"
        yield Finding("rights", Severity.ERROR, _name(ward), message, remedy)
    if ward.excess:
        message = f"its credential may {few(ward.excess)}, which nobody needs"
        remedy = "bind the shipped role only; see installation of the worker"
        yield Finding("excess rights", Severity.ERROR, _name(ward), message, remedy)


def _check_credential(ward: Ward, above: Computing) -> Iterator[Finding]:
    """Certificates and tokens hold, and for a while."""
    if ward.access is None:
        return
    remedy = join_command(ward.binding, "--renew")
    for what, pem in (("client certificate", ward.access.certificate), ("CA", ward.access.ca)):
        yield from check_certificates(what, _name(ward), pem or b"", above.now, remedy)
    token = ward.access.token.reveal() if ward.access.token is not None else ""
    yield from check_token(_name(ward), token, above.now, remedy)


def _check_kubelets(ward: Ward, above: Computing) -> Iterator[Finding]:
    """What kubelets are shown is worth no more than their metrics."""
    name = naming.proxier_deployment(ward.binding.spec.cluster_id, above.domain)
    silent = says((above.deployments or {}).get(name), "--metrics-enabled", "false")
    if ward.exposed and not silent:
        message = "kubelets are shown its own token when they are asked for metrics"
        message += ", so whoever is root on a node has all its rights"
        remedy = f"an account for metrics is made by: {join_command(ward.binding)}"
        yield Finding("kubelets", Severity.WARNING, _name(ward), message, remedy)


def _check_tls(ward: Ward, above: Computing) -> Iterator[Finding]:
    """The proxier's certificate holds, and for a while."""
    remedy = "the proxier renews its own; restart it, or provide another"
    for secret, pem in ward.tls.items():
        about = f"Secret {secret}"
        yield from check_certificates("proxier certificate", about, pem, above.now, remedy)


def _check_policies(ward: Ward, above: Computing) -> Iterator[Finding]:
    """Policies make sense, name a binding that there is, and one of them lends."""
    if ward.policies is None:
        return
    known = {each.name for each in above.bindings}
    own = 0
    for policy in ward.policies:
        about = f"policy {policy.name} of worker {ward.binding.name}"
        elsewhere = claim_policy(policy, ids=ward.ids, domain=above.domain) is Claim.FOREIGN
        if elsewhere:
            continue
        yield from _held(policy, about, known, above)
        if policy.spec.cluster not in known:
            message = f"spec.cluster: there is no binding {policy.spec.cluster!r} here"
            remedy = "name a binding; or it is another computing cluster's, and all is well"
            yield Finding("policies", Severity.WARNING, about, message, remedy)
        if policy.spec.cluster != ward.binding.name:
            continue
        own += 1
        wrong = policy_problems(policy.spec)
        if wrong:
            blocks = any(each.blocks for each in wrong)
            severity = Severity.ERROR if blocks else Severity.WARNING
            yield Finding("policies", severity, about, describe(wrong), "correct these fields")
    if not own and not ward.binding.deleting:
        message = "no policy of the worker names it: nothing is lent"
        remedy = f"a policy with spec.cluster: {ward.binding.name}"
        yield Finding("policies", Severity.WARNING, _name(ward), message, remedy)


def _held(
    policy: ResourceLeasingPolicy, about: str, known: set[str], above: Computing
) -> Iterator[Finding]:
    """A policy that lent to a binding that is gone, and that still holds it."""
    holder = policy.annotations.get(above.domain.cluster_binding, "")
    ours = above.domain.finalizer_policy
    if holder and holder not in known and ours in (policy.metadata.finalizers or ()):
        message = f"finalizer {ours} is of binding {holder}, which does not exist"
        remedy = "remove that finalizer; else nobody can delete the policy"
        yield Finding("finalizers", Severity.ERROR, about, message, remedy)


def _check_orphans(ward: Ward, above: Computing) -> Iterator[Finding]:
    """Nothing on one side is left over of what is gone from the other."""
    remedy = f"kubeocean repair --cluster-binding-name {ward.binding.name}"
    for each in ward.differences:
        proven = each.problem is not Problem.UNPROVEN
        severity = Severity.ERROR if proven else Severity.WARNING
        yield Finding("orphans", severity, f"{_name(ward)}, {each.subject}", each.message, remedy)


def _check_privileges(ward: Ward, above: Computing) -> Iterator[Finding]:
    """Whether pods of others may reach into the worker's machines."""
    denied = set(ward.binding.spec.pod_privileges.denied)
    fields = ward.binding.spec.pod_privileges.__struct_encode_fields__
    allowed = [each for each in fields if each not in denied]
    if allowed:
        message = f"pods may use {', '.join(allowed)} on the worker's machines"
        settings = ", ".join(f"{each}: {Privilege.DENY}" for each in allowed)
        remedy = f"spec.podPrivileges: {{{settings}}}, but for what pods need"
        yield Finding("privileges", Severity.WARNING, _name(ward), message, remedy)


def _name(ward: Ward) -> str:
    return f"binding {ward.binding.name}"


CHECKS: Final = {
    "binding": _check_binding,
    "secret": _check_secret,
    "worker": _check_reach,
    "worker cluster": _check_worker,
    "mount namespace": _check_namespace,
    "rights": _check_rights,
    "credential": _check_credential,
    "kubelets": _check_kubelets,
    "proxier certificate": _check_tls,
    "policies": _check_policies,
    "orphans": _check_orphans,
    "privileges": _check_privileges,
}
