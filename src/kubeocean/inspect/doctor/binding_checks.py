"""Checks of one binding and its worker cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from kubeocean.api import conditions, naming
from kubeocean.api.bindings import BindingPhase, PodSecurityLevel, Privilege, problems
from kubeocean.api.group import FLEET_MEMBER
from kubeocean.api.ownership import Ownership, policy_ownership
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.inspect.doctor.computing_checks import has_flag
from kubeocean.inspect.doctor.enforcement import EnforcedLimit
from kubeocean.inspect.doctor.left_over import gone_holder
from kubeocean.inspect.doctor.server_checks import check_clock, check_definitions, check_version
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.inspect.format import few
from kubeocean.inspect.policy_findings import policy_findings
from kubeocean.inspect.snapshot import (
    ADMINISTRATOR,
    NotRead,
    Snapshot,
    WorkerSnapshot,
    WorkerState,
    known,
    require,
)
from kubeocean.install.credentials import due, read_token
from kubeocean.install.join import join_command
from kubeocean.manager.status import problems_of_binding
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import find_condition
from kubeocean.syncer.cleanup.diff import DifferenceKind

__all__ = ["CHECKS"]

_SOON: Final = timedelta(days=30)
_NO_ANSWER: Final = (WorkerState.SILENT, WorkerState.REFUSED)


# The binding, and the way to its worker


def _check_binding(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the spec is valid, the clusterID is unique, and the phase is Ready."""
    binding, about = worker.binding, _about(worker)
    others = [each for each in require(snapshot.bindings) if each.name != binding.name]
    if wrong := problems_of_binding(binding, others):
        yield Finding(Severity.ERROR, about, wrong, "correct these fields", check="binding")
    for each in problems(binding.spec):
        if not each.blocks:
            yield Finding(Severity.WARNING, about, str(each), "correct this field", check="binding")
    if binding.deleting:
        drained = find_condition(binding.status.conditions, conditions.DRAINED)
        waits = drained.message if drained else "the condition Drained is not reported yet"
        remedy = f"wait, or kubeocean leave {binding.name} --force"
        message = f"it is being deleted: {waits}"
        yield Finding(Severity.WARNING, about, message, remedy, check="binding")
    elif binding.status.phase != BindingPhase.READY and not wrong:
        ready = find_condition(binding.status.conditions, conditions.READY)
        message = ready.message if ready is not None else "no manager has reported on it"
        message = f"it is {binding.status.phase or 'new'}: {message}"
        remedy = f"kubeocean explain binding {binding.name}"
        yield Finding(Severity.ERROR, about, message, remedy, check="binding")


