"""Checks of the computing cluster: its API server, our programs, virtual nodes and finalizers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api import naming
from kubeocean.api.conditions import READY
from kubeocean.api.group import DNS_SERVICE, SERVER_SERVICE
from kubeocean.inspect.doctor.left_over import gone_finalizers, lost_nodes
from kubeocean.inspect.doctor.server_checks import check_clock, check_definitions, check_version
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.inspect.format import few
from kubeocean.inspect.snapshot import Snapshot, known, require
from kubeocean.install.wait import rollout
from kubeocean.leasing.report import counted
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.kinds import SECRETS, Deployment, Lease
from kubeocean.runtime.objects import Json, Untyped, find_condition

__all__ = ["CHECKS", "has_flag"]

_COMPUTING: Final = "computing cluster"
_FLAGS: Final = {
    str(SERVER_SERVICE): "--kubernetes-service-address",
    str(DNS_SERVICE): "--dns-service-address",
}
_LONG: Final = timedelta(seconds=60)  # within which a program becomes ready
_RECENT: Final = timedelta(minutes=15)
_STARTING: Final = ("ContainerCreating", "PodInitializing", "")


# The API server


def _check_computing_definitions(snapshot: Snapshot) -> Iterator[Finding]:
    if _is_empty(snapshot):
        missing = next(iter(require(snapshot.server.definitions)))
        message = f"Kubeocean is not installed here: there is no CustomResourceDefinition {missing}"
        remedy = "kubeocean install, then kubeocean join for each worker"
        yield Finding(Severity.ERROR, _COMPUTING, message, remedy, check="definitions")
    else:
        yield from check_definitions(
            "definitions", _COMPUTING, snapshot.server, "kubeocean install"
        )


def _is_empty(snapshot: Snapshot) -> bool:
    """Whether Kubeocean was never installed in the cluster, so that nothing else is missing."""
    definitions = known(snapshot.server.definitions, {})
    absent = bool(definitions) and all(each is None for each in definitions.values())
    return absent and snapshot.domain.manager not in known(snapshot.deployments, {})


def _check_computing_version(snapshot: Snapshot) -> Iterator[Finding]:
    yield from check_version("version", _COMPUTING, snapshot.server)


def _check_computing_clock(snapshot: Snapshot) -> Iterator[Finding]:
    yield from check_clock("clock", _COMPUTING, snapshot.server)


# Manager and syncers


def _check_manager(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that a manager leads, and that all of its replicas are available."""
    domain = snapshot.domain
    deployments, elections = require(snapshot.deployments), require(snapshot.elections)
    alone = has_flag(deployments.get(domain.manager), "--leader-elect", "false")
    lease = elections.get(naming.manager_election(domain))
    if not alone and not _is_empty(snapshot) and not _is_fresh(lease, snapshot):
        since = lease.spec.renew_time if lease is not None else None
        message = f"none has led since {since}" if since else "none has ever led"
        where = f"{domain.system_namespace}/{domain.manager}"
        exists = domain.manager in deployments
        remedy = "kubeocean install"
        if exists:
            remedy = f"see the pods of Deployment {where}{_in_management(snapshot)}"
        yield Finding(Severity.ERROR, domain.manager, message, remedy, check="manager")
    yield from _check_rollout("manager", snapshot, domain.manager)


