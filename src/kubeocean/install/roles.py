"""Permissions of Kubeocean's accounts: only those that its programs use.

In a worker, syncer and proxier share the credential of one account. The account writes in the mount
namespace only, with two exceptions: finalizers and status of policies, and events about policies.
The account reads nodes, volumes and CSI drivers; pods of all namespaces, because resources that
these pods request are not lent; and one namespace, the UID of which identifies the cluster. Further
permissions are add-ons that the owner of the worker may grant:

- `volumes`: create PersistentVolumes, which claims of pods need;
- `node-labels`: label lent nodes with their policy;
- `metrics`: request tokens of another account, which may read metrics of kubelets only,
  because each kubelet sees the token that is sent to it;
- `renewal`: request tokens of the account itself, with which the manager renews the credential;
  an admission policy admits only tokens that are bound to the credential's Secret, and without
  admission policies the permission is not granted;
- `priority-classes`: create the priority class of lent pods again after its deletion;
- `log-configs`: copy LogConfigs, which are cluster-scoped.

In the computing cluster the manager creates an account for the syncers and one for the proxiers of
each binding. They have the permissions of all syncers or proxiers (`binding_syncer_rights`,
`proxier_rights`), and those for objects of their own binding (`syncer_own_rights`,
`proxier_own_rights`). Secrets are not among them: the manager binds the role of `secret_rules` to
the account of a syncer in each namespace in which pods of its virtual nodes, or their volumes, need
Secrets. Templates of the earlier implementation use an account that all bindings share, which reads
Secrets of all namespaces (`syncer_rights`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from kubeocean.api.group import (
    DEFAULT,
    GROUP,
    LOG_CONFIG_GROUP,
    NODE_LEASE_NAMESPACE,
    SYSTEM_NAMESPACE,
    Domain,
)
from kubeocean.install.permissions import Permission, Rights, Rule
from kubeocean.runtime.objects import Json

__all__ = [
    "ALL_ADD_ONS",
    "AUTHENTICATION_READER",
    "DEFAULT_ADD_ONS",
    "EVENTS_NAMESPACE",
    "IDENTITY",
    "READ_METRICS",
    "REVIEWS",
    "AddOn",
    "add_on_rule",
    "binding_syncer_rights",
    "binding_syncer_role",
    "egress_rule",
    "manager_rights",
    "metrics_rights",
    "proxier_own_rights",
    "proxier_rights",
    "secret_role",
    "secret_rules",
    "shared_proxier_rights",
    "shared_syncer_rights",
    "syncer_own_rights",
    "syncer_rights",
    "worker_rights",
]


class AddOn(StrEnum):
    """Additional permissions that the owner of a worker may grant."""

    VOLUMES = "volumes"
    NODE_LABELS = "node-labels"
    METRICS = "metrics"
    RENEWAL = "renewal"
    PRIORITY_CLASSES = "priority-classes"
    LOG_CONFIGS = "log-configs"


ALL_ADD_ONS: Final = tuple(AddOn)
DEFAULT_ADD_ONS: Final = (AddOn.VOLUMES, AddOn.NODE_LABELS, AddOn.METRICS, AddOn.RENEWAL)
EVENTS_NAMESPACE: Final = "default"  # events about cluster-scoped objects are stored here
# A Role that Kubernetes has in kube-system, to read the API server's client authentication.
AUTHENTICATION_READER: Final = "extension-apiserver-authentication-reader"

_READ: Final = ("get", "list", "watch")
_LIST_WATCH: Final = ("list", "watch")
_READ_WRITE: Final = ("get", "list", "watch", "create", "patch", "delete")
_CREATE_PATCH: Final = ("create", "patch")
IDENTITY: Final = Rule(("namespaces",), ("get",), names=(SYSTEM_NAMESPACE,))  # its UID
_RBAC: Final = "rbac.authorization.k8s.io"
_ELECTION: Final = Rule(("leases",), ("get", "create", "patch"), "coordination.k8s.io")
# To authenticate and authorize requests for metrics, and those to proxiers.
REVIEWS: Final = (
    Rule(("tokenreviews",), ("create",), "authentication.k8s.io"),
    Rule(("subjectaccessreviews",), ("create",), "authorization.k8s.io"),
)

# The worker

_WORKER: Final = (
    IDENTITY,
    Rule(("nodes", "persistentvolumes"), _READ),
    Rule(("pods",), _LIST_WATCH),
    Rule(("csinodes",), _READ, "storage.k8s.io"),
    Rule(("resourceleasingpolicies",), (*_READ, "patch"), GROUP),
    Rule(("resourceleasingpolicies/status",), ("patch",), GROUP),
)
_MOUNT: Final = (
    Rule(("namespaces",), ("get",)),  # only this namespace: a Role grants get of its own
    Rule(("pods", "configmaps", "secrets", "persistentvolumeclaims", "services"), _READ_WRITE),
    Rule(("endpointslices",), _READ_WRITE, "discovery.k8s.io"),
    Rule(("pods/status", "pods/ephemeralcontainers", "pods/resize"), ("patch",)),
    Rule(("pods/log",), ("get",)),
    # A WebSocket is opened with GET, SPDY with POST.
    Rule(("pods/exec", "pods/attach", "pods/portforward"), ("get", "create")),
    Rule(("events",), _LIST_WATCH),
)
READ_METRICS: Final = (
    Permission("get", "", "nodes/metrics"),
)  # enough for most endpoints of a kubelet
_ADD_ONS: Final = {
    AddOn.VOLUMES: Rule(("persistentvolumes",), ("create", "patch", "delete")),
    AddOn.NODE_LABELS: Rule(("nodes",), ("patch",)),
    AddOn.PRIORITY_CLASSES: Rule(("priorityclasses",), ("create",), "scheduling.k8s.io"),
    AddOn.LOG_CONFIGS: Rule(
        ("logconfigs",), (*_READ, "create", "update", "delete"), LOG_CONFIG_GROUP
    ),
}


def worker_rights(
    mount_namespace: str,
    add_ons: Iterable[AddOn] = DEFAULT_ADD_ONS,
    domain: Domain = DEFAULT,
) -> Rights:
    """Return the permissions of a binding's credential in the worker."""
    chosen = set(add_ons)
    policies = (Rule(("events",), _CREATE_PATCH),)
    own = [*_MOUNT, *(policies if mount_namespace == EVENTS_NAMESPACE else ())]
    own.append(egress_rule(domain))
    if AddOn.METRICS in chosen:
        own.append(Rule(("serviceaccounts/token",), ("create",), names=(domain.metrics,)))
    if AddOn.RENEWAL in chosen:
        own.append(Rule(("serviceaccounts/token",), ("create",), names=(domain.syncer,)))
    return Rights(
        (*_WORKER, *(rule for add_on, rule in _ADD_ONS.items() if add_on in chosen)),
        {EVENTS_NAMESPACE: policies} | {mount_namespace: tuple(own)},
    )


