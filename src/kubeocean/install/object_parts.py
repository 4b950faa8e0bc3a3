"""Functions that build objects of an installation: labels, metadata, accounts and roles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeocean.api.group import APP_PART_OF, COMPONENT_WORKER, Domain
from kubeocean.install.permissions import Rights, Rule
from kubeocean.runtime.objects import Json

__all__ = [
    "RBAC",
    "accounts",
    "cluster_role_binding",
    "cluster_role_of",
    "granted",
    "labels",
    "named",
    "role_binding",
    "role_of",
    "title",
    "user_of",
    "worker_labels",
]

RBAC: Final = "rbac.authorization.k8s.io"
_RBAC_VERSION: Final = f"{RBAC}/v1"


def labels(domain: Domain) -> dict[str, str]:
    """Return the labels of an installation's objects."""
    return {APP_PART_OF: domain.product}


def worker_labels(domain: Domain) -> dict[str, str]:
    """Return the labels of Kubeocean's objects in a worker cluster.

    The labels distinguish them from objects of a computing cluster with the same names.
    """
    return labels(domain) | {domain.component: COMPONENT_WORKER}


def named(
    kind: str,
    api_version: str,
    name: str,
    *,
    namespace: str = "",
    labels: dict[str, str],
    **content: object,
) -> Json:
    """Return an object with apiVersion, kind and metadata."""
    metadata: Json = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def accounts(names: Iterable[str], namespace: str, *, labels: dict[str, str]) -> list[Json]:
    """Return ServiceAccounts with these names."""
    return [
        named("ServiceAccount", "v1", name, namespace=namespace, labels=labels) for name in names
    ]


def granted(
    name: str,
    rights: Rights,
    *,
    account: str,
    namespace: str,
    labels: dict[str, str],
    cluster_role: str = "",
) -> list[Json]:
    """Return the roles that grant `rights` to an account in `namespace`, and their bindings."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    wide = cluster_role or name
    objects: list[Json] = []
    if rights.everywhere:
        objects += [
            cluster_role_of(wide, rights.everywhere, labels=labels),
            cluster_role_binding(wide, role=wide, subject=subject, labels=labels),
        ]
    for role_namespace, rules in rights.within.items():
        # Accounts of several mount namespaces may have roles in the same other namespace.
        local = name if role_namespace == namespace else wide
        objects += [
            role_of(local, role_namespace, rules, labels=labels),
            role_binding(local, role_namespace, role=local, subject=subject, labels=labels),
        ]
    return objects


def cluster_role_of(name: str, rules: Iterable[Rule], *, labels: dict[str, str]) -> Json:
    """Return a ClusterRole with these rules."""
    return named("ClusterRole", _RBAC_VERSION, name, labels=labels, rules=_documents(rules))


def cluster_role_binding(name: str, *, role: str, subject: Json, labels: dict[str, str]) -> Json:
    """Return a ClusterRoleBinding of one subject."""
    return named(
        "ClusterRoleBinding",
        _RBAC_VERSION,
        name,
        labels=labels,
        roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        subjects=[subject],
    )


def role_of(name: str, namespace: str, rules: Iterable[Rule], *, labels: dict[str, str]) -> Json:
    """Return a Role with these rules."""
    return named(
        "Role",
        _RBAC_VERSION,
        name,
        namespace=namespace,
        labels=labels,
        rules=_documents(rules),
    )


def role_binding(
    name: str, namespace: str, *, role: str, subject: Json, labels: dict[str, str]
) -> Json:
    """Return a RoleBinding of one subject."""
    return named(
        "RoleBinding",
        _RBAC_VERSION,
        name,
        namespace=namespace,
        labels=labels,
        roleRef={"apiGroup": RBAC, "kind": "Role", "name": role},
        subjects=[subject],
    )


def user_of(namespace: str, account: str) -> str:
    """Return the user name of a service account."""
    return f"system:serviceaccount:{namespace}:{account}"


def title(body: Json) -> str:
    """Return kind, namespace and name of an object, for messages."""
    meta = body["metadata"]
    where = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{body['kind']} {where}{meta['name']}"


def _documents(rules: Iterable[Rule]) -> list[Json]:
    return [rule.document() for rule in rules]