def _check_syncers(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each binding has a syncer that leads."""
    require(snapshot.bindings)
    elections, domain = require(snapshot.elections), snapshot.domain
    for binding in snapshot.chosen:
        if binding.deleting:
            continue
        names = (
            naming.syncer_deployment(binding.spec.cluster_id, domain),
            naming.syncer_election(binding.name, domain),
        )
        led = any(_is_fresh(elections.get(name), snapshot) for name in names)
        # A syncer with another election, or without one, shows in the heartbeats of its nodes.
        if not led and not _has_heartbeat(snapshot, binding.name):
            remedy = f"see the pods of Deployment {domain.system_namespace}/{names[0]}"
            remedy += _in_management(snapshot)
            message = "no syncer leads: nothing is lent, followed or reclaimed"
            yield Finding(
                Severity.ERROR, f"binding {binding.name}", message, remedy, check="syncer"
            )
        for name in (names[0], naming.proxier_deployment(binding.spec.cluster_id, domain)):
            yield from _check_rollout("syncer", snapshot, name)


def _has_heartbeat(snapshot: Snapshot, binding: str) -> bool:
    label, key = naming.label_value(binding), snapshot.domain.cluster_binding
    own = (node.name for node in require(snapshot.nodes) if node.labels.get(key) == label)
    heartbeats = require(snapshot.heartbeats)
    return any(_is_fresh(heartbeats.get(name), snapshot) for name in own)


def _is_fresh(lease: Lease | None, snapshot: Snapshot) -> bool:
    if lease is None or not lease.spec.renew_time or not lease.spec.holder_identity:
        return False
    age = snapshot.at - instant_of(lease.spec.renew_time)
    return age.total_seconds() <= 2 * (lease.spec.lease_duration_seconds or 0)


def _in_management(snapshot: Snapshot) -> str:
    """Return the end of a remedy about our programs that names the cluster in which they run."""
    return " in the management cluster" if snapshot.management else ""


def _check_rollout(check: str, snapshot: Snapshot, name: str) -> Iterator[Finding]:
    """Check that all replicas of a Deployment are available; a program may run without one."""
    deployment = require(snapshot.deployments).get(name)
    if deployment is None:
        return
    state = rollout(deployment.content())
    if not state.done:
        remedy = f"kubectl -n {snapshot.domain.system_namespace} describe deployment {name}"
        remedy += _in_management(snapshot)
        yield Finding(Severity.WARNING, f"Deployment {name}", state.message, remedy, check=check)


def has_flag(deployment: Deployment | None, flag: str, value: str = "") -> bool:
    """Whether the Deployment of a program sets a flag, and to `value` if one is given."""
    if deployment is None:
        return False
    containers = deployment.content()["spec"]["template"]["spec"].get("containers") or []
    arguments = [each.partition("=") for one in containers for each in one.get("args") or ()]
    return any(name == flag and value in ("", given) for name, _, given in arguments)


# Accounts and pods of our programs


def _check_accounts(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that our service accounts have the declared rights in the computing cluster."""
    of_bindings = {
        name(each.spec.cluster_id, snapshot.domain)
        for each in snapshot.chosen
        for name in (naming.syncer_deployment, naming.proxier_deployment)
    }
    for name, lacks in require(snapshot.accounts).items():
        about = f"ServiceAccount {snapshot.domain.system_namespace}/{name}"
        if lacks is None:
            message = "it does not exist: its programs cannot start"
        elif lacks:
            message = f"it may not {few(lacks, separator='; ')}: its programs cannot work"
        else:
            continue
        remedy = "kubeocean install grants the declared rights"
        if name in of_bindings:
            remedy += "; the manager binds the account to its roles, and its log shows why not"
        yield Finding(Severity.ERROR, about, message, remedy, check="accounts")


def _check_pods(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that pods of our programs are scheduled, started, running and ready."""
    chosen = {naming.label_value(each.name) for each in snapshot.chosen}
    namespace = snapshot.domain.system_namespace
    for pod in require(snapshot.program_pods):
        meta = pod["metadata"]
        binding = (meta.get("labels") or {}).get(snapshot.domain.cluster_binding, "")
        if snapshot.only and binding and binding not in chosen:
            continue
        message, ended = _pod_trouble(pod, snapshot.at)
        if message:
            command = "logs" if ended else "describe pod"
            remedy = f"kubectl -n {namespace} {command} {meta['name']}"
            remedy += (" --previous" if ended else "") + _in_management(snapshot)
            about = f"pod {namespace}/{meta['name']}"
            yield Finding(Severity.ERROR, about, message, remedy, check="pods")


def _pod_trouble(pod: Json, now: datetime) -> tuple[str, bool]:
    """Return why a pod does not serve, and whether its program ended; empty if it serves."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return "", False
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        why = scheduled.get("message") or scheduled.get("reason") or "the scheduler gives no reason"
        return f"no node takes it: {why}", False
    for container in status.get("containerStatuses") or ():
        if trouble := _container_trouble(container, now):
            return trouble
    if status.get("phase") == "Failed":
        return f"it failed: {status.get('message') or status.get('reason') or 'no reason'}", True
    ready = conditions.get("Ready") or {}
    since = instant_of(ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"))
    if ready.get("status") != "True" and since is not None and now - since >= _LONG:
        why = ready.get("message") or ready.get("reason") or "its condition Ready has no message"
        return f"it has not been ready for {(now - since).total_seconds():.0f} s: {why}", False
    return "", False


def _container_trouble(container: Json, now: datetime) -> tuple[str, bool] | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, restarts = waiting.get("reason", ""), container.get("restartCount", 0)
    last = (container.get("lastState") or {}).get("terminated") or {}
    ended = instant_of(last.get("finishedAt"))
    lately = ended is not None and now - ended < _RECENT
    if reason == "CrashLoopBackOff" or (restarts > 1 and lately and last.get("exitCode")):
        code = f"exit code {last.get('exitCode', 'unknown')}"
        why = f", {last['message'].strip()}" if last.get("message") else ""
        return f"its program keeps ending: {code}, {counted(restarts, 'restart')}{why}", True
    if reason not in _STARTING:
        return f"it cannot start: {reason} {waiting.get('message', '')}".strip(), False
    return None


# Services


def _check_services(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the addresses of API server and DNS that pods in workers get are known."""
    require(snapshot.bindings)
    if not snapshot.chosen:
        return
    for name, service in require(snapshot.services).items():
        flag = _FLAGS[name]
        if _address(service) or _all_have_flag(snapshot, flag):
            continue
        why = "does not exist" if service is None else "has no address of a load balancer"
        message = f"it {why}, so pods in workers get no address for it"
        remedy = f"a Service {name} of type LoadBalancer, or {flag} for the syncers"
        severity = Severity.ERROR if _syncers(snapshot) else Severity.WARNING
        yield Finding(severity, f"Service {name}", message, remedy, check="services")


def _address(service: Json | None) -> str:
    status = ((service or {}).get("status") or {}).get("loadBalancer") or {}
    ingress = status.get("ingress") or [{}]
    return str(ingress[0].get("ip") or ingress[0].get("hostname") or "")


def _syncers(snapshot: Snapshot) -> list[Deployment]:
    names = [naming.syncer_deployment(b.spec.cluster_id, snapshot.domain) for b in snapshot.chosen]
    deployments = require(snapshot.deployments)
    return [deployments[name] for name in names if name in deployments]


def _all_have_flag(snapshot: Snapshot, flag: str) -> bool:
    syncers = _syncers(snapshot)
    return bool(syncers) and all(has_flag(each, flag) for each in syncers)


# Virtual nodes and finalizers


def _check_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that virtual nodes have a binding and a heartbeat, and are Ready."""
    domain = snapshot.domain
    nodes, confirmed = require(snapshot.nodes), known(snapshot.left_over, frozenset[str]())
    for node in lost_nodes(nodes, require(snapshot.bindings), domain):
        if node.uid in confirmed:
            name = node.labels.get(domain.cluster_binding, "(none)")
            message = f"it is left over: its binding {name} does not exist"
            remedy = "remove its finalizers, and delete it"
            yield Finding(Severity.ERROR, f"node {node.name}", message, remedy, check="nodes")
    chosen = {naming.label_value(each.name) for each in snapshot.chosen}
    heartbeats = known(snapshot.heartbeats, None)
    for node in nodes:
        about, remedy = f"node {node.name}", f"kubeocean explain node {node.name}"
        if node.labels.get(domain.cluster_binding, "") not in chosen:
            continue
        if heartbeats is not None and not _is_fresh(heartbeats.get(node.name), snapshot):
            lease = heartbeats.get(node.name)
            since = lease.spec.renew_time if lease is not None else None
            message = f"no heartbeat since {since}" if since else "it never had a heartbeat"
            yield Finding(Severity.ERROR, about, message, remedy, check="nodes")
            continue
        ready = find_condition(node.status.conditions, READY)
        if ready is not None and ready.status != "True":
            message = f"it is not Ready: {ready.reason or ready.status} {ready.message}".strip()
            yield Finding(Severity.WARNING, about, message, remedy, check="nodes")
    require(snapshot.heartbeats)
    require(snapshot.left_over)


def _check_finalizers(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that no object has a finalizer of a binding that does not exist."""
    bindings, confirmed = require(snapshot.bindings), require(snapshot.left_over)
    for kind, objects in snapshot.marked.items():
        for obj in known(objects, ()):
            gone = gone_finalizers(obj, bindings, snapshot.domain)
            if gone and obj.uid in confirmed:
                message = f"finalizer {gone[0]} is of a binding that does not exist"
                remedy = "remove that finalizer; the object cannot be deleted otherwise"
                about = f"{kind} {obj.key}"
                yield Finding(Severity.ERROR, about, message, remedy, check="finalizers")
            elif kind == SECRETS.kind:
                yield from _unread_secret(obj, snapshot)
    for objects in snapshot.marked.values():
        require(objects)


def _unread_secret(secret: Untyped, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield a finding for a Secret with a finalizer that its binding's syncer does not see.

    The earlier implementation set the finalizer. A syncer with an account of its own reads Secrets
    only in namespaces that it has requested.
    """
    domain, accounts = snapshot.domain, known(snapshot.accounts, {})
    for binding in require(snapshot.bindings):
        finalizer = domain.finalizer_for(binding.spec.cluster_id)
        account = naming.syncer_deployment(binding.spec.cluster_id, domain)
        namespaces = binding.status.secret_namespaces
        read = {*(namespaces.requested or ()), *(namespaces.granted or ())}
        held = finalizer in (secret.metadata.finalizers or ())
        if held and accounts.get(account) is not None and secret.namespace not in read:
            message = (
                f"finalizer {finalizer} is of binding {binding.name}, whose syncer reads no "
                "Secrets of the namespace"
            )
            remedy = "remove that finalizer; the object cannot be deleted otherwise"
            about = f"{SECRETS.kind} {secret.key}"
            yield Finding(Severity.WARNING, about, message, remedy, check="finalizers")


CHECKS: Final = {
    "definitions": _check_computing_definitions,
    "version": _check_computing_version,
    "clock": _check_computing_clock,
    "manager": _check_manager,
    "syncer": _check_syncers,
    "accounts": _check_accounts,
    "pods": _check_pods,
    "services": _check_services,
    "nodes": _check_nodes,
    "finalizers": _check_finalizers,
}
