"""Roles: what each of our accounts may do, and nothing that its program does not ask for.

In a worker there is one account whose credential syncer and proxier use. It writes in the mount
namespace only, with two exceptions that are about the deal itself: finalizers and status of
policies, and events about them. It reads nodes, volumes and CSI drivers, and pods everywhere, for
what other people's pods request is not lent; and one namespace, which tells a cluster from others,
so that a kubeconfig that comes to lead elsewhere is noticed. Whatever else it may do is an add-on
with a name, for the owner of the worker to grant:

- `volumes`: make volumes, which claims of pods need; they have no namespace;
- `node-labels`: label lent nodes with the policy that lends them;
- `metrics`: ask for tokens of another account, which may read what kubelets measure and nothing
  else; who sees such a token, as every kubelet does that is asked with it, has no more than that;
- `priority-classes`: make the priority class of our pods again, should somebody delete it;
- `log-configs`: copy LogConfigs, which have no namespace.
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
from kubeocean.installation.rights import Permission, Rights, Rule

__all__ = [
    "ALL_ADD_ONS",
    "AUTHENTICATION_READER",
    "DEFAULT_ADD_ONS",
    "EVENTS_NAMESPACE",
    "IDENTITY",
    "READ_METRICS",
    "AddOn",
    "manager_rights",
    "metrics_rights",
    "proxier_rights",
    "syncer_rights",
    "worker_rights",
]


class AddOn(StrEnum):
    """What the owner of a worker may grant on top."""

    VOLUMES = "volumes"
    NODE_LABELS = "node-labels"
    METRICS = "metrics"
    PRIORITY_CLASSES = "priority-classes"
    LOG_CONFIGS = "log-configs"


ALL_ADD_ONS: Final = tuple(AddOn)
DEFAULT_ADD_ONS: Final = (AddOn.VOLUMES, AddOn.NODE_LABELS, AddOn.METRICS)
EVENTS_NAMESPACE: Final = "default"  # where events about objects without a namespace are
# A Role that every Kubernetes has in kube-system: who may read how callers are authenticated.
AUTHENTICATION_READER: Final = "extension-apiserver-authentication-reader"

_READ: Final = ("get", "list", "watch")
_LOOK: Final = ("list", "watch")
_KEEP: Final = ("get", "list", "watch", "create", "patch", "delete")
_TELL: Final = ("create", "patch")
IDENTITY: Final = Rule(("namespaces",), ("get",), names=(SYSTEM_NAMESPACE,))  # its UID is
_ELECTION: Final = Rule(("leases",), ("get", "create", "patch"), "coordination.k8s.io")

# The worker

_WORKER: Final = (
    IDENTITY,
    Rule(("nodes", "persistentvolumes"), _READ),
    Rule(("pods",), _LOOK),
    Rule(("csinodes",), _READ, "storage.k8s.io"),
    Rule(("resourceleasingpolicies",), (*_READ, "patch"), GROUP),
    Rule(("resourceleasingpolicies/status",), ("patch",), GROUP),
)
_MOUNT: Final = (
    Rule(("namespaces",), ("get",)),  # of this one: it is asked for in itself
    Rule(("pods", "configmaps", "secrets", "persistentvolumeclaims", "services"), _KEEP),
    Rule(("endpointslices",), _KEEP, "discovery.k8s.io"),
    Rule(("pods/status", "pods/ephemeralcontainers", "pods/resize"), ("patch",)),
    Rule(("pods/log",), ("get",)),
    # A WebSocket is opened with GET, SPDY with POST.
    Rule(("pods/exec", "pods/attach", "pods/portforward"), ("get", "create")),
    Rule(("events",), _LOOK),
)
READ_METRICS: Final = (Permission("get", "", "nodes/metrics"),)  # what most pages take
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
    """What the credential of a binding may do in the worker."""
    chosen = set(add_ons)
    policies = (Rule(("events",), _TELL),)
    own = [*_MOUNT, *(policies if mount_namespace == EVENTS_NAMESPACE else ())]
    if AddOn.METRICS in chosen:
        own.append(Rule(("serviceaccounts/token",), ("create",), names=(domain.metrics,)))
    return Rights(
        (*_WORKER, *(rule for add_on, rule in _ADD_ONS.items() if add_on in chosen)),
        {EVENTS_NAMESPACE: policies} | {mount_namespace: tuple(own)},
    )


def metrics_rights() -> Rights:
    """What the account may do in the worker that kubelets are asked with."""
    return Rights((Rule(("nodes/metrics", "nodes/stats"), ("get",)),))


# The computing cluster


def syncer_rights(domain: Domain = DEFAULT) -> Rights:
    """What syncers may do: pods may come from any namespace, and so may what these refer to."""
    return Rights(
        (
            IDENTITY,
            Rule(("clusterbindings",), (*_READ, "patch"), GROUP),
            Rule(("clusterbindings/status",), ("patch",), GROUP),
            Rule(("nodes",), _KEEP),
            Rule(("nodes/status",), ("patch",)),
            Rule(("csinodes",), _KEEP, "storage.k8s.io"),
            Rule(("pods",), (*_READ, "delete")),
            Rule(("pods/status",), ("patch",)),
            Rule(("pods/eviction",), ("create",)),
            Rule(
                ("configmaps", "secrets", "persistentvolumeclaims", "persistentvolumes"),
                (*_READ, "patch"),
            ),
            Rule(("services",), _READ),
            Rule(("endpointslices",), _LOOK, "discovery.k8s.io"),
            Rule(("serviceaccounts/token",), ("create",)),
            Rule(("logconfigs",), (*_READ, "patch"), LOG_CONFIG_GROUP),
            Rule(("events",), _TELL),
        ),
        {
            NODE_LEASE_NAMESPACE: (Rule(("leases",), _TELL, "coordination.k8s.io"),),
            domain.host_port_namespace: (Rule(("pods",), ("create",)),),
            domain.system_namespace: (_ELECTION,),
        },
    )


def proxier_rights(domain: Domain = DEFAULT) -> Rights:
    """What proxiers may do; beside this they are `AUTHENTICATION_READER`s."""
    certificates = "certificates.k8s.io"
    return Rights(
        (
            IDENTITY,
            Rule(("clusterbindings",), _READ, GROUP),
            Rule(("nodes", "pods"), _LOOK),
            Rule(("tokenreviews",), ("create",), "authentication.k8s.io"),
            Rule(("subjectaccessreviews",), ("create",), "authorization.k8s.io"),
            Rule(("certificatesigningrequests",), ("get", "create", "delete"), certificates),
            Rule(("certificatesigningrequests/approval",), ("update",), certificates),
            Rule(("signers",), ("approve",), certificates, ("kubernetes.io/kubelet-serving",)),
        ),
        {domain.system_namespace: (Rule(("secrets",), _READ),)},
    )


def manager_rights(domain: Domain = DEFAULT) -> Rights:
    """What the manager may do: it rolls out, in its own namespace, and looks after bindings.

    It grants nobody anything, and reads kubeconfigs in its own namespace only. Templates of other
    kinds than ours need rights of their own.
    """
    certificates = "certificates.k8s.io"
    return Rights(
        (
            Rule(("clusterbindings",), (*_READ, "patch"), GROUP),
            Rule(("clusterbindings/status",), ("patch",), GROUP),
            # An owner that blocks its deletion until what it owns is gone.
            Rule(("clusterbindings/finalizers",), ("update",), GROUP),
            # Virtual nodes of a binding whose syncer is not there to take them back.
            Rule(("nodes",), ("list", "patch", "delete")),
            Rule(("certificatesigningrequests",), ("get", "list", "delete"), certificates),
        ),
        {
            EVENTS_NAMESPACE: (Rule(("events",), _TELL),),
            domain.system_namespace: (
                _ELECTION,
                Rule(("leases",), ("delete",), "coordination.k8s.io"),  # of syncers that are gone
                Rule(("deployments",), _KEEP, "apps"),
                Rule(("services",), _KEEP),
                Rule(("secrets",), (*_READ, "delete")),
            ),
        },
    )
