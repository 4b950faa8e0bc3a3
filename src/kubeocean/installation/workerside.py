"""The worker's side: a namespace, accounts with their roles, our definition of policies; nothing
that runs."""

from __future__ import annotations

from kubeocean.api import group
from kubeocean.api.crds import policy_definition
from kubeocean.installation.computing import kept
from kubeocean.installation.guards import worker_guards
from kubeocean.installation.parts import accounts, granted, labels, named, worker_labels
from kubeocean.installation.roles import AddOn, metrics_rights, worker_rights
from kubeocean.installation.values import WorkerValues
from kubeocean.runtime.objects import Json

__all__ = [
    "credential_secret",
    "credential_selector",
    "metrics_objects",
    "withdrawn_objects",
    "worker_objects",
]


def worker_objects(values: WorkerValues) -> list[Json]:
    """Everything but what belongs to a single binding."""
    namespace, ours = values.mount_namespace, worker_labels(values.domain)
    return [
        kept(policy_definition()),
        kept(named("Namespace", "v1", namespace, labels=ours)),  # pods of others may run there
        *accounts((values.account,), namespace, labels=ours),
        *granted(
            values.account,
            worker_rights(namespace, values.add_ons, values.domain),
            account=values.account,
            namespace=namespace,
            labels=ours,
            cluster_role=values.cluster_role,
        ),
        *(metrics_objects(values) if AddOn.METRICS in values.add_ons else ()),
        _priority_class(values),
        *worker_guards(values),
    ]


def metrics_objects(values: WorkerValues) -> list[Json]:
    """The account that kubelets are asked with: what they are shown is worth no more than that."""
    name, namespace = values.metrics_account, values.mount_namespace
    ours = worker_labels(values.domain)
    return [
        *accounts((name,), namespace, labels=ours),
        *granted(
            name,
            metrics_rights(),
            account=name,
            namespace=namespace,
            labels=ours,
            cluster_role=values.metrics_role,
        ),
    ]


def withdrawn_objects(values: WorkerValues) -> list[Json]:
    """What an earlier choice of add-ons may have made, and this one does not want."""
    return [] if AddOn.METRICS in values.add_ons else metrics_objects(values)


def _priority_class(values: WorkerValues) -> Json:
    domain = values.domain
    return named(
        "PriorityClass",
        "scheduling.k8s.io/v1",
        domain.priority_class,
        labels=worker_labels(domain) | {domain.managed_by: domain.product},
        value=group.PRIORITY_CLASS_VALUE,
        preemptionPolicy="PreemptLowerPriority",
        description="Pods of other clusters, which run where nobody else wants to",
    )


def credential_secret(values: WorkerValues, binding: str, computing_id: str) -> Json:
    """What the token of a binding is bound to: when this goes, the token is worth nothing."""
    domain = values.domain
    return named(
        "Secret",
        "v1",
        f"{domain.product}-{binding}-{computing_id[:8]}",
        namespace=values.mount_namespace,
        labels=labels(domain)
        | {
            domain.component: group.COMPONENT_CREDENTIAL,
            domain.cluster_binding: binding,
            domain.computing_cluster_id: computing_id,
        },
        type="Opaque",
        stringData={"about": "The token of a ClusterBinding is bound to this Secret."},
    )


def credential_selector(values: WorkerValues) -> str:
    """Finds the credentials of all bindings in a mount namespace."""
    return f"{values.domain.component}={group.COMPONENT_CREDENTIAL}"
