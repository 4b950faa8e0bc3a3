"""Functions that build objects of an installation: labels, metadata, accounts and roles."""

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
from kubeocean.install.permissions import Rights, Rule
from kubeocean.runtime.objects import Json

__all__ = [
    "RBAC",
    "accounts",
    "admission_policy",
    "admission_rule",
    "granted",
    "labels",
    "named",
    "role_binding",
    "title",
    "validation",
    "worker_labels",
]

RBAC: Final = "rbac.authorization.k8s.io"
_RBAC_VERSION: Final = f"{RBAC}/v1"
_ADMISSION: Final = "admissionregistration.k8s.io/v1"


def labels(domain: Domain, component: str = "") -> dict[str, str]:
    """Return the labels of all objects of an installation, or of one component."""
    result = {APP_PART_OF: domain.product}
    if component:
        result[APP_NAME] = f"{domain.product}-{component}"
        result[APP_COMPONENT] = component
    return result


def worker_labels(domain: Domain) -> dict[str, str]:
    """Return the labels of objects in a worker; some have the names of computing cluster
    objects."""
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
    """Return ServiceAccounts."""
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
    """Return the roles of an account in `namespace`, and their bindings."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    wide = cluster_role or name
    objects = [
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
    for role_namespace, rules in rights.within.items():
        # Accounts of several mount namespaces may have roles in the same other namespace.
        local = name if role_namespace == namespace else wide
        objects += [
            named(
                "Role",
                _RBAC_VERSION,
                local,
                namespace=role_namespace,
                labels=labels,
                rules=_documents(rules),
            ),
            role_binding(local, role_namespace, role=local, subject=subject, labels=labels),
        ]
    return objects


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


def admission_policy(
    name: str,
    *,
    labels: dict[str, str],
    account: str,
    rules: list[Json],
    validations: list[Json],
    variables: list[Json] | None = None,
) -> list[Json]:
    """Return a ValidatingAdmissionPolicy for requests of one service account, and its binding.

    `account` is `namespace:name`.
    """
    user = f"system:serviceaccount:{account}"
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [
            {"name": "by-the-account", "expression": f"request.userInfo.username == '{user}'"}
        ],
        **({"variables": variables} if variables else {}),
        "validations": validations,
    }
    binding: Json = {"policyName": name, "validationActions": ["Deny"]}
    return [
        named("ValidatingAdmissionPolicy", _ADMISSION, name, labels=labels, spec=spec),
        named("ValidatingAdmissionPolicyBinding", _ADMISSION, name, labels=labels, spec=binding),
    ]


def admission_rule(resource: str, *operations: str, group: str = "") -> Json:
    """Return the rule of an admission policy for operations on one resource."""
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "resources": [resource],
        "operations": list(operations),
    }


def validation(expression: str, message: str) -> Json:
    """Return a CEL expression that must be true, and the message of a refusal."""
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def title(body: Json) -> str:
    """Return kind, namespace and name of an object, for messages."""
    meta = body["metadata"]
    where = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{body['kind']} {where}{meta['name']}"


def _documents(rules: Iterable[Rule]) -> list[Json]:
    return [rule.document() for rule in rules]
