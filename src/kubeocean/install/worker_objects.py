"""Objects of a worker cluster: CRD, namespace, accounts, roles and quotas; no programs."""

from __future__ import annotations

from kubeocean.api import group
from kubeocean.api.crds import policy_definition
from kubeocean.install.computing_objects import kept
from kubeocean.install.limits import worker_guards
from kubeocean.install.object_parts import accounts, granted, labels, named, worker_labels
from kubeocean.install.roles import AddOn, metrics_rights, worker_rights
from kubeocean.install.values import WorkerValues
from kubeocean.runtime.objects import Json

__all__ = [
    "credential_secret",
    "credential_selector",
    "metrics_objects",
    "withdrawn_objects",
    "worker_objects",
]


def worker_objects(values: WorkerValues) -> list[Json]:
    """Return all objects of a worker except those of a single binding."""
    namespace, ours = values.mount_namespace, worker_labels(values.domain)
    return [
        kept(policy_definition()),
        kept(
            named("Namespace", "v1", namespace, labels=ours)
        ),  # it may contain pods of other owners
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
    """Return the account that reads metrics of kubelets, which see its token."""
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
    """Return objects of add-ons that are not granted any more."""
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
    """Return the Secret to which a binding's token is bound; its deletion revokes the token."""
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
    """Return the label selector of all bindings' credential Secrets."""
    return f"{values.domain.component}={group.COMPONENT_CREDENTIAL}"
