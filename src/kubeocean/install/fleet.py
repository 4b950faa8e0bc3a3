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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kubeocean.api import group
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.fleet.clusters import CLUSTER_GROUP, MEMBER_CLUSTERS, MemberCluster
from kubeocean.api.fleet.definitions import hub_definitions, member_definitions
from kubeocean.api.fleet.inventory import INVENTORY_GROUP
from kubeocean.api.fleet.names import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    GUARD_RAIL_WEBHOOKS,
    HUB_ACCOUNT,
    MUTATING_WEBHOOKS,
    PROPERTY_CERTIFICATE_AUTHORITY,
    SYSTEM_NAMESPACE,
    VALIDATING_WEBHOOKS,
    WEBHOOK_CERTIFICATES,
)
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.group import DEFAULT, GROUP, Domain
from kubeocean.install.computing_objects import kept
from kubeocean.install.fleet_webhooks import (
    WebhookValues,
    certificate_objects,
    mount_certificate,
    webhook_service,
)
from kubeocean.install.limits import disruption_budget
from kubeocean.install.object_parts import RBAC, accounts, granted, labels, named, worker_labels
from kubeocean.install.permissions import Permission, Rights, Rule
from kubeocean.install.roles import REVIEWS
from kubeocean.install.templates import container, metrics_flags, pod_spec
from kubeocean.install.values import Values, WorkerValues
from kubeocean.runtime.access import Access
from kubeocean.runtime.objects import Json, Resource, Untyped, controller_of

__all__ = [
    "DEPLOYMENTS",
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
    "hub_objects",
    "hub_rights",
    "hub_workload",
    "identity_name",
    "join_problem",
    "member_cluster",
    "member_deployment",
    "member_identity",
    "member_objects",
    "member_rights",
    "token_secret",
]

MEMBER_ACCOUNT: Final = "fleet-member"
TOKEN_SECRET: Final = "hub-kubeconfig-secret"  # noqa: S105 - a name, and KubeFleet's
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
HEALTH_CHECKS: Final = "fleet-member-health-checks"  # a ConfigMap of a member
_NAME_VARIABLE: Final = "MEMBER_CLUSTER_NAME"
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
            # Statuses that members report back, onto selected objects of any kind
            Rule(("*/status",), ("patch",), "*"),
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
    """Return the ClusterRole and ClusterRoleBinding by which a binding's credential applies any
    kind.
    """
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


def join_problem(
    name: str, members: Iterable[MemberCluster], agent: Json | None, authority: str
) -> str:
    """Return why a cluster must not join as `name`; empty if it may.

    Two agents under one name overwrite each other's reports, and one cluster under two names gets
    every object twice. `agent` is the Deployment of the agent in the cluster, and `authority` the
    cluster's certificate authority.
    """
    present = {each.name: each for each in members if not each.deleting}
    own = _member_of(agent) if agent is not None else ""
    if own and own != name and own in present:
        return (
            f"cannot be joined by a cluster that is the member {own}; run kubeocean fleet leave"
            f" {own} first"
        )
    if name in present:
        owner = controller_of(present[name])
        if owner is not None and owner.kind == CLUSTER_BINDINGS.kind:
            return (
                "is a member without an agent, served by the syncer of its binding;"
                f" run kubeocean fleet leave {name} first"
            )
    if own != name and name in present:
        reported = present[name].status.properties.get(PROPERTY_CERTIFICATE_AUTHORITY)
        if reported is not None and authority and reported.value.strip() != authority.strip():
            return (
                "is the name of another cluster of the fleet, with another certificate authority;"
                f" choose another name, or run kubeocean fleet leave {name} first"
            )
    return ""


def _member_of(agent: Json) -> str:
    """Return the name of the member that the Deployment of an agent serves."""
    variables = agent["spec"]["template"]["spec"]["containers"][0].get("env") or ()
    named = (each.get("value", "") for each in variables if each["name"] == _NAME_VARIABLE)
    return next(named, "")


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


def hub_workload(values: Values, webhooks: WebhookValues | None = None) -> list[Json]:
    """Return the objects that run a hub and make its webhooks reachable; its Deployment is last."""
    webhooks = webhooks or WebhookValues()
    selector, own = {group.APP_NAME: HUB_ACCOUNT}, labels(values.domain)
    objects = [disruption_budget(HUB_ACCOUNT, SYSTEM_NAMESPACE, selector, labels=own)]
    if webhooks.enabled:
        objects.append(webhook_service(webhooks, selector, labels=own))
    if webhooks.enabled and webhooks.certificate_secret:
        objects += certificate_objects(webhooks, labels=own)
    return [*objects, _hub_deployment(values, webhooks)]


def _hub_deployment(values: Values, webhooks: WebhookValues) -> Json:
    """Return the Deployment of a hub."""
    arguments = ["hub", *_common(values), *webhooks.flags, f"--zap-log-level={values.log_level}"]
    program = container(values, "fleet", arguments)
    program["ports"].append(webhooks.port)
    deployment = _deployment(values, HUB_ACCOUNT, program)
    if webhooks.enabled and webhooks.certificate_secret:
        mount_certificate(deployment["spec"]["template"]["spec"], webhooks.certificate_secret)
    return deployment


def member_deployment(values: Values, connection: HubConnection) -> Json:
    """Return the Deployment of a member's agent."""
    arguments = [
        "member",
        *_common(values),
        f"--token-secret={SYSTEM_NAMESPACE}/{TOKEN_SECRET}",
        f"--zap-log-level={values.log_level}",
    ]
    env = [
        {"name": _NAME_VARIABLE, "value": connection.member},
        {"name": "HUB_SERVER_URL", "value": connection.server},
    ]
    if connection.insecure:
        arguments.append("--tls-insecure")
    elif connection.certificate_authority is not None:
        encoded = base64.b64encode(connection.certificate_authority).decode()
        env.append({"name": "HUB_CERTIFICATE_AUTHORITY", "value": encoded})
    return _deployment(values, MEMBER_ACCOUNT, container(values, "fleet", arguments, env=env))


def _common(values: Values) -> list[str]:
    domain = values.domain
    return [
        *metrics_flags(),
        f"--health-probe-bind-address=:{group.HEALTH_PORT}",
        *([f"--label-domain={domain.name}"] if domain != DEFAULT else []),
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
