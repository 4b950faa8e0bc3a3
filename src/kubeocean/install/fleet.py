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
from kubeocean.api.fleet.clusters import (
    CLUSTER_GROUP,
    MEMBER_CLUSTERS,
    MemberCluster,
    MemberClusterSpec,
)
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
    WEBHOOK_SERVICE,
)
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.group import DEFAULT, GROUP, Domain
from kubeocean.install.computing_objects import kept
from kubeocean.install.credentials import server_option
from kubeocean.install.data_files import read_object, read_objects
from kubeocean.install.limits import disruption_budget
from kubeocean.install.object_parts import RBAC, accounts, granted, labels, worker_labels
from kubeocean.install.permissions import Permission, Rights, Rule
from kubeocean.install.roles import REVIEWS
from kubeocean.install.templates import program_values
from kubeocean.install.values import IMAGE, Values, WorkerValues
from kubeocean.runtime.access import Access
from kubeocean.runtime.objects import Json, OwnerReference, Resource, Untyped, controller_of

__all__ = [
    "DEPLOYMENTS",
    "HEALTH_CHECKS",
    "HUB_ACCOUNT",
    "MEMBER_ACCOUNT",
    "TOKEN_SECRET",
    "HubConnection",
    "MemberOptions",
    "WebhookValues",
    "agentless_objects",
    "agentless_rights",
    "agentless_roles",
    "applier_permissions",
    "binding_owner",
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
    "second_name_problem",
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
    """Return the CustomResourceDefinitions and RBAC objects that let a worker be a member without
    an agent."""
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
        read_object("fleet/namespace.yaml", domain=domain),
        *accounts((account,), SYSTEM_NAMESPACE, labels=own),
        *granted(account, rights, account=account, namespace=SYSTEM_NAMESPACE, labels=own),
    ]


def identity_name(member: str) -> str:
    """Return the name of the ServiceAccount, on the hub, that a member authenticates as."""
    return f"fleet-member-agent-{member}"


def member_identity(member: str, domain: Domain = DEFAULT, *, owner_uid: str = "") -> Json:
    """Return the ServiceAccount, on the hub, that a member authenticates as.

    With `owner_uid`, the UID of its MemberCluster, the account is garbage-collected when the member
    has left, and tokens of the account are no longer accepted.
    """
    (account,) = accounts((identity_name(member),), SYSTEM_NAMESPACE, labels=labels(domain))
    if owner_uid:
        account["metadata"]["ownerReferences"] = [
            {
                "apiVersion": MEMBER_CLUSTERS.api_version,
                "kind": MEMBER_CLUSTERS.kind,
                "name": member,
                "uid": owner_uid,
            }
        ]
    return account


def member_cluster(member: str, *, heartbeat_s: int) -> Json:
    """Return the MemberCluster of a member whose identity is its own ServiceAccount."""
    return read_object(
        "fleet/member_cluster.yaml",
        member=member,
        account=identity_name(member),
        heartbeat_s=heartbeat_s,
    )


def join_problem(
    name: str,
    members: Iterable[MemberCluster],
    agent: Json | None,
    authority: str,
    bound: str = "",
) -> str:
    """Return why a cluster must not join as `name`; empty if it may.

    Two agents under one name overwrite each other's reports, and one cluster under two names gets
    every object twice. `agent` is the Deployment of the agent in the cluster, `authority` the
    cluster's certificate authority, and `bound` the member without an agent that the cluster is.
    """
    present = {each.name: each for each in members if not each.deleting}
    if problem := second_name_problem(name, present.values(), agent, bound):
        return problem
    own = _member_of(agent) if agent is not None else ""
    if name in present:
        owner = binding_owner(present[name])
        if owner is not None:
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


def second_name_problem(
    name: str, members: Iterable[MemberCluster], agent: Json | None, bound: str
) -> str:
    """Return why a cluster that is a member already must not join as `name`; empty if it may.

    `agent` is the Deployment of the agent in the cluster, and `bound` the name of the member
    without an agent that the cluster is.
    """
    present = {each.name for each in members if not each.deleting}
    with_agent = _member_of(agent) if agent is not None else ""
    for own in (with_agent, bound):
        if own and own != name and own in present:
            return (
                f"cannot be joined by a cluster that is the member {own}; run kubeocean fleet leave"
                f" {own} first"
            )
    return ""


def binding_owner(member: MemberCluster) -> OwnerReference | None:
    """Return the reference of a member without an agent to its ClusterBinding; None if the member
    has an agent.
    """
    owner = controller_of(member)
    return owner if owner is not None and owner.kind == CLUSTER_BINDINGS.kind else None


def _member_of(agent: Json) -> str:
    """Return the name of the member that the Deployment of an agent serves."""
    variables = _program(agent).get("env") or ()
    named = (each.get("value", "") for each in variables if each["name"] == _NAME_VARIABLE)
    return next(named, "")


