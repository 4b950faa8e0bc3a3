"""Rights that the accounts of our programs lack in the computing cluster.

The API server is asked by SubjectAccessReviews. For a user without the right to create these, the
roles of our names are compared with the declared rights; rights granted in another way are not
seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kubeocean.api import naming
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import SYSTEM_NAMESPACE, Domain
from kubeocean.errors import Forbidden, NotFound
from kubeocean.install.access_reviews import granted_to
from kubeocean.install.object_parts import RBAC
from kubeocean.install.permissions import Permission
from kubeocean.install.roles import (
    binding_syncer_rights,
    manager_rights,
    proxier_own_rights,
    proxier_rights,
    secret_rules,
    syncer_own_rights,
    syncer_rights,
)
from kubeocean.manager.preflight import summary
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json, Resource, Untyped

__all__ = ["covers", "declared", "declared_for", "missing_rights"]

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
    """Return the permissions that the manager and each shared account need, by account."""
    return {
        domain.manager: tuple(manager_rights(domain).permissions()),
        domain.syncer: tuple(syncer_rights(domain).permissions()),
        domain.proxier: (*proxier_rights().permissions(), _AUTHENTICATION),
    }


def declared_for(binding: ClusterBinding, domain: Domain) -> dict[str, tuple[Permission, ...]]:
    """Return the permissions that the accounts of one binding need, by account.

    Those to Secrets are in the namespaces that the binding's status lists as granted.
    """
    cluster_id, secret = binding.spec.cluster_id, binding.spec.secret_ref.name
    syncer = naming.syncer_deployment(cluster_id, domain)
    proxier = naming.proxier_deployment(cluster_id, domain)
    namespace = domain.system_namespace
    syncers = syncer_own_rights(
        binding=binding.name, secret=secret, lease=syncer, namespace=namespace
    )
    proxiers = proxier_own_rights((secret,), namespace)
    granted = (
        permission
        for each in binding.status.secret_namespaces.granted or ()
        for rule in secret_rules()
        for permission in rule.permissions(each)
    )
    common = binding_syncer_rights(domain).permissions()
    return {
        syncer: (*common, *syncers.permissions(), *granted),
        proxier: (*declared(domain)[domain.proxier], *proxiers.permissions()),
    }


async def missing_rights(
    client: Client, domain: Domain, bindings: Iterable[ClusterBinding] = ()
) -> dict[str, tuple[str, ...] | None]:
    """Return the rights that each service account lacks; None if the account does not exist.

    Accounts of bindings are included if they exist: a binding may use the shared accounts. Without
    any other account Kubeocean is not installed, and nothing is missing.

    :raises ApiError: the rights could not be read.
    """
    namespace = domain.system_namespace
    accounts = {each.name for each in (await client.list(_ACCOUNTS, namespace)).items}
    permissions = declared(domain)
    if not accounts & set(permissions):
        return {}
    for binding in bindings:
        own = declared_for(binding, domain)
        permissions |= {name: needed for name, needed in own.items() if name in accounts}
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
    """Return the rules of the roles of our names to which a service account is bound.

    The account of a binding has a second ClusterRoleBinding, to the role that all share. That of a
    syncer has a RoleBinding in each namespace of which it reads Secrets.
    """
    names = (account, f"{account}-secrets" if where else f"{account}-shared", f"{account}-common")
    rules: list[Json] = []
    for name in names:
        rules += await _bound_rules(client, name, account, namespace, where)
    return tuple(rules)


async def _bound_rules(
    client: Client, binding: str, account: str, namespace: str, where: str
) -> tuple[Json, ...]:
    """Return the rules of the role that a binding grants to a service account."""
    bindings, roles = _LOCAL if where else _WIDE
    try:
        bound = (await client.get(bindings, binding, where, keep_raw=True)).content()
        reference = bound["roleRef"]
        local = reference["kind"] == roles.kind and roles.namespaced
        resource, home = (roles, where) if local else (_WIDE[1], "")
        role = (await client.get(resource, reference["name"], home, keep_raw=True)).content()
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
