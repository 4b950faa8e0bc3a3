"""Rights that the accounts of our programs lack in the computing cluster.

The API server is asked by SubjectAccessReviews. For a user without the right to create these, the
roles of our names are compared with the declared rights; rights granted in another way are not
seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kubeocean.api.group import SYSTEM_NAMESPACE, Domain
from kubeocean.errors import Forbidden, NotFound
from kubeocean.install.access_reviews import granted_to
from kubeocean.install.object_parts import RBAC
from kubeocean.install.permissions import Permission
from kubeocean.install.roles import manager_rights, proxier_rights, syncer_rights
from kubeocean.manager.preflight import summary
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json, Resource, Untyped

__all__ = ["covers", "declared", "missing_rights"]

_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, Untyped)
_WIDE: Final = (
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped),
    Resource(RBAC, "v1", "clusterroles", "ClusterRole", False, Untyped),
)
_LOCAL: Final = (
    Resource(RBAC, "v1", "rolebindings", "RoleBinding", True, Untyped),
    Resource(RBAC, "v1", "roles", "Role", True, Untyped),
)
_AUTHENTICATION: Final = Permission(
    "get", "", "configmaps", SYSTEM_NAMESPACE, "extension-apiserver-authentication"
)


def declared(domain: Domain) -> dict[str, tuple[Permission, ...]]:
    """Return the permissions that each account needs, by its name."""
    return {
        domain.manager: tuple(manager_rights(domain).permissions()),
        domain.syncer: tuple(syncer_rights(domain).permissions()),
        domain.proxier: (*proxier_rights().permissions(), _AUTHENTICATION),
    }


async def missing_rights(client: Client, domain: Domain) -> dict[str, tuple[str, ...] | None]:
    """Return the rights that each service account lacks; None if the account does not exist.

    Without any of the accounts Kubeocean is not installed, and nothing is missing.

    :raises ApiError: the rights could not be read.
    """
    namespace = domain.system_namespace
    accounts = {each.name for each in (await client.list(_ACCOUNTS, namespace)).items}
    permissions = declared(domain)
    if not accounts & set(permissions):
        return {}
    return {
        name: await _lacks(client, name, namespace, needed) if name in accounts else None
        for name, needed in permissions.items()
    }


async def _lacks(
    client: Client, account: str, namespace: str, needed: tuple[Permission, ...]
) -> tuple[str, ...]:
    try:
        has = set(await granted_to(client, f"{namespace}:{account}", needed))
    except Forbidden:
        # The RoleBinding for extension-apiserver-authentication has a name of its own.
        needed = tuple(each for each in needed if each != _AUTHENTICATION)
        rules = {
            where: await _rules(client, account, namespace, where)
            for where in {each.namespace for each in needed}
        }
        has = {each for each in needed if covers(rules, each)}
    return tuple(summary(each for each in needed if each not in has))


async def _rules(client: Client, account: str, namespace: str, where: str) -> tuple[Json, ...]:
    """Return the rules of the role of our name, if the service account is bound to that role."""
    bindings, roles = _LOCAL if where else _WIDE
    try:
        bound = (await client.get(bindings, account, where, keep_raw=True)).content()
        role = (await client.get(roles, bound["roleRef"]["name"], where, keep_raw=True)).content()
    except NotFound:
        return ()
    subjects = bound.get("subjects") or ()
    if not any(
        each.get("kind") == "ServiceAccount"
        and (each.get("namespace"), each.get("name")) == (namespace, account)
        for each in subjects
    ):
        return ()
    return tuple(role.get("rules") or ())


def covers(rules: Mapping[str, Iterable[Json]], permission: Permission) -> bool:
    """Whether rules of the whole cluster (""), or of the namespace, grant a permission."""
    holding = [*rules.get("", ()), *rules.get(permission.namespace, ())]
    return any(
        _has(rule, "verbs", permission.verb)
        and _has(rule, "apiGroups", permission.group)
        and _has(rule, "resources", permission.resource)
        and (not rule.get("resourceNames") or permission.name in rule["resourceNames"])
        for rule in holding
    )


def _has(rule: Json, field: str, value: str) -> bool:
    values = rule.get(field) or ()
    return value in values or "*" in values