def egress_rule(domain: Domain = DEFAULT) -> Rule:
    """Return the rule to read the NetworkPolicy of the mount namespace, which doctor looks for."""
    return Rule(("networkpolicies",), ("get",), "networking.k8s.io", (domain.egress_policy,))


def add_on_rule(add_on: AddOn) -> Json:
    """Return the ClusterRole's rule of an add-on; {} for an add-on without such a rule."""
    rule = _ADD_ONS.get(add_on)
    return rule.document() if rule is not None else {}


def metrics_rights() -> Rights:
    """Return the permissions of the account that reads metrics of kubelets in the worker."""
    return Rights((Rule(("nodes/metrics", "nodes/stats"), ("get",)),))


# The computing cluster


def binding_syncer_role(domain: Domain = DEFAULT) -> str:
    """Return the name of the ClusterRole with `binding_syncer_rights`.

    The name does not begin like those of the ClusterRoles that the manager may write.
    """
    return f"{domain.product}-binding-syncer"


def secret_role(domain: Domain = DEFAULT) -> str:
    """Return the name of the ClusterRole with `secret_rules`."""
    return f"{domain.product}-secret-reader"


def secret_rules() -> tuple[Rule, ...]:
    """Return the rules by which a syncer reads and labels Secrets, in one namespace at a time."""
    return (Rule(("secrets",), (*_READ, "patch")),)


def syncer_rights(domain: Domain = DEFAULT) -> Rights:
    """Return the permissions of syncers with a shared account, in all namespaces."""
    own = binding_syncer_rights(domain)
    return Rights((*own.everywhere, *secret_rules()), own.within)


def binding_syncer_rights(domain: Domain = DEFAULT) -> Rights:
    """Return the permissions that the syncers of all bindings have, in all namespaces."""
    return Rights(
        (
            IDENTITY,
            # All bindings, because policies name bindings; a binding holds no credential.
            Rule(("clusterbindings",), _READ, GROUP),
            Rule(("nodes",), _READ_WRITE),
            Rule(("nodes/status",), ("patch",)),
            Rule(("csinodes",), _READ_WRITE, "storage.k8s.io"),
            Rule(("pods",), (*_READ, "delete")),
            Rule(("pods/status",), ("patch",)),
            Rule(("pods/eviction",), ("create",)),
            Rule(("configmaps", "persistentvolumeclaims", "persistentvolumes"), (*_READ, "patch")),
            Rule(("persistentvolumeclaims/status",), ("patch",)),
            Rule(("services",), _READ),
            Rule(("endpointslices",), _LIST_WATCH, "discovery.k8s.io"),
            Rule(("serviceaccounts/token",), ("create",)),
            Rule(("logconfigs",), (*_READ, "patch"), LOG_CONFIG_GROUP),
            Rule(("events",), _CREATE_PATCH),
            *REVIEWS,
        ),
        {
            NODE_LEASE_NAMESPACE: (Rule(("leases",), _CREATE_PATCH, "coordination.k8s.io"),),
            domain.host_port_namespace: (Rule(("pods",), ("create",)),),
        },
    )