def _program(agent: Json) -> Json:
    container: Json = agent["spec"]["template"]["spec"]["containers"][0]
    return container


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Options of `kubeocean fleet join`; None or empty means that an option was not given."""

    heartbeat_s: int | None = None
    hub_url: str = ""
    image: str = ""

    def with_present(
        self, name: str, members: Iterable[MemberCluster], agent: Json | None, domain: Domain
    ) -> MemberOptions:
        """Return the options with the present values of those that were not given.

        `agent` is the Deployment of the agent in the cluster. An image of Kubeocean itself is not
        kept, so that a join with a newer program updates the agent.
        """
        heartbeats = [
            each.spec.heartbeat_period_seconds
            for each in members
            if each.name == name and not each.deleting
        ]
        url = image = ""
        if agent is not None and _member_of(agent) == name:
            annotations = agent["metadata"].get("annotations") or {}
            url = annotations.get(server_option(domain), "")
            stored = str(_program(agent).get("image") or "")
            image = stored if _repository(stored) != _repository(IMAGE) else ""
        heartbeat_s = next(iter(heartbeats), MemberClusterSpec().heartbeat_period_seconds)
        return MemberOptions(
            heartbeat_s if self.heartbeat_s is None else self.heartbeat_s,
            self.hub_url or url,
            self.image or image or IMAGE,
        )


def _repository(image: str) -> str:
    return image.rpartition(":")[0]


def token_secret(token: str, domain: Domain = DEFAULT) -> Json:
    """Return the Secret of a member that holds its token for the hub."""
    return read_object(
        "fleet/token_secret.yaml", domain=domain, token=base64.b64encode(token.encode()).decode()
    )


def health_checks_map(content: str, domain: Domain = DEFAULT) -> Json:
    """Return the ConfigMap of a member that holds the file of its agent's `--health-checks`."""
    return read_object("fleet/health_checks.yaml", domain=domain, content=content)


@dataclass(frozen=True, slots=True)
class WebhookValues:
    """Values of a hub's webhooks, with the names of KubeFleet's chart.

    A hub issues its certificates itself and shares them between its replicas, unless cert-manager
    does.

    - `connection`: whether API servers reach the hub by its Service (`service`) or by a URL of that
      Service (`url`).
    - `certificate_secret`: Secret in which cert-manager stores the certificate; empty if the hub
      issues its certificates.
    """

    enabled: bool = True
    service: str = WEBHOOK_SERVICE
    connection: str = "service"
    guard_rail: bool = False
    certificate_secret: str = ""


@dataclass(frozen=True, slots=True)
class HubConnection:
    """Name of a member, and server and certificate authority of the hub for its agent."""

    member: str
    server: str
    certificate_authority: bytes | None = None  # PEM
    insecure: bool = False
    is_chosen: bool = False  # whether a user chose the server, so that a repeated join keeps it

    @classmethod
    def from_access(cls, member: str, access: Access, server: str = "") -> HubConnection:
        """Return the connection of an administrator's `access`, or with `server` as the URL."""
        return cls(member, server or access.server, access.ca, access.insecure, bool(server))


def hub_workload(values: Values, webhooks: WebhookValues | None = None) -> list[Json]:
    """Return the objects that run a hub and make its webhooks reachable; its Deployment is last."""
    webhooks = webhooks or WebhookValues()
    selector, own = {group.APP_NAME: HUB_ACCOUNT}, labels(values.domain)
    objects = [disruption_budget(HUB_ACCOUNT, SYSTEM_NAMESPACE, selector, labels=own)]
    common: Json = {"service": webhooks.service, "domain": values.domain}
    if webhooks.enabled:
        objects.append(read_object("fleet/hub_webhook.yaml", **common))
    if webhooks.enabled and (secret := webhooks.certificate_secret):
        objects += read_objects("fleet/hub_certificate.yaml", certificate_secret=secret, **common)
    return [*objects, _hub_deployment(values, webhooks)]


def _hub_deployment(values: Values, webhooks: WebhookValues) -> Json:
    """Return the Deployment of a hub."""
    deployment = read_object(
        "fleet/hub.yaml",
        webhooks=webhooks,
        enable_webhook=_word(webhooks.enabled),
        enable_guard_rail=_word(webhooks.guard_rail),
        use_cert_manager=_word(bool(webhooks.certificate_secret)),
        label_domain=_label_domain(values),
        **program_values(values),
    )
    if not (webhooks.enabled and webhooks.certificate_secret):
        pod = deployment["spec"]["template"]["spec"]
        del pod["volumes"], pod["containers"][0]["volumeMounts"]
    return deployment


def member_deployment(values: Values, connection: HubConnection) -> Json:
    """Return the Deployment of a member's agent."""
    authority: Json | None = None
    if connection.certificate_authority is not None and not connection.insecure:
        encoded = base64.b64encode(connection.certificate_authority).decode()
        authority = {"name": "HUB_CERTIFICATE_AUTHORITY", "value": encoded}
    chosen = {server_option(values.domain): connection.server} if connection.is_chosen else None
    return read_object(
        "fleet/member.yaml",
        connection=connection,
        annotations=chosen,
        certificate_authority=authority,
        insecure="--tls-insecure" if connection.insecure else None,
        label_domain=_label_domain(values),
        **program_values(values),
    )


def _label_domain(values: Values) -> str | None:
    """Return the flag `--label-domain` of a program; None for the default domain."""
    return f"--label-domain={values.domain.name}" if values.domain != DEFAULT else None


def _word(value: bool) -> str:
    return "true" if value else "false"
