"""Objects of a fleet's installation: namespace, accounts and permissions of a hub and of members.

A hub reads objects of all kinds, because placements select any kind, and writes the fleet's own
kinds, the namespaces of members, and their roles. It can grant a member nothing that it does not
have itself. A member agent applies objects of any kind in its cluster, roles among them.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api.fleet.clusters import CLUSTER_GROUP
from kubeocean.api.fleet.definitions import hub_definitions, member_definitions
from kubeocean.api.fleet.inventory import INVENTORY_GROUP
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.install.object_parts import RBAC, accounts, granted, labels, named
from kubeocean.install.permissions import Rights, Rule
from kubeocean.runtime.objects import Json

__all__ = [
    "HUB_ACCOUNT",
    "MEMBER_ACCOUNT",
    "hub_objects",
    "hub_rights",
    "member_objects",
    "member_rights",
]

HUB_ACCOUNT: Final = "fleet-hub"
MEMBER_ACCOUNT: Final = "fleet-member"
_ELECTION_NAMESPACE: Final = "kube-system"  # of member agents
_READ: Final = ("get", "list", "watch")
_ELECTION: Final = Rule(("leases",), ("get", "create", "patch"), "coordination.k8s.io")
_ALL: Final = ("*",)


def hub_rights() -> Rights:
    """Return the permissions of a hub."""
    return Rights(
        (
            Rule(_ALL, _READ, "*"),
            Rule(_ALL, _ALL, CLUSTER_GROUP),
            Rule(_ALL, _ALL, PLACEMENT_GROUP),
            Rule(_ALL, _ALL, NETWORKING_GROUP),  # to be able to grant it to members
            Rule(("events",), ("update", "patch", "create")),
            Rule(("namespaces",), ("create", "patch", "delete")),
            Rule(("roles", "rolebindings"), ("create", "patch", "delete"), RBAC),
        ),
        {
            SYSTEM_NAMESPACE: (
                _ELECTION,
                Rule(("clusterprofiles",), ("create", "patch", "delete"), INVENTORY_GROUP),
                Rule(("clusterprofiles/status",), ("update",), INVENTORY_GROUP),
            )
        },
    )


def member_rights() -> Rights:
    """Return the permissions of a member agent in its own cluster."""
    return Rights(
        (
            Rule(_ALL, (*_READ, "create", "update", "patch", "delete"), "*"),
            # Roles are applied like all other objects.
            Rule(("roles", "clusterroles"), ("bind", "escalate"), RBAC),
        ),
        {_ELECTION_NAMESPACE: (_ELECTION,)},
    )


def hub_objects(domain: Domain = DEFAULT) -> list[Json]:
    """Return the definitions, the namespace, the account and the permissions of a hub."""
    return [*hub_definitions(), *_account_objects(HUB_ACCOUNT, hub_rights(), domain)]


def member_objects(domain: Domain = DEFAULT) -> list[Json]:
    """Return the definitions, the namespace, the account and the permissions of a member."""
    return [*member_definitions(), *_account_objects(MEMBER_ACCOUNT, member_rights(), domain)]


def _account_objects(account: str, rights: Rights, domain: Domain) -> list[Json]:
    own = labels(domain)
    return [
        named("Namespace", "v1", SYSTEM_NAMESPACE, labels=own),
        *accounts((account,), SYSTEM_NAMESPACE, labels=own),
        *granted(account, rights, account=account, namespace=SYSTEM_NAMESPACE, labels=own),
    ]
