"""Disruption budgets, network policies and quotas of both kinds of cluster."""

from __future__ import annotations

from typing import Final

from kubeocean.api import group
from kubeocean.install.object_parts import labels, named, worker_labels
from kubeocean.install.values import Values, WorkerValues
from kubeocean.runtime.objects import Json

__all__ = [
    "computing_guards",
    "disruption_budget",
    "egress_policy",
    "shared_budgets",
    "worker_guards",
]

# Addresses at which clouds serve credentials of a node: link-local ones, and those of Alibaba
# Cloud, Azure, Oracle Cloud, AWS and Google Cloud.
_METADATA_V4: Final = (
    "169.254.0.0/16",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
)
_METADATA_V6: Final = ("fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128")


def computing_guards(values: Values) -> list[Json]:
    """Return the manager's PodDisruptionBudget, and NetworkPolicies of the system namespace.

    The manager creates a budget for the syncers and one for the proxiers of each binding.
    """
    manager = values.domain.manager
    budget = disruption_budget(
        manager, values.namespace, {group.APP_NAME: manager}, labels=labels(values.domain)
    )
    return [budget, *(_network(values) if values.network_policies else ())]


def disruption_budget(
    name: str, namespace: str, selector: dict[str, str], *, labels: dict[str, str]
) -> Json:
    """Return a PodDisruptionBudget that lets a drain evict one pod at a time.

    A pod that is not ready may always be evicted.
    """
    return named(
        "PodDisruptionBudget",
        "policy/v1",
        name,
        namespace=namespace,
        labels=labels,
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector},
        },
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


def _network(values: Values) -> list[Json]:
    """Return NetworkPolicies that admit connections to metrics and to the proxiers only.

    Egress is not restricted, because the addresses of workers are not known.
    """
    domain = values.domain
    anywhere: Json = {"namespaceSelector": {}}
    metrics = {"protocol": "TCP", "port": group.METRICS_PORT}
    return [
        _policy(values, f"{domain.product}-default", {}, []),
        _policy(
            values,
            f"{domain.product}-metrics",
            {"matchLabels": {group.APP_PART_OF: domain.product}},
            [{"from": [anywhere], "ports": [metrics]}],
        ),
        # No selector matches the addresses of API servers.
        _policy(
            values,
            domain.proxier,
            {"matchLabels": {group.APP_NAME: domain.proxier}},
            [
                {
                    "ports": [
                        {"protocol": "TCP", "port": group.KUBELET_PORT},
                        {"protocol": "TCP", "port": group.VNODE_METRICS_PORT},
                        {
                            "protocol": "TCP",
                            "port": group.PROXIER_PORT_FIRST,
                            "endPort": group.PROXIER_PORT_LAST,
                        },
                    ]
                }
            ],
        ),
    ]


def _policy(values: Values, name: str, selector: Json, ingress: list[Json]) -> Json:
    return named(
        "NetworkPolicy",
        "networking.k8s.io/v1",
        name,
        namespace=values.namespace,
        labels=labels(values.domain),
        # The API server drops an empty list, so that each apply would count as a change.
        spec={"podSelector": selector, "policyTypes": ["Ingress"]}
        | ({"ingress": ingress} if ingress else {}),
    )


def worker_guards(values: WorkerValues) -> list[Json]:
    """Return the ResourceQuota and the NetworkPolicies of the mount namespace."""
    name, ours = values.account, worker_labels(values.domain)
    objects: list[Json] = []
    if values.quota:
        hard = dict(values.quota)
        objects.append(
            named(
                "ResourceQuota",
                "v1",
                name,
                namespace=values.mount_namespace,
                labels=ours,
                spec={"hard": hard},
            )
        )
    if values.isolated:
        objects.append(
            named(
                "NetworkPolicy",
                "networking.k8s.io/v1",
                name,
                namespace=values.mount_namespace,
                labels=ours,
                spec={
                    "podSelector": {},
                    "policyTypes": ["Ingress"],
                    "ingress": [{"from": [{"podSelector": {}}]}],
                },
            )
        )
    if values.egress:
        objects.append(egress_policy(values))
    return objects


def egress_policy(values: WorkerValues) -> Json:
    """Return the NetworkPolicy that blocks metadata addresses and the worker's API server.

    Pods of the worker and other addresses stay reachable, such as the computing cluster's API
    server and DNS. DNS servers may have link-local addresses.
    """
    blocks = [_block("0.0.0.0/0", _METADATA_V4, values), _block("::/0", _METADATA_V6, values)]
    rules: list[Json] = [
        {"to": [{"namespaceSelector": {}}]},
        {"to": blocks},
        {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]},
        *(_all_ports_but(address, port) for address, port in values.api_servers),
    ]
    return named(
        "NetworkPolicy",
        "networking.k8s.io/v1",
        values.domain.egress_policy,
        namespace=values.mount_namespace,
        labels=worker_labels(values.domain),
        spec={"podSelector": {}, "policyTypes": ["Egress"], "egress": rules},
    )


def _block(cidr: str, metadata: tuple[str, ...], values: WorkerValues) -> Json:
    own = [_host(address) for address, _ in values.api_servers]
    excepted = [*metadata, *(each for each in own if (":" in each) is (":" in cidr))]
    return {"ipBlock": {"cidr": cidr, "except": list(dict.fromkeys(excepted))}}


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
