"""Disruption budgets, network policies and quotas of both kinds of cluster."""

from __future__ import annotations

from kubeocean.api import group
from kubeocean.install.object_parts import labels, named, worker_labels
from kubeocean.install.values import Values, WorkerValues
from kubeocean.runtime.objects import Json

__all__ = ["computing_guards", "worker_guards"]


def computing_guards(values: Values) -> list[Json]:
    """Return disruption budgets and network policies of the system namespace."""
    domain = values.domain
    components = (group.COMPONENT_MANAGER, group.COMPONENT_SYNCER, group.COMPONENT_PROXIER)
    budgets = [
        named(
            "PodDisruptionBudget",
            "policy/v1",
            f"{domain.product}-{component}",
            namespace=values.namespace,
            labels=labels(domain),
            spec={
                # Of all bindings together: a drain never evicts both replicas of one.
                "maxUnavailable": 1,
                "selector": {
                    "matchLabels": {group.APP_NAME: f"{domain.product}-{component}"},
                },
            },
        )
        for component in components
    ]
    return [*budgets, *(_network(values) if values.network_policies else ())]


def _network(values: Values) -> list[Json]:
    """Return policies that admit connections to metrics and to the proxiers only.

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
        # The API server drops an empty list, which would then be applied each time.
        spec={"podSelector": selector, "policyTypes": ["Ingress"]}
        | ({"ingress": ingress} if ingress else {}),
    )


def worker_guards(values: WorkerValues) -> list[Json]:
    """Return the quota of the mount namespace, and its network policy if isolated."""
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
    return objects
