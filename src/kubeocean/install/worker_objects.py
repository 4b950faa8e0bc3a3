"""Objects of an installation in a worker cluster: CRD, namespace, accounts, roles, limits."""

from __future__ import annotations

from dataclasses import replace

from kubeocean.api import group
from kubeocean.api.crds import policy_definition
from kubeocean.install.computing_objects import kept
from kubeocean.install.data_files import read_object
from kubeocean.install.limits import worker_guards
from kubeocean.install.object_parts import accounts, granted, title, worker_labels
from kubeocean.install.roles import ALL_ADD_ONS, AddOn, metrics_rights, worker_rights
from kubeocean.install.values import WorkerValues
from kubeocean.install.worker_admission import admission_objects
from kubeocean.runtime.objects import Json

__all__ = [
    "credential_secret",
    "credential_selector",
    "metrics_objects",
    "mount_namespace",
    "with_everything",
    "withdrawn_objects",
    "worker_objects",
]


def worker_objects(values: WorkerValues) -> list[Json]:
    """Return all objects of an installation in a worker, except those of a single binding."""
    namespace, ours = values.mount_namespace, worker_labels(values.domain)
    # Without the admission policy, tokens could outlive the Secret that revokes the credential.
    unlimited = () if values.admission else (AddOn.RENEWAL,)
    add_ons = [each for each in values.add_ons if each not in unlimited]
    return [
        kept(policy_definition()),
        mount_namespace(values),
        *accounts((values.account,), namespace, labels=ours),
        *granted(
            values.account,
            worker_rights(namespace, add_ons, values.domain),
            account=values.account,
            namespace=namespace,
            labels=ours,
            cluster_role=values.cluster_role,
        ),
        *(metrics_objects(values) if AddOn.METRICS in values.add_ons else ()),
        read_object("worker/priority_class.yaml", domain=values.domain),
        *worker_guards(values),
        *(admission_objects(values) if values.admission else ()),
    ]


def mount_namespace(values: WorkerValues) -> Json:
    """Return the Namespace in which pods of the binding run in the worker."""
    return read_object(
        "worker/namespace.yaml",
        domain=values.domain,
        namespace=values.mount_namespace,
        pod_security=values.pod_security,
    )


def metrics_objects(values: WorkerValues) -> list[Json]:
    """Return the ServiceAccount that reads metrics of kubelets, and its roles.

    The account has no other permission, because kubelets see its token.
    """
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
    """Return the objects of the mount namespace that only other values would create."""
    titles = {title(each) for each in worker_objects(values)}
    return [each for each in worker_objects(with_everything(values)) if title(each) not in titles]


def with_everything(values: WorkerValues) -> WorkerValues:
    """Return values with which `worker_objects` returns every object that is possible."""
    quota = values.quota or WorkerValues().quota
    return replace(
        values, add_ons=ALL_ADD_ONS, quota=quota, isolated=True, egress=True, admission=True
    )


def credential_secret(values: WorkerValues, binding: str, computing_id: str) -> Json:
    """Return the Secret to which a binding's token is bound; its deletion revokes the token."""
    return read_object(
        "worker/credential_secret.yaml",
        domain=values.domain,
        namespace=values.mount_namespace,
        binding=binding,
        computing_id=computing_id,
        short_id=computing_id[:8],
    )


def credential_selector(values: WorkerValues) -> str:
    """Return the label selector of all bindings' credential Secrets."""
    return f"{values.domain.component}={group.COMPONENT_CREDENTIAL}"