def _check_secret(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the binding's Secret exists, and holds a valid kubeconfig."""
    if worker.state is WorkerState.UNUSABLE:
        renew = join_command(worker.binding, "--renew", domain=snapshot.domain)
        remedy = f"created again by: {renew}"
        yield Finding(Severity.ERROR, _about(worker), worker.message, remedy, check="secret")
    else:
        require(worker.access)


def _check_reach(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the worker answers this machine, and that it answers its syncer."""
    if worker.state in _NO_ANSWER:
        remedy = "check that the worker's API server runs, and can be reached from this machine"
        yield Finding(Severity.ERROR, _about(worker), worker.message, remedy, check="worker")
    connected = find_condition(worker.binding.status.conditions, conditions.CONNECTED)
    if connected is not None and connected.status == "False":
        remedy = "check that the worker can be reached from the node of the syncer's pod"
        yield Finding(Severity.ERROR, _about(worker), connected.message, remedy, check="worker")
    require(worker.access)


def _check_worker(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check the worker's Kubernetes version, clock and CustomResourceDefinitions."""
    about = f"worker {worker.name}"
    remedy = f"installed by: {join_command(worker.binding, domain=snapshot.domain)}"
    yield from check_version("worker version", about, worker.server)
    yield from check_clock("worker clock", about, worker.server)
    if not isinstance(worker.server.definitions, NotRead):  # credentials need not read them
        yield from check_definitions("worker definitions", about, worker.server, remedy)


def _check_namespace(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the mount namespace exists."""
    if not require(worker.namespace):
        name = worker.binding.spec.mount_namespace
        message = f"namespace {name} does not exist in the worker: pods cannot be created"
        join = join_command(worker.binding, domain=snapshot.domain)
        remedy = f"kubectl create namespace {name} in the worker, or {join}"
        yield Finding(Severity.ERROR, _about(worker), message, remedy, check="mount namespace")


# The credential


def _check_rights(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the worker's credential has the declared rights, and no dangerous ones."""
    if missing := require(worker.missing):
        message = f"its credential may not {few(missing, separator='; ')}"
        join = join_command(worker.binding, domain=snapshot.domain)
        remedy = f"grant the declared rights with: {join}"
        yield Finding(Severity.ERROR, _about(worker), message, remedy, check="rights")
    excess = require(worker.excess)
    # The syncer of a member without an agent applies objects of any kind.
    is_member = worker.binding.annotations.get(snapshot.domain.fleet) == FLEET_MEMBER
    if excess and (not is_member or ADMINISTRATOR in excess):
        message = f"its credential may {few(excess, separator='; ')}, which it does not need"
        remedy = "bind the shipped role only; see installation of the worker"
        yield Finding(Severity.ERROR, _about(worker), message, remedy, check="excess rights")


def _check_credential(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that certificates are verified, and that no certificate or token expires soon."""
    access, about = require(worker.access), _about(worker)
    remedy = join_command(worker.binding, "--renew")
    if access.insecure:
        message = "its kubeconfig has insecure-skip-tls-verify: an attacker on the network between"
        message += " the clusters can read the credential and all Secrets of pods"
        pinned = "put the worker's CA into the kubeconfig (certificate-authority-data)"
        yield Finding(Severity.ERROR, about, message, pinned, check="TLS")
    for check, pem in (("client certificate", access.certificate), ("CA", access.ca)):
        yield from _check_certificates(check, about, pem or b"", snapshot.at, remedy)
    token = access.token.reveal() if access.token is not None else ""
    yield from _check_token(about, token, snapshot.at, remedy)


def _check_enforcement(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the worker itself enforces the limits of its lending."""
    mount = worker.binding.spec.mount_namespace or snapshot.domain.worker_namespace
    messages = {
        EnforcedLimit.ADMISSION: "no admission policy of the worker limits its credential, which"
        " may create pods on any node and with any priority class",
        EnforcedLimit.POD_SECURITY: f"the worker lets it create privileged pods: namespace {mount}"
        " has no PodSecurity level, or level privileged",
        EnforcedLimit.EGRESS: f"namespace {mount} of the worker has no NetworkPolicy"
        f" {snapshot.domain.egress_policy}: pods may reach metadata addresses of the nodes"
        " and the worker's API server",
    }
    remedy = f"the owner sets it up by: {join_command(worker.binding)}"
    for limit in require(worker.unenforced):
        about, message = _about(worker), messages[EnforcedLimit(limit)]
        yield Finding(Severity.WARNING, about, message, remedy, check="enforcement")


def _check_kubelets(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the proxier sends kubelets no more than a token for metrics."""
    if not require(worker.exposed):
        return
    name = naming.proxier_deployment(worker.binding.spec.cluster_id, snapshot.domain)
    if not has_flag(require(snapshot.deployments).get(name), "--metrics-enabled", "false"):
        message = "the proxier sends the binding's own token to kubelets for reading metrics"
        message += ", so root on a node has all rights of that token"
        remedy = f"an account for metrics is created by: {join_command(worker.binding)}"
        yield Finding(Severity.WARNING, _about(worker), message, remedy, check="kubelets")


def _check_tls(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the proxier's certificate is valid, and does not expire soon."""
    remedy = "the proxier renews its own; restart it, or provide another"
    for secret, pem in require(worker.tls).items():
        about = f"Secret {secret}"
        yield from _check_certificates("proxier certificate", about, pem, snapshot.at, remedy)


def _check_certificates(
    check: str, about: str, pem: bytes, now: datetime, remedy: str
) -> Iterator[Finding]:
    """Check that a bundle of certificates is valid.

    The last certificate to expire counts: while an authority changes, a bundle has both.
    """
    if not pem:
        return
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        message = f"it cannot be parsed: {error}"
        yield Finding(Severity.ERROR, about, message, remedy, check=check)
        return
    begins = min(each.not_valid_before_utc for each in certificates)
    ends = max(each.not_valid_after_utc for each in certificates)
    if now < begins:
        message = f"it is not valid before {text_of(begins)}"
        yield Finding(Severity.ERROR, about, message, remedy, check=check)
    yield from _check_end(check, about, ends, now, remedy)


def _check_token(about: str, token: str, now: datetime, remedy: str) -> Iterator[Finding]:
    """Check that a token is valid, and not in the last third of its life."""
    if not token:
        return
    validity = read_token(token)
    if validity is None:
        message = (
            "it does not state its expiry; it never expires, or is not a service account token"
        )
        yield Finding(Severity.WARNING, about, message, remedy, check="token")
    elif now >= validity.ends:
        yield from _check_end("token", about, validity.ends, now, remedy)
    elif due(validity.begins, validity.ends, now):
        message = f"it expires at {text_of(validity.ends)}; renew it"
        yield Finding(Severity.WARNING, about, message, remedy, check="token")


def _check_end(
    check: str, about: str, ends: datetime, now: datetime, remedy: str
) -> Iterator[Finding]:
    if now >= ends:
        message = f"it expired at {text_of(ends)}"
        yield Finding(Severity.ERROR, about, message, remedy, check=check)
    elif now >= ends - _SOON:
        message = f"it expires at {text_of(ends)}, in {(ends - now).days} days"
        yield Finding(Severity.WARNING, about, message, remedy, check=check)


# Policies, orphans, privileges


def _check_policies(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that policies are valid and name existing bindings, and that one names this binding."""
    names = {each.name for each in require(snapshot.bindings)}
    policies, ids = require(worker.policies), require(worker.ids)
    own = 0
    for policy in policies:
        about = f"policy {policy.name} of worker {worker.name}"
        if policy_ownership(policy, ids=ids, domain=snapshot.domain) is Ownership.FOREIGN:
            continue
        if policy.uid in known(worker.left_over, frozenset[str]()):
            yield from _check_holder(policy, about, names, snapshot)
        if policy.spec.cluster not in names:
            message = f"spec.cluster: there is no binding {policy.spec.cluster!r} here"
            remedy = "name a binding, unless the policy is for another computing cluster"
            yield Finding(Severity.WARNING, about, message, remedy, check="policies")
        if policy.spec.cluster != worker.name:
            continue
        own += 1
        yield from policy_findings(policy, about, check="policies")
    if not own and not worker.binding.deleting:
        message = "no policy of the worker names it: nothing is lent"
        remedy = f"a policy with spec.cluster: {worker.name}"
        yield Finding(Severity.WARNING, _about(worker), message, remedy, check="policies")
    require(worker.left_over)


def _check_holder(
    policy: ResourceLeasingPolicy, about: str, names: set[str], snapshot: Snapshot
) -> Iterator[Finding]:
    """Check that no policy has Kubeocean's finalizer for a binding that does not exist."""
    if holder := gone_holder(policy, names, snapshot.domain):
        finalizer = snapshot.domain.finalizer_policy
        message = f"finalizer {finalizer} is of binding {holder}, which does not exist"
        remedy = "remove that finalizer; the policy cannot be deleted otherwise"
        yield Finding(Severity.ERROR, about, message, remedy, check="finalizers")


def _check_orphans(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that no object is left in one cluster whose counterpart in the other was deleted."""
    for each in require(worker.differences):
        unclear = each.problem in (DifferenceKind.UNPROVEN, DifferenceKind.UNMAPPED)
        severity = Severity.WARNING if unclear else Severity.ERROR
        remedy = f"kubeocean repair --cluster-binding-name {worker.name}"
        if each.problem is DifferenceKind.UNPROVEN:
            remedy = "find its creator; delete it in the worker if nothing uses it"
        about = f"{_about(worker)}, {each.subject}"
        yield Finding(severity, about, each.message, remedy, check="orphans")


def _check_privileges(worker: WorkerSnapshot, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that neither the binding nor the worker gives pods access to the worker's machines."""
    privileges = worker.binding.spec.pod_privileges
    denied = set(privileges.denied)
    allowed = [each for each, _ in privileges.settings if each not in denied]
    if allowed and not _refuses_privileges(worker):
        mount = worker.binding.spec.mount_namespace or snapshot.domain.worker_namespace
        message = f"pods may use {', '.join(allowed)} on the worker's machines: PodSecurity of"
        message += f" namespace {mount} of the worker does not refuse them either"
        settings = ", ".join(f"{each}: {Privilege.DENY}" for each in allowed)
        remedy = f"spec.podPrivileges: {{{settings}}}, except those that pods need"
        yield Finding(Severity.WARNING, _about(worker), message, remedy, check="privileges")


def _refuses_privileges(worker: WorkerSnapshot) -> bool:
    """Whether PodSecurity of the mount namespace refuses pods with any of the five privileges.

    A label has no effect where the API server does not enforce PodSecurity.

    :raises MissingPart: the namespace was not read.
    """
    level = require(worker.pod_security)
    ignored = EnforcedLimit.POD_SECURITY in known(worker.unenforced, ())
    return level not in ("", PodSecurityLevel.PRIVILEGED) and not ignored


def _about(worker: WorkerSnapshot) -> str:
    return f"binding {worker.name}"


CHECKS: Final = {
    "binding": _check_binding,
    "secret": _check_secret,
    "worker": _check_reach,
    "worker cluster": _check_worker,
    "mount namespace": _check_namespace,
    "rights": _check_rights,
    "credential": _check_credential,
    "enforcement": _check_enforcement,
    "kubelets": _check_kubelets,
    "proxier certificate": _check_tls,
    "policies": _check_policies,
    "orphans": _check_orphans,
    "privileges": _check_privileges,
}
