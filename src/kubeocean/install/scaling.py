"""Objects of syncers that share a binding by shards, and autoscalers of syncers and proxiers.

A second syncer is a standby unless replicas share the work, so only sharded syncers are scaled.
The numbers of replicas in `Values` are the lower bounds of autoscalers.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.install.object_parts import RBAC, granted, labels, named
from kubeocean.install.permissions import Rights, Rule
from kubeocean.install.values import Values
from kubeocean.runtime.objects import Json

__all__ = ["TEMPLATE_HASH", "autoscaler", "ring_role", "sharding_objects"]

# Lets a ring move all shards once in a rolling update.
TEMPLATE_HASH: Final[Json] = {
    "name": "POD_TEMPLATE_HASH",
    "valueFrom": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": f"metadata.labels['{group.LABEL_TEMPLATE_HASH}']",
        }
    },
}
# Sessions of a proxier end with it, and shards of a syncer move: capacity is removed slowly.
_SCALE_DOWN: Final[Json] = {
    "stabilizationWindowSeconds": 300,
    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
}
_RING: Final = (
    Rule(
        ("leases",),
        ("get", "list", "watch", "create", "patch", "delete"),
        "coordination.k8s.io",
    ),
    Rule(("configmaps",), ("get", "list", "watch", "create", "patch")),
)
# The manager deletes the objects of a ring with its binding.
_REMOVAL: Final = (
    Rule(("leases",), ("list", "delete"), "coordination.k8s.io"),
    Rule(("configmaps",), ("get", "delete")),
)


def ring_role(domain: Domain) -> str:
    """Return the name of the Role that lets syncers divide the work of a binding."""
    return f"{domain.syncer}-sharding"


def sharding_objects(values: Values) -> list[Json]:
    """Return the roles that sharded syncers, and the manager that removes them, need besides.

    The manager binds the role to the accounts that it creates for the syncers of each binding.
    """
    domain, namespace = values.domain, values.namespace
    binds = Rule(("roles",), ("bind",), RBAC, (ring_role(domain),))
    objects: list[Json] = []
    for name, account, rules in (
        (ring_role(domain), domain.syncer, _RING),
        (f"{domain.manager}-unsharding", domain.manager, (*_REMOVAL, binds)),
    ):
        rights = Rights(within={namespace: rules})
        objects += granted(
            name, rights, account=account, namespace=namespace, labels=labels(domain)
        )
    return objects


def autoscaler(
    values: Values, component: str, *, name: str, namespace: str, labels: dict[str, str]
) -> Json:
    """Return the HorizontalPodAutoscaler of a component's Deployment, by the use of CPU.

    :raises KeyError: the values do not scale the component.
    """
    return named(
        "HorizontalPodAutoscaler",
        "autoscaling/v2",
        name,
        namespace=namespace,
        labels=labels,
        spec={
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": values.replicas_of(component),
            "maxReplicas": values.max_replicas[component],
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {
                            "type": "Utilization",
                            "averageUtilization": values.target_cpu_percent,
                        },
                    },
                }
            ],
            "behavior": {"scaleDown": _SCALE_DOWN},
        },
    )