def syncer_own_rights(*, binding: str, secret: str, lease: str, namespace: str) -> Rights:
    """Return the permissions that the syncer of one binding has besides `binding_syncer_rights`.

    - `secret`: name of the Secret with the worker's kubeconfig.
    - `lease`: name of the Lease with which its replicas elect a leader.
    - `namespace`: namespace of both.
    """
    return Rights(
        (
            Rule(("clusterbindings",), ("patch",), GROUP, (binding,)),
            Rule(("clusterbindings/status",), ("patch",), GROUP, (binding,)),
        ),
        {
            namespace: (
                Rule(("secrets",), _READ, names=(secret,)),
                Rule(("leases",), ("get", "patch"), "coordination.k8s.io", (lease,)),
                Rule(("leases",), ("create",), "coordination.k8s.io"),  # a create has no name
            )
        },
    )


def shared_syncer_rights(domain: Domain = DEFAULT) -> Rights:
    """Return the permissions that the shared account of syncers has besides `syncer_rights`."""
    return Rights(
        (
            Rule(("clusterbindings",), ("patch",), GROUP),
            Rule(("clusterbindings/status",), ("patch",), GROUP),
        ),
        {domain.system_namespace: (_ELECTION,)},
    )


def proxier_rights() -> Rights:
    """Return the permissions that all proxiers have in addition to `AUTHENTICATION_READER`."""
    certificates = "certificates.k8s.io"
    return Rights(
        (
            IDENTITY,
            Rule(("clusterbindings",), _READ, GROUP),
            Rule(("nodes", "pods"), _LIST_WATCH),
            *REVIEWS,
            Rule(("certificatesigningrequests",), ("get", "create", "delete"), certificates),
            Rule(("certificatesigningrequests/approval",), ("update",), certificates),
            Rule(("signers",), ("approve",), certificates, ("kubernetes.io/kubelet-serving",)),
        ),
    )


def proxier_own_rights(secrets: Iterable[str], namespace: str) -> Rights:
    """Return the permissions that the proxier of one binding has besides `proxier_rights`.

    `secrets` are the names of the Secret with the worker's kubeconfig and, if there is one, of the
    Secret with the proxier's certificate.
    """
    return Rights(within={namespace: (Rule(("secrets",), _READ, names=tuple(secrets)),)})


def shared_proxier_rights(domain: Domain = DEFAULT) -> Rights:
    """Return the permissions that the shared account of proxiers has besides `proxier_rights`."""
    return Rights(within={domain.system_namespace: (Rule(("secrets",), _READ),)})


def manager_rights(domain: Domain = DEFAULT) -> Rights:
    """Return the permissions of the manager, which creates Deployments in its own namespace only.

    The manager reads kubeconfigs in its own namespace only. It creates accounts for syncers and
    proxiers with permissions that it has itself, and may bind these accounts to the roles of all
    syncers or all proxiers. The role for Secrets is bound in namespaces of pods and volumes, which
    the manager lists to verify that a syncer needs Secrets there. Templates with other kinds of
    objects need additional permissions.
    """
    certificates = "certificates.k8s.io"
    may_bind = Rule(("roles",), ("bind",), _RBAC, (domain.syncer,))
    bindable = (
        domain.syncer, domain.proxier, binding_syncer_role(domain), secret_role(domain),
    )  # fmt: skip
    return Rights(
        (
            Rule(("clusterbindings",), (*_READ, "patch"), GROUP),
            Rule(("clusterbindings/status",), ("patch",), GROUP),
            # To set owner references with blockOwnerDeletion.
            Rule(("clusterbindings/finalizers",), ("update",), GROUP),
            # To delete the virtual nodes of a binding without a syncer.
            Rule(("nodes",), ("list", "patch", "delete")),
            Rule(("certificatesigningrequests",), ("get", "list", "delete"), certificates),
            Rule(("clusterroles", "clusterrolebindings"), _READ_WRITE, _RBAC),
            Rule(("clusterroles",), ("bind",), _RBAC, bindable),
            Rule(("rolebindings",), _READ_WRITE, _RBAC),
            Rule(("pods", "persistentvolumes"), ("list",)),
            *REVIEWS,
        ),
        {
            EVENTS_NAMESPACE: (Rule(("events",), _CREATE_PATCH),),
            NODE_LEASE_NAMESPACE: (may_bind,),
            domain.host_port_namespace: (may_bind,),
            domain.system_namespace: (
                _ELECTION,
                Rule(("leases",), ("delete",), "coordination.k8s.io"),  # Leases of deleted syncers
                Rule(("deployments",), _READ_WRITE, "apps"),
                Rule(("services", "serviceaccounts"), _READ_WRITE),
                Rule(("roles",), _READ_WRITE, _RBAC),
                Rule(("poddisruptionbudgets",), _READ_WRITE, "policy"),
                Rule(("horizontalpodautoscalers",), _READ_WRITE, "autoscaling"),
                # Patch: to renew the kubeconfigs of workers.
                Rule(("secrets",), (*_READ, "patch", "delete")),
            ),
        },
    )
