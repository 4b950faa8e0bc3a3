"""ValidatingAdmissionPolicies that a hub manages, and the file that configures them. Pure.

    denyServiceAccountsAndTokenRequestsInReservedNamespaces:
      reservedNamespacePrefixes: [fleet-, kube-]
      whitelistedUsernames: [alice]
      whitelistedUserGroups: [operators]
    denyPodsAndReplicaSetsOutsideReservedNamespaces:
      reservedNamespacePrefixes: [fleet-, kube-]

A section that is present enables its policy; keys are matched without regard to case. Without a
file, the policy for service accounts is enabled, and the ban of pods is not: a hub may run them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeocean.api.fleet.names import SERVICE_ACCOUNT_POLICY, WORKLOAD_POLICY, policy_binding
from kubeocean.errors import ConfigError
from kubeocean.fleet.admission.guard_rail import RESERVED_PREFIXES
from kubeocean.runtime.documents import parse_yaml
from kubeocean.runtime.objects import Json

__all__ = [
    "POLICY_LABELS",
    "PolicyConfig",
    "ServiceAccountPolicy",
    "policy_objects",
    "read_policy_config",
]

POLICY_LABELS: Final = {
    "app.kubernetes.io/managed-by": "fleet-hub-agent",
    "app.kubernetes.io/part-of": "fleet",
    "app.kubernetes.io/component": "admission-policy-manager",
}
_ACCOUNTS_SECTION: Final = "denyServiceAccountsAndTokenRequestsInReservedNamespaces"
_WORKLOADS_SECTION: Final = "denyPodsAndReplicaSetsOutsideReservedNamespaces"
_PREFIXES: Final = "reservedNamespacePrefixes"
_USERS: Final = "whitelistedUsernames"
_GROUPS: Final = "whitelistedUserGroups"
_PREFIX: Final = re.compile(r"[a-z0-9-]+")
_EXEMPT_USERS: Final = ("system:kube-scheduler", "system:kube-controller-manager")
_EXEMPT_GROUPS: Final = (
    "system:nodes",
    "system:masters",
    "kubeadm:cluster-admins",
    "system:serviceaccounts",
)
_API_VERSION: Final = "admissionregistration.k8s.io/v1"
_ACCOUNTS_MESSAGE: Final = (
    "writing service accounts in reserved namespaces or requesting tokens from such service"
    " accounts is disallowed"
)
_WORKLOADS_MESSAGE: Final = "creating pods and replicas is disallowed in the fleet hub cluster"


@dataclass(frozen=True, slots=True)
class ServiceAccountPolicy:
    """Settings of the policy that protects ServiceAccounts in reserved namespaces."""

    prefixes: tuple[str, ...] = RESERVED_PREFIXES
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Enabled ValidatingAdmissionPolicies of a hub.

    `workload_prefixes`: prefixes of the namespaces in which pods may be created; None for all
    namespaces.
    """

    accounts: ServiceAccountPolicy | None = ServiceAccountPolicy()
    workload_prefixes: tuple[str, ...] | None = None


def read_policy_config(content: bytes, source: str) -> PolicyConfig:
    """Parse the file that configures the ValidatingAdmissionPolicies.

    :raises ConfigError: the file is not YAML, or a section is incomplete.
    """
    document = _folded(parse_yaml(content, source=source) or {}, "", source)
    known = (_ACCOUNTS_SECTION, _WORKLOADS_SECTION)
    for name in document:
        if name not in {each.lower() for each in known}:
            raise ConfigError(
                f"has an unknown section {name}; known are {', '.join(known)}", source=source
            )
    accounts = _section(document, _ACCOUNTS_SECTION, source)
    workloads = _section(document, _WORKLOADS_SECTION, source)
    return PolicyConfig(
        ServiceAccountPolicy(
            _prefixes(accounts, _ACCOUNTS_SECTION, source),
            _texts(accounts, _ACCOUNTS_SECTION, _USERS, source),
            _texts(accounts, _ACCOUNTS_SECTION, _GROUPS, source),
        )
        if accounts is not None
        else None,
        _prefixes(workloads, _WORKLOADS_SECTION, source) if workloads is not None else None,
    )


