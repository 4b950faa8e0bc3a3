"""Parts: the pieces that all our objects are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeocean.api.group import (
    APP_COMPONENT,
    APP_NAME,
    APP_PART_OF,
    COMPONENT_WORKER,
    Domain,
)
from kubeocean.installation.rights import Rights, Rule
from kubeocean.runtime.objects import Json

__all__ = [
    "RBAC",
    "accounts",
    "granted",
    "labels",
    "named",
    "role_binding",
    "title",
    "worker_labels",
]

RBAC: Final = "rbac.authorization.k8s.io"
_RBAC_VERSION: Final = f"{RBAC}/v1"


def labels(domain: Domain, component: str = "") -> dict[str, str]:
    """How all objects of an installation are found, and those of one component."""
    found = {APP_PART_OF: domain.product}
    if component:
        found[APP_NAME] = f"{domain.product}-{component}"
        found[APP_COMPONENT] = component
    return found


def worker_labels(domain: Domain) -> dict[str, str]:
    """How all objects of a worker are found: some are called as those of a computing cluster."""
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
    """An object, begun the way all of them begin."""
    metadata: Json = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def accounts(names: Iterable[str], namespace: str, *, labels: dict[str, str]) -> list[Json]:
    """ServiceAccounts."""
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
    """The roles of an account (in `namespace`), and that it has them."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    wide = cluster_role or name
    found = [
        named(
            "ClusterRole", _RBAC_VERSION, wide, labels=labels, rules=_documents(rights.everywhere)
        ),
        named(
            "ClusterRoleBinding",
            _RBAC_VERSION,
            wide,
            labels=labels,
            roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": wide},
            subjects=[subject],
        ),
    ]
    for where, rules in rights.within.items():
        # Accounts of several mount namespaces meet in namespaces that are nobody's own.
        local = name if where == namespace else wide
        found += [
            named(
                "Role",
                _RBAC_VERSION,
                local,
                namespace=where,
                labels=labels,
                rules=_documents(rules),
            ),
            role_binding(local, where, role=local, subject=subject, labels=labels),
        ]
    return found


def role_binding(
    name: str, namespace: str, *, role: str, subject: Json, labels: dict[str, str]
) -> Json:
    """That somebody has a Role."""
    return named(
        "RoleBinding",
        _RBAC_VERSION,
        name,
        namespace=namespace,
        labels=labels,
        roleRef={"apiGroup": RBAC, "kind": "Role", "name": role},
        subjects=[subject],
    )


def title(body: Json) -> str:
    """How we speak of an object: kind, namespace and name."""
    meta = body["metadata"]
    where = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{body['kind']} {where}{meta['name']}"


def _documents(rules: Iterable[Rule]) -> list[Json]:
    return [rule.document() for rule in rules]
