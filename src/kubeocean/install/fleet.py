"""Objects of a fleet's installation: accounts, permissions and programs of a hub and of members.

A hub reads objects of all kinds, because placements select any kind, and writes the fleet's own
kinds, the namespaces of members, and their roles. A hub can grant a member only permissions that
the hub has itself. A member agent applies objects of any kind in its cluster, roles among them.

A member authenticates at the hub as a ServiceAccount of the hub, one for each member. A Secret in
the member holds the token, which the agent reads again when it is replaced.

The worker of a binding can be a member without an agent: its syncer acts as the agent, with the
credential of the binding. For this the owner grants a second set of permissions, *fleet*, beside
those for pods (`install.roles`), in a separate role that can be deleted alone.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kubeocean.api import group
from kubeocean.api.fleet.clusters import CLUSTER_GROUP, MEMBER_CLUSTERS
from kubeocean.api.fleet.definitions import hub_definitions, member_definitions
from kubeocean.api.fleet.inventory import INVENTORY_GROUP
from kubeocean.api.fleet.names import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    GUARD_RAIL_WEBHOOKS,
    MUTATING_WEBHOOKS,
    SYSTEM_NAMESPACE,
    VALIDATING_WEBHOOKS,
    WEBHOOK_CERTIFICATES,
)
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.group import DEFAULT, GROUP, Domain
from kubeocean.install.computing_objects import kept
from kubeocean.install.object_parts import RBAC, accounts, granted, labels, named, worker_labels
from kubeocean.install.permissions import Permission, Rights, Rule
from kubeocean.install.roles import REVIEWS
from kubeocean.install.templates import container, metrics_flags, pod_spec
from kubeocean.install.values import Values, WorkerValues
from kubeocean.runtime.access import Access
from kubeocean.runtime.objects import Json

__all__ = [
    "HEALTH_CHECKS",
    "HUB_ACCOUNT",
    "MEMBER_ACCOUNT",
    "TOKEN_SECRET",
    "HubConnection",
    "agentless_objects",
    "agentless_rights",
    "agentless_roles",
    "applier_permissions",
    "health_checks_map",
    "hub_deployment",
    "hub_objects",
    "hub_rights",
    "identity_name",
    "member_cluster",
    "member_deployment",
    "member_identity",
    "member_objects",
    "member_rights",
    "token_secret",
]

HUB_ACCOUNT: Final = "fleet-hub"
MEMBER_ACCOUNT: Final = "fleet-member"
TOKEN_SECRET: Final = "hub-kubeconfig-secret"  # noqa: S105 - a name, and KubeFleet's
HEALTH_CHECKS: Final = "fleet-member-health-checks"  # a ConfigMap of a member
_ELECTION_NAMESPACE: Final = "kube-system"  # of the Lease of member agents
_READ: Final = ("get", "list", "watch")
_ELECTION: Final = Rule(("leases",), ("get", "create", "patch"), "coordination.k8s.io")
_ALL: Final = ("*",)
_ADMISSION: Final = "admissionregistration.k8s.io"
_MANAGE: Final = ("create", "patch", "delete")


def hub_rights() -> Rights:
    """Return the permissions of a hub's ServiceAccount in its cluster."""
    return Rights(
        (
            Rule(_ALL, _READ, "*"),
            Rule(_ALL, _ALL, CLUSTER_GROUP),
            Rule(_ALL, _ALL, PLACEMENT_GROUP),
            Rule(_ALL, _ALL, NETWORKING_GROUP),  # which the hub grants to members
            Rule(("events",), ("update", "patch", "create")),
            Rule(("namespaces",), ("create", "patch", "delete")),
            Rule(("roles", "rolebindings"), ("create", "patch", "delete"), RBAC),
            *(
                Rule((resource,), _MANAGE, _ADMISSION, names)
                for resource, names in (
                    ("mutatingwebhookconfigurations", (MUTATING_WEBHOOKS,)),
                    (
                        "validatingwebhookconfigurations",
                        (VALIDATING_WEBHOOKS, GUARD_RAIL_WEBHOOKS),
                    ),
                    ("validatingadmissionpolicies", ADMISSION_POLICIES),
                    ("validatingadmissionpolicybindings", ADMISSION_POLICY_BINDINGS),
                )
            ),
            # Of members without an agent: the annotation and the condition of their bindings.
            Rule(("clusterbindings", "clusterbindings/status"), ("patch",), GROUP),
            *REVIEWS,  # to authorize callers that read metrics
        ),
        {
            SYSTEM_NAMESPACE: (
                _ELECTION,
                Rule(("secrets",), ("create",)),
                Rule(("secrets",), ("update",), names=(WEBHOOK_CERTIFICATES,)),
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


def agentless_rights() -> Rights:
    """Return the permissions that a binding's credential needs to apply objects of any kind."""
    return Rights(member_rights().everywhere)


def applier_permissions() -> Iterator[Permission]:
    """Yield the permissions without which no object at all can be applied in a member.

    An owner may grant fewer kinds of objects than `agentless_rights`: an object that the credential
    may not write is reported as failed, and the others are applied.
    """
    group = "apiextensions.k8s.io"
    yield from Rule(("customresourcedefinitions",), ("list", "watch"), group).permissions()
    verbs = (*_READ, "create", "patch", "delete")
    yield from Rule(("appliedworks",), verbs, PLACEMENT_GROUP).permissions()
    yield from Rule(("appliedworks/status",), ("patch",), PLACEMENT_GROUP).permissions()


def agentless_objects(values: WorkerValues) -> list[Json]:
    """Return the definitions and roles with which a worker can be a member without an agent."""
    return [*member_definitions(), *agentless_roles(values)]


def agentless_roles(values: WorkerValues) -> list[Json]:
    """Return the ClusterRole by which a binding's credential applies any kind, and its binding."""
    return granted(
        values.fleet_role,
        agentless_rights(),
        account=values.account,
        namespace=values.mount_namespace,
        labels=worker_labels(values.domain),
    )


def hub_objects(domain: Domain = DEFAULT) -> list[Json]:
    """Return the CustomResourceDefinitions, namespace, ServiceAccount and roles of a hub."""
    definitions = map(kept, hub_definitions())
    return [*definitions, *_account_objects(HUB_ACCOUNT, hub_rights(), domain)]


def member_objects(domain: Domain = DEFAULT) -> list[Json]:
    """Return the CustomResourceDefinitions, namespace, ServiceAccount and roles of a member."""
    definitions = map(kept, member_definitions())
    return [*definitions, *_account_objects(MEMBER_ACCOUNT, member_rights(), domain)]


def _account_objects(account: str, rights: Rights, domain: Domain) -> list[Json]:
    own = labels(domain)
    return [
        kept(named("Namespace", "v1", SYSTEM_NAMESPACE, labels=own)),
        *accounts((account,), SYSTEM_NAMESPACE, labels=own),
        *granted(account, rights, account=account, namespace=SYSTEM_NAMESPACE, labels=own),
    ]


def identity_name(member: str) -> str:
    """Return the name of the ServiceAccount, on the hub, that a member authenticates as."""
    return f"fleet-member-agent-{member}"


def member_identity(member: str, domain: Domain = DEFAULT) -> Json:
    """Return the ServiceAccount, on the hub, that a member authenticates as."""
    (account,) = accounts((identity_name(member),), SYSTEM_NAMESPACE, labels=labels(domain))
    return account


def member_cluster(member: str, *, heartbeat_s: int) -> Json:
    """Return the MemberCluster of a member whose identity is its own ServiceAccount."""
    identity = {
        "kind": "ServiceAccount",
        "name": identity_name(member),
        "namespace": SYSTEM_NAMESPACE,
    }
    spec = {"identity": identity, "heartbeatPeriodSeconds": heartbeat_s}
    return {
        "apiVersion": MEMBER_CLUSTERS.api_version,
        "kind": MEMBER_CLUSTERS.kind,
        "metadata": {"name": member},
        "spec": spec,
    }


def token_secret(token: str, domain: Domain = DEFAULT) -> Json:
    """Return the Secret of a member that holds its token for the hub."""
    data = {"token": base64.b64encode(token.encode()).decode()}
    own = labels(domain)
    return named("Secret", "v1", TOKEN_SECRET, namespace=SYSTEM_NAMESPACE, labels=own, data=data)


def health_checks_map(content: str, domain: Domain = DEFAULT) -> Json:
    """Return the ConfigMap of a member that holds the file of its agent's `--health-checks`."""
    own, data = labels(domain), {"checks.yaml": content}
    return named(
        "ConfigMap", "v1", HEALTH_CHECKS, namespace=SYSTEM_NAMESPACE, labels=own, data=data
    )


@dataclass(frozen=True, slots=True)
class HubConnection:
    """Name of a member, and server and certificate authority of the hub for its agent."""

    member: str
    server: str
    certificate_authority: bytes | None = None  # PEM
    insecure: bool = False

    @classmethod
    def from_access(cls, member: str, access: Access, server: str = "") -> HubConnection:
        """Return the connection of an administrator's `access`, or with `server` as the URL."""
        return cls(member, server or access.server, access.ca, access.insecure)


def hub_deployment(values: Values) -> Json:
    """Return the Deployment of a hub."""
    arguments = ["hub", *_addresses(), f"--zap-log-level={values.log_level}"]
    return _deployment(values, HUB_ACCOUNT, container(values, "fleet", arguments))


def member_deployment(values: Values, connection: HubConnection) -> Json:
    """Return the Deployment of a member's agent."""
    arguments = [
        "member",
        *_addresses(),
        f"--token-secret={SYSTEM_NAMESPACE}/{TOKEN_SECRET}",
        f"--zap-log-level={values.log_level}",
    ]
    env = [
        {"name": "MEMBER_CLUSTER_NAME", "value": connection.member},
        {"name": "HUB_SERVER_URL", "value": connection.server},
    ]
    if connection.insecure:
        arguments.append("--tls-insecure")
    elif connection.certificate_authority is not None:
        encoded = base64.b64encode(connection.certificate_authority).decode()
        env.append({"name": "HUB_CERTIFICATE_AUTHORITY", "value": encoded})
    return _deployment(values, MEMBER_ACCOUNT, container(values, "fleet", arguments, env=env))


def _addresses() -> list[str]:
    return [
        *metrics_flags(),
        f"--health-probe-bind-address=:{group.HEALTH_PORT}",
    ]


def _deployment(values: Values, account: str, program: Json) -> Json:
    selector = {group.APP_NAME: account}
    own = labels(values.domain) | selector
    pod = pod_spec(values, account=account, containers=[program], selector=selector)
    return named(
        "Deployment",
        "apps/v1",
        account,
        namespace=SYSTEM_NAMESPACE,
        labels=own,
        spec={
            "replicas": values.replicas,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": own}, "spec": pod},
        },
    )
