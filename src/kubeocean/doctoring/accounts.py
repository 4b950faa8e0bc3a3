"""Accounts: what our own programs may not do in the computing cluster, although they should.

The server itself is asked, as it decides. Who may not ask for others compares the roles of our
names with what is declared: rights that somebody grants in another way are not seen then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kubeocean.api.group import SYSTEM_NAMESPACE, Domain
from kubeocean.errors import Forbidden, NotFound
from kubeocean.installation.parts import RBAC
from kubeocean.installation.reviews import granted_to
from kubeocean.installation.rights import Permission
from kubeocean.installation.roles import manager_rights, proxier_rights, syncer_rights
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
    """What each of our accounts should be allowed, by its name."""
    return {
        domain.manager: tuple(manager_rights(domain).permissions()),
        domain.syncer: tuple(syncer_rights(domain).permissions()),
        domain.proxier: (*proxier_rights(domain).permissions(), _AUTHENTICATION),
    }


async def missing_rights(client: Client, domain: Domain) -> dict[str, tuple[str, ...] | None]:
    """What each account lacks, by its name; None: there is no such account.

    Where there is none at all nobody has installed us, and nothing is missing.

    :raises ApiError: nobody could say.
    """
    namespace = domain.system_namespace
    there = {each.name for each in (await client.list(_ACCOUNTS, namespace)).items}
    should = declared(domain)
    if not there & set(should):
        return {}
    return {
        name: await _lacks(client, name, namespace, needed) if name in there else None
        for name, needed in should.items()
    }


async def _lacks(
    client: Client, account: str, namespace: str, needed: tuple[Permission, ...]
) -> tuple[str, ...]:
    try:
        has = set(await granted_to(client, f"{namespace}:{account}", needed))
    except Forbidden:
        # Which binding lets a proxier read how callers are authenticated is not compared.
        needed = tuple(each for each in needed if each != _AUTHENTICATION)
        rules = {
            where: await _rules(client, account, namespace, where)
            for where in {each.namespace for each in needed}
        }
        has = {each for each in needed if covers(rules, each)}
    return tuple(summary(each for each in needed if each not in has))


async def _rules(client: Client, account: str, namespace: str, where: str) -> tuple[Json, ...]:
    """The rules of the role of our name there, if the account has it."""
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


def covers(rules: Mapping[str, Iterable[Json]], asked: Permission) -> bool:
    """Whether rules of the whole cluster (""), or of the namespace, allow it."""
    found = [*rules.get("", ()), *rules.get(asked.namespace, ())]
    return any(
        _has(rule, "verbs", asked.verb)
        and _has(rule, "apiGroups", asked.group)
        and _has(rule, "resources", asked.resource)
        and (not rule.get("resourceNames") or asked.name in rule["resourceNames"])
        for rule in found
    )


def _has(rule: Json, field: str, value: str) -> bool:
    there = rule.get(field) or ()
    return value in there or "*" in there
