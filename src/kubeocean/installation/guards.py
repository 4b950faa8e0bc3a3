"""Guards: what keeps others out, ourselves within bounds, and enough of us running."""

from __future__ import annotations

from kubeocean.api import group
from kubeocean.installation.parts import labels, named, worker_labels
from kubeocean.installation.values import Values, WorkerValues
from kubeocean.runtime.objects import Json

__all__ = ["computing_guards", "worker_guards"]


def computing_guards(values: Values) -> list[Json]:
    """Budgets and network policies of our own namespace."""
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
                # Of all bindings together: a drain never takes both replicas of one.
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
    """Nobody comes in but to read metrics, and to the proxiers.

    Where they go out to is wherever workers are: no rule would hold.
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
        # API servers come from addresses that no selector knows.
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
        # An empty list is stored as none, and would be another change each time.
        spec={"podSelector": selector, "policyTypes": ["Ingress"]}
        | ({"ingress": ingress} if ingress else {}),
    )


def worker_guards(values: WorkerValues) -> list[Json]:
    """The quota of the mount namespace, and its walls if they are wanted."""
    name, ours = values.account, worker_labels(values.domain)
    found: list[Json] = []
    if values.quota:
        hard = dict(values.quota)
        found.append(
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
        found.append(
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
    return found