def policy_objects(config: PolicyConfig) -> list[Json]:
    """Return the enabled ValidatingAdmissionPolicies, each with its binding."""
    objects = []
    if config.accounts is not None:
        objects += _policy(
            SERVICE_ACCOUNT_POLICY,
            [
                _rule("", "serviceaccounts", "CREATE", "UPDATE", "DELETE"),
                _rule("", "serviceaccounts/token", "CREATE"),
            ],
            f"!{_is_reserved(config.accounts.prefixes)}",
            _ACCOUNTS_MESSAGE,
            condition=_is_not_exempt(config.accounts),
        )
    if config.workload_prefixes is not None:
        objects += _policy(
            WORKLOAD_POLICY,
            [_rule("", "pods", "CREATE"), _rule("apps", "replicasets", "CREATE")],
            _is_reserved(config.workload_prefixes),
            _WORKLOADS_MESSAGE,
        )
    return objects


def _policy(
    name: str, rules: list[Json], expression: str, message: str, *, condition: str = ""
) -> list[Json]:
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "resourceRules": rules,
        },
        "validations": [{"expression": expression, "message": message, "reason": "Forbidden"}],
    }
    if condition:
        spec["matchConditions"] = [{"name": "is-not-exempt", "expression": condition}]
    binding: Json = {"policyName": name, "validationActions": ["Deny"]}
    return [
        _document("ValidatingAdmissionPolicy", name, spec),
        _document("ValidatingAdmissionPolicyBinding", policy_binding(name), binding),
    ]


def _document(kind: str, name: str, spec: Json) -> Json:
    metadata = {"name": name, "labels": dict(POLICY_LABELS)}
    return {"apiVersion": _API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _rule(group: str, resource: str, *operations: str) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "resources": [resource],
        "operations": list(operations),
        "scope": "*",
    }


def _is_reserved(prefixes: Iterable[str]) -> str:
    return f"{_list(prefixes)}.exists(p, request.namespace.startsWith(p))"


def _is_not_exempt(policy: ServiceAccountPolicy) -> str:
    users = _list((*_EXEMPT_USERS, *policy.users))
    groups = _list((*_EXEMPT_GROUPS, *policy.groups))
    return (
        f"!(request.userInfo.username in {users}) && !(has(request.userInfo.groups)"
        f" && request.userInfo.groups.exists(g, g in {groups}))"
    )


def _list(texts: Iterable[str]) -> str:
    """Return `texts` as a list literal of CEL, which has the form of a JSON array."""
    return msgspec.json.encode(list(texts)).decode()


def _folded(value: Any, field: str, source: str) -> Mapping[str, Any]:
    """Return a mapping with its keys in lower case."""
    if not isinstance(value, dict):
        raise ConfigError("must be a mapping", field=field, source=source)
    return {str(key).lower(): each for key, each in value.items()}


def _section(document: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any] | None:
    if name.lower() not in document:
        return None
    return _folded(document[name.lower()], name, source)


def _texts(
    section: Mapping[str, Any] | None, name: str, field: str, source: str
) -> tuple[str, ...]:
    texts = (section or {}).get(field.lower()) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError("must be a list of strings", field=f"{name}.{field}", source=source)
    return tuple(texts)


def _prefixes(section: Mapping[str, Any], name: str, source: str) -> tuple[str, ...]:
    field = f"{name}.{_PREFIXES}"
    prefixes = _texts(section, name, _PREFIXES, source)
    if not prefixes:
        raise ConfigError("is required", field=field, source=source)
    for prefix in prefixes:
        if not _PREFIX.fullmatch(prefix):
            message = "must consist of lower case letters, digits and dashes"
            raise ConfigError(message, field=field, source=source, value=prefix)
    return prefixes
