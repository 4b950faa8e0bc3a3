"""Disruption budgets, network policies and quotas of both kinds of cluster."""

from __future__ import annotations

from kubeocean.api import group
from kubeocean.install.data_files import read_object, read_objects
from kubeocean.install.object_parts import labels
from kubeocean.install.values import Values, WorkerValues
from kubeocean.runtime.objects import Json

__all__ = [
    "computing_guards",
    "disruption_budget",
    "egress_policy",
    "shared_budgets",
    "worker_guards",
]


def computing_guards(values: Values) -> list[Json]:
    """Return the manager's PodDisruptionBudget, and NetworkPolicies of the system namespace.

    The manager creates a budget for the syncers and one for the proxiers of each binding.
    """
    manager = values.domain.manager
    budget = disruption_budget(
        manager, values.namespace, {group.APP_NAME: manager}, labels=labels(values.domain)
    )
    if not values.network_policies:
        return [budget]
    return [budget, *read_objects("computing/network_policies.yaml", domain=values.domain)]


def disruption_budget(
    name: str, namespace: str, selector: dict[str, str], *, labels: dict[str, str]
) -> Json:
    """Return a PodDisruptionBudget that lets a drain evict one pod at a time.

    A pod that is not ready may always be evicted.
    """
    return read_object(
        "disruption_budget.yaml", name=name, namespace=namespace, selector=selector, labels=labels
    )


def shared_budgets(values: Values) -> list[Json]:
    """Return the PodDisruptionBudgets for all syncers and for all proxiers of earlier versions.

    They are no longer used: one pod that was not ready blocked the eviction of all others.
    """
    return [
        disruption_budget(name, values.namespace, {group.APP_NAME: name}, labels=labels(domain))
        for domain in (values.domain,)
        for name in (domain.syncer, domain.proxier)
    ]


def worker_guards(values: WorkerValues) -> list[Json]:
    """Return the ResourceQuota and the NetworkPolicies of the mount namespace."""
    common: Json = {
        "name": values.account,
        "namespace": values.mount_namespace,
        "domain": values.domain,
    }
    objects: list[Json] = []
    if values.quota:
        objects.append(read_object("worker/quota.yaml", hard=values.quota, **common))
    if values.isolated:
        objects.append(read_object("worker/isolation.yaml", **common))
    if values.egress:
        objects.append(egress_policy(values))
    return objects


def egress_policy(values: WorkerValues) -> Json:
    """Return the NetworkPolicy that blocks metadata addresses and the worker's API server."""
    blocks = dict.fromkeys(_host(address) for address, _ in values.api_servers)
    return read_object(
        "worker/egress.yaml",
        domain=values.domain,
        namespace=values.mount_namespace,
        api_servers_v4=[each for each in blocks if ":" not in each],
        api_servers_v6=[each for each in blocks if ":" in each],
        other_ports_of_api_servers=[
            _all_ports_but(address, port) for address, port in values.api_servers
        ],
    )


def _host(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"


def _all_ports_but(address: str, port: int) -> Json:
    """Return the egress rule that allows all ports of an address but the API server's.

    Other servers may have the same address.
    """
    spans = [(1, port - 1), (port + 1, 65_535)]
    ports = [
        {"protocol": protocol, "port": first, "endPort": last}
        for protocol in ("TCP", "UDP")
        for first, last in spans
        if first <= last
    ]
    return {"to": [{"ipBlock": {"cidr": _host(address)}}], "ports": ports}
