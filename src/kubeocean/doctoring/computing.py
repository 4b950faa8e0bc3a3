"""Checks of the computing cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from kubeocean.api import naming
from kubeocean.api.conditions import READY
from kubeocean.api.group import DNS_SERVICE, SERVER_SERVICE
from kubeocean.doctoring.facts import Computing
from kubeocean.doctoring.findings import Finding, Severity
from kubeocean.doctoring.programs import check_accounts, check_pods, says
from kubeocean.doctoring.servers import check_clock, check_definitions, check_version
from kubeocean.installation.settling import rollout
from kubeocean.leasing.instants import instant_of
from kubeocean.runtime.kinds import Lease
from kubeocean.runtime.objects import Json, find_condition

__all__ = ["CHECKS"]

_HERE: Final = "computing cluster"
_FLAGS: Final = {
    str(SERVER_SERVICE): "--kubernetes-service-address",
    str(DNS_SERVICE): "--dns-service-address",
}


def _check_computing_definitions(facts: Computing) -> Iterator[Finding]:
    if _is_empty(facts):
        missing = next(iter(facts.server.definitions))
        said = f"Kubeocean is not installed here: the definition {missing} is not installed"
        remedy = "kubeocean install, then kubeocean join for each worker"
        yield Finding("definitions", Severity.ERROR, _HERE, said, remedy)
    else:
        yield from check_definitions("definitions", _HERE, facts.server, "kubeocean install")


def _is_empty(facts: Computing) -> bool:
    """Whether nobody has installed us: then nothing else is missing."""
    kinds = facts.server.definitions
    absent = bool(kinds) and all(each is None for each in kinds.values())
    return absent and facts.domain.manager not in (facts.deployments or {})


def _check_computing_version(facts: Computing) -> Iterator[Finding]:
    yield from check_version("version", _HERE, facts.server)


def _check_computing_clock(facts: Computing) -> Iterator[Finding]:
    yield from check_clock("clock", _HERE, facts.server)


def _check_manager(facts: Computing) -> Iterator[Finding]:
    """One leads, and all replicas are there."""
    name = naming.manager_election(facts.domain)
    alone = says((facts.deployments or {}).get(facts.domain.manager), "--leader-elect", "false")
    led = (
        facts.elections is None
        or alone
        or _is_empty(facts)
        or _is_fresh(facts.elections.get(name), facts)
    )
    if not led and facts.elections is not None:
        lease = facts.elections.get(name)
        since = lease.spec.renew_time if lease is not None else None
        said = f"none has led since {since}" if since else "none has ever led"
        where = f"{facts.domain.system_namespace}/{facts.domain.manager}"
        gone = facts.deployments is not None and facts.domain.manager not in facts.deployments
        remedy = "kubeocean install" if gone else f"see the pods of Deployment {where}"
        yield Finding("manager", Severity.ERROR, facts.domain.manager, said, remedy)
    yield from _rolled("manager", facts, facts.domain.manager)


def _check_syncers(facts: Computing) -> Iterator[Finding]:
    """Each binding has one that leads."""
    for binding in facts.chosen:
        if binding.deleting or facts.elections is None:
            continue
        names = (
            naming.syncer_deployment(binding.spec.cluster_id, facts.domain),
            naming.syncer_election(binding.name, facts.domain),
        )
        led = any(_is_fresh(facts.elections.get(name), facts) for name in names)
        # One that is elected elsewhere, or not at all, still shows in the heartbeats of its nodes.
        if not led and not _beats(facts, binding.name):
            remedy = f"see the pods of Deployment {facts.domain.system_namespace}/{names[0]}"
            said = "no syncer leads: nothing is lent, followed or taken back"
            yield Finding("syncer", Severity.ERROR, f"binding {binding.name}", said, remedy)
        for name in (names[0], naming.proxier_deployment(binding.spec.cluster_id, facts.domain)):
            yield from _rolled("syncer", facts, name)


def _beats(facts: Computing, binding: str) -> bool:
    label, key = naming.label_value(binding), facts.domain.cluster_binding
    own = (node.name for node in facts.nodes if node.labels.get(key) == label)
    return any(_is_fresh((facts.heartbeats or {}).get(name), facts) for name in own)


def _is_fresh(lease: Lease | None, facts: Computing) -> bool:
    if lease is None or not lease.spec.renew_time or not lease.spec.holder_identity:
        return False
    # The clocks of those who write and of us may differ; that is another check's.
    age = facts.now + (facts.server.skew or _NONE) - instant_of(lease.spec.renew_time)
    return age.total_seconds() <= 2 * (lease.spec.lease_duration_seconds or 0)


_NONE: Final = timedelta()


def _rolled(check: str, facts: Computing, name: str) -> Iterator[Finding]:
    """A Deployment that is not all there; one that does not exist is not ours to miss."""
    found = (facts.deployments or {}).get(name)
    if found is None:
        return
    state = rollout(found)
    if not state.done:
        remedy = f"kubectl -n {facts.domain.system_namespace} describe deployment {name}"
        yield Finding(check, Severity.WARNING, f"Deployment {name}", state.said, remedy)


def _check_services(facts: Computing) -> Iterator[Finding]:
    """Pods in workers are told where the API server and the DNS of this cluster are."""
    if not facts.chosen:
        return
    for name, service in facts.services.items():
        flag = _FLAGS[name]
        if _address(service) or _all_say(facts, flag):
            continue
        known = facts.deployments is not None and _syncers(facts)
        why = "does not exist" if service is None else "has no address of a load balancer"
        said = f"it {why}, so pods in workers cannot be told of it"
        remedy = f"a Service {name} of type LoadBalancer, or {flag} for the syncers"
        severity = Severity.ERROR if known else Severity.WARNING
        yield Finding("services", severity, f"Service {name}", said, remedy)


def _address(service: Json | None) -> str:
    status = ((service or {}).get("status") or {}).get("loadBalancer") or {}
    ingress = status.get("ingress") or [{}]
    return str(ingress[0].get("ip") or ingress[0].get("hostname") or "")


def _syncers(facts: Computing) -> list[Json]:
    names = [naming.syncer_deployment(b.spec.cluster_id, facts.domain) for b in facts.chosen]
    there = facts.deployments or {}
    return [there[name] for name in names if name in there]


def _all_say(facts: Computing, flag: str) -> bool:
    syncers = _syncers(facts)
    return bool(syncers) and all(says(each, flag) for each in syncers)


def _check_nodes(facts: Computing) -> Iterator[Finding]:
    """Virtual nodes have a binding and a heartbeat."""
    known = {naming.label_value(each.name) for each in facts.bindings}
    chosen = {naming.label_value(each.name) for each in facts.chosen}
    for node in facts.nodes:
        about, name = f"node {node.name}", node.labels.get(facts.domain.cluster_binding, "")
        if name not in known:
            said = f"it is left over: its binding {name or '(none)'} does not exist"
            remedy = "remove its finalizers, and delete it"
            yield Finding("nodes", Severity.ERROR, about, said, remedy)
            continue
        if name not in chosen:
            continue
        lease = facts.heartbeats.get(node.name) if facts.heartbeats is not None else None
        if facts.heartbeats is not None and not _is_fresh(lease, facts):
            since = lease.spec.renew_time if lease is not None else None
            said = f"no heartbeat since {since}" if since else "it never had a heartbeat"
            remedy = f"kubeocean explain node {node.name}"
            yield Finding("nodes", Severity.ERROR, about, said, remedy)
            continue
        ready = find_condition(node.status.conditions, READY)
        if ready is not None and ready.status != "True":
            said = f"it is not Ready: {ready.reason or ready.status} {ready.message}".strip()
            remedy = f"kubeocean explain node {node.name}"
            yield Finding("nodes", Severity.WARNING, about, said, remedy)


def _check_marks(facts: Computing) -> Iterator[Finding]:
    """Objects that a binding held, which is gone, can be deleted by nobody."""
    ids = {binding.spec.cluster_id for binding in facts.bindings}
    prefix = facts.domain.finalizer_for("")
    for kind, obj in facts.marked:
        held = [each for each in obj.metadata.finalizers or () if each.startswith(prefix)]
        gone = [each for each in held if each.removeprefix(prefix) not in ids]
        if gone:
            said = f"finalizer {gone[0]} is of a binding that does not exist"
            remedy = "remove that finalizer; else nobody can delete the object"
            yield Finding("finalizers", Severity.ERROR, f"{kind} {obj.key}", said, remedy)


CHECKS: Final = {
    "definitions": _check_computing_definitions,
    "version": _check_computing_version,
    "clock": _check_computing_clock,
    "manager": _check_manager,
    "syncer": _check_syncers,
    "accounts": check_accounts,
    "pods": check_pods,
    "services": _check_services,
    "nodes": _check_nodes,
    "finalizers": _check_marks,
}
