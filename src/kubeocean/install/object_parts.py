"""Functions that build objects of an installation: labels, metadata, accounts and roles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kubeocean.api.group import (
    APP_COMPONENT,
    APP_NAME,
    APP_PART_OF,
    COMPONENT_WORKER,
    TRUE,
    Domain,
)
from kubeocean.install.permissions import Rights, Rule
from kubeocean.runtime.objects import Json

__all__ = [
    "RBAC",
    "PodParameter",
    "accounts",
    "admission_policy",
    "admission_rule",
    "by_account",
    "cluster_role_binding",
    "cluster_role_of",
    "granted",
    "labels",
    "named",
    "role_binding",
    "role_of",
    "title",
    "user_of",
    "validation",
    "worker_labels",
]

RBAC: Final = "rbac.authorization.k8s.io"
_RBAC_VERSION: Final = f"{RBAC}/v1"
_ADMISSION: Final = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class PodParameter:
    """The pod that a request is about, which an admission policy reads as its parameter.

    The API server passes each pod of the namespace to the policy. Requests that the policy applies
    to have a label, so that the API server reads pods for no other request.
    """

    name: str  # CEL expression for the name of the pod
    request_label: str  # of the requests, with the value "true"


def labels(domain: Domain, component: str = "") -> dict[str, str]:
    """Return the labels of an installation's objects; with `component`, of that component's."""
    result = {APP_PART_OF: domain.product}
    if component:
        result[APP_NAME] = f"{domain.product}-{component}"
        result[APP_COMPONENT] = component
    return result


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


def admission_policy(
    name: str,
    *,
    labels: dict[str, str],
    requested_by: str,
    rules: list[Json],
    validations: list[Json],
    variables: list[Json] | None = None,
    of_pod: PodParameter | None = None,
) -> list[Json]:
    """Return a ValidatingAdmissionPolicy for requests of ServiceAccounts, and its binding.

    - `requested_by`: a CEL expression that selects these accounts, such as `by_account` returns.
    - `of_pod`: the pod that the policy looks up; it is `params` in CEL.
    """
    conditions: list[Json] = [{"name": "by-the-account", "expression": requested_by}]
    constraints: Json = {"resourceRules": rules}
    spec: Json = {"failurePolicy": "Fail"}
    binding: Json = {"policyName": name, "validationActions": ["Deny"]}
    if of_pod is not None:
        expression = f"params.metadata.name == {of_pod.name}"
        conditions.append({"name": "of-the-pod", "expression": expression})
        selector: Json = {"matchLabels": {of_pod.request_label: TRUE}}
        constraints["objectSelector"] = selector
        spec["paramKind"] = {"apiVersion": "v1", "kind": "Pod"}
        # All pods in the namespace of the request; a policy cannot select one by its name.
        binding["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Deny"}
    spec |= {
        "matchConstraints": constraints,
        "matchConditions": conditions,
        **({"variables": variables} if variables else {}),
        "validations": validations,
    }
    return [
        named("ValidatingAdmissionPolicy", _ADMISSION, name, labels=labels, spec=spec),
        named("ValidatingAdmissionPolicyBinding", _ADMISSION, name, labels=labels, spec=binding),
    ]


def by_account(namespace: str, name: str) -> str:
    """Return the CEL expression that selects requests of one service account."""
    return f"request.userInfo.username == '{user_of(namespace, name)}'"


def user_of(namespace: str, account: str) -> str:
    """Return the user name of a service account."""
    return f"system:serviceaccount:{namespace}:{account}"


def admission_rule(resource: str, *operations: str, group: str = "") -> Json:
    """Return the rule of an admission policy for operations on one resource."""
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "resources": [resource],
        "operations": list(operations),
    }


def validation(expression: str, message: str) -> Json:
    """Return a validation of an admission policy: a CEL expression and the refusal's message."""
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def title(body: Json) -> str:
    """Return kind, namespace and name of an object, for messages."""
    meta = body["metadata"]
    where = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{body['kind']} {where}{meta['name']}"


def _documents(rules: Iterable[Rule]) -> list[Json]:
    return [rule.document() for rule in rules]
