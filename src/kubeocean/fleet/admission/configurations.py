"""Webhook configurations: which requests API servers send to the hub, with KubeFleet's names. Pure.

The documents set every field that API servers would default, so that a stored configuration can be
compared with its document.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kubeocean.api.fleet.clusters import CLUSTER_GROUP
from kubeocean.api.fleet.names import (
    GUARD_RAIL_WEBHOOKS,
    LABEL_FLEET_RESOURCE,
    MUTATING_WEBHOOKS,
    SYSTEM_NAMESPACE,
    TRUE,
    VALIDATING_WEBHOOKS,
)
from kubeocean.api.fleet.networking import NETWORKING_GROUP
from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.fleet.schema import V1ALPHA1, V1BETA1
from kubeocean.fleet.admission.reviews import REVIEW_VERSIONS
from kubeocean.runtime.objects import Json

__all__ = [
    "GUARD_RAIL_PATH",
    "MUTATING_PATH",
    "Endpoint",
    "WebhookSet",
    "configurations",
    "validating_path",
]

GUARD_RAIL_PATH: Final = "/validate-fleetresourcehandler"
MUTATING_PATH: Final = f"/mutate-{PLACEMENT_GROUP}-{V1BETA1}-clusterresourceplacement"

_API_VERSION: Final = "admissionregistration.k8s.io/v1"
_LABELS: Final = {"admissions.enforcer/disabled": "true"}  # AKS would change the selectors
_LONG_S: Final = 5
_SHORT_S: Final = 1
_ALL: Final = ("CREATE", "UPDATE", "DELETE")
_WRITE: Final = ("CREATE", "UPDATE")
_CREATE: Final = ("CREATE",)
_CLUSTER: Final = "Cluster"
_NAMESPACED: Final = "Namespaced"
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_KUBE_NAMESPACES: Final = ("kube-system", "kube-public", "kube-node-lease")

# Users whom the guard rail allows to change every object in a namespace: their requests are not
# sent to the webhook, which keeps the traffic of kubelets, controllers and members off the hub.
_UNGUARDED_GROUPS: Final = (
    "system:masters",
    "kubeadm:cluster-admins",
    "system:nodes",
    "system:serviceaccounts",
)
_UNGUARDED_USERS: Final = ("system:kube-scheduler", "system:kube-controller-manager")
_IS_GUARDED: Final = (
    f"!(request.userInfo.username in {list(_UNGUARDED_USERS)}) && !(has(request.userInfo.groups)"
    f" && request.userInfo.groups.exists(g, g in {list(_UNGUARDED_GROUPS)}))"
)
_IN_NAMESPACES: Final = {"name": "may-be-denied", "expression": _IS_GUARDED}
# The hub itself writes the status of each MemberCluster with each heartbeat.
_OF_MEMBERS: Final = {
    "name": "may-be-denied",
    "expression": (
        f"!has(request.subResource) || request.subResource != 'status' || ({_IS_GUARDED})"
    ),
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the webhook server for API servers: a Service, or `url` if that is given.

    `bundle` holds the authorities that API servers trust; None leaves `caBundle` to cert-manager.
    """

    service: str
    namespace: str
    port: int
    url: str = ""
    bundle: bytes | None = None

    def client_config(self, path: str) -> Json:
        """Return the `clientConfig` of the webhook at `path`."""
        config: Json = {}
        if self.bundle is not None:
            config["caBundle"] = base64.b64encode(self.bundle).decode()
        if self.url:
            return config | {"url": f"{self.url.rstrip('/')}{path}"}
        service = {
            "namespace": self.namespace,
            "name": self.service,
            "path": path,
            "port": self.port,
        }
        return config | {"service": service}


@dataclass(frozen=True, slots=True)
class WebhookSet:
    """Which webhooks are registered in addition to the webhooks for the fleet's own kinds."""

    guard_rail: bool = False
    ban_workloads: bool = False
    ban_budgets: bool = False


def validating_path(group: str, version: str, kind: str) -> str:
    """Return the URL path of the webhook that validates a kind."""
    return f"/validate-{group}-{version}-{kind.lower()}"


def configurations(endpoint: Endpoint, webhooks: WebhookSet) -> list[Json]:
    """Return all webhook configurations of a hub."""
    documents = [
        _configuration("MutatingWebhookConfiguration", MUTATING_WEBHOOKS, [_mutating(endpoint)]),
        _configuration(
            "ValidatingWebhookConfiguration",
            VALIDATING_WEBHOOKS,
            list(_validating(endpoint, webhooks)),
        ),
    ]
    if webhooks.guard_rail:
        documents.append(
            _configuration(
                "ValidatingWebhookConfiguration", GUARD_RAIL_WEBHOOKS, list(_guard_rail(endpoint))
            )
        )
    return documents


def _configuration(kind: str, name: str, webhooks: list[Json]) -> Json:
    metadata = {"name": name, "labels": dict(_LABELS)}
    return {
        "apiVersion": _API_VERSION,
        "kind": kind,
        "metadata": metadata,
        "webhooks": webhooks,
    }


def _webhook(
    name: str,
    client_config: Json,
    rules: list[Json],
    *,
    fails: bool,
    timeout_s: int,
    namespaces: Json | None = None,
    conditions: list[Json] | None = None,
) -> Json:
    return {
        "name": name,
        "clientConfig": client_config,
        "rules": rules,
        "failurePolicy": "Fail" if fails else "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespaces or {},
        "objectSelector": {},
        "sideEffects": "None",
        "timeoutSeconds": timeout_s,
        "admissionReviewVersions": list(REVIEW_VERSIONS),
        **({"matchConditions": conditions} if conditions else {}),
    }


def _rule(
    group: str, version: str, resources: Iterable[str], operations: Iterable[str], scope: str
) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": list(resources),
        "operations": list(operations),
        "scope": scope,
    }


def _selector(key: str, operator: str, values: Iterable[str]) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def _mutating(endpoint: Endpoint) -> Json:
    rule = _rule(PLACEMENT_GROUP, V1BETA1, ["clusterresourceplacements"], _WRITE, _CLUSTER)
    return _webhook(
        "fleet.clusterresourceplacementv1beta1.mutating",
        endpoint.client_config(MUTATING_PATH),
        [rule],
        fails=False,
        timeout_s=_LONG_S,
    ) | {"reinvocationPolicy": "Never"}


def _validating(endpoint: Endpoint, webhooks: WebhookSet) -> Iterable[Json]:
    def webhook(
        name: str,
        group: str,
        version: str,
        kind: str,
        plural: str,
        operations: Iterable[str],
        *,
        scope: str = _CLUSTER,
        namespaces: Json | None = None,
    ) -> Json:
        return _webhook(
            f"fleet.{name}.validating",
            endpoint.client_config(validating_path(group, version, kind)),
            [_rule(group, version, [plural], operations, scope)],
            fails=True,
            timeout_s=_LONG_S,
            namespaces=namespaces,
        )

    # If the hub's own pods were not exempt from the ban, the hub could not start again.
    elsewhere = _selector(_NAMESPACE_NAME, "NotIn", (SYSTEM_NAMESPACE, *_KUBE_NAMESPACES))
    bans = []
    if webhooks.ban_workloads:
        bans += [("", "v1", "Pod", "pods"), ("apps", "v1", "ReplicaSet", "replicasets")]
    if webhooks.ban_budgets:
        bans.append(("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"))
    for group, version, kind, plural in bans:
        yield webhook(
            kind.lower(), group, version, kind, plural, _CREATE,
            scope=_NAMESPACED, namespaces=elsewhere,
        )  # fmt: skip
    placement = "clusterresourceplacement"
    yield webhook(
        "clusterresourceplacementv1beta1", PLACEMENT_GROUP, V1BETA1, placement,
        f"{placement}s", _WRITE,
    )  # fmt: skip
    yield webhook("membercluster", CLUSTER_GROUP, V1BETA1, "membercluster", "memberclusters", _ALL)
    for kind, operations, scope in (
        ("clusterresourceoverride", _WRITE, _CLUSTER),
        ("resourceoverride", _WRITE, _NAMESPACED),
        (f"{placement}eviction", _CREATE, _CLUSTER),
        (f"{placement}disruptionbudget", _WRITE, _CLUSTER),
    ):
        yield webhook(kind, PLACEMENT_GROUP, V1BETA1, kind, f"{kind}s", operations, scope=scope)


def _guard_rail(endpoint: Endpoint) -> Iterable[Json]:
    def webhook(
        subject: str,
        rules: list[Json],
        *,
        namespaces: Json | None = None,
        conditions: list[Json] | None = None,
    ) -> Json:
        return _webhook(
            f"fleet.{subject}.guardrail.validating",
            endpoint.client_config(GUARD_RAIL_PATH),
            rules,
            fails=False,
            timeout_s=_SHORT_S,
            namespaces=namespaces,
            conditions=conditions,
        )

    yield webhook(
        "customresourcedefinition",
        [_rule("apiextensions.k8s.io", "v1", ["customresourcedefinitions"], _ALL, _CLUSTER)],
    )
    members = ["memberclusters", "memberclusters/status"]
    yield webhook(
        "membercluster",
        [_rule(CLUSTER_GROUP, V1BETA1, members, _ALL, _CLUSTER)],
        conditions=[_OF_MEMBERS],
    )
    for subject, namespaces in (
        ("fleetmembernamespacedresources", _selector(LABEL_FLEET_RESOURCE, "In", [TRUE])),
        ("fleetsystemnamespacedresources", _selector(_NAMESPACE_NAME, "In", [SYSTEM_NAMESPACE])),
        ("kubenamespacedresources", _selector(_NAMESPACE_NAME, "In", _KUBE_NAMESPACES)),
    ):
        yield webhook(
            subject,
            list(_namespaced_rules()),
            namespaces=namespaces,
            conditions=[_IN_NAMESPACES],
        )
    yield webhook("namespace", [_rule("", "v1", ["namespaces"], _ALL, _CLUSTER)])


def _with_status(*plurals: str) -> list[str]:
    return [name for plural in plurals for name in (plural, f"{plural}/status")]


def _namespaced_rules() -> Iterable[Json]:
    yield _rule("*", "*", ["*/*"], ["DELETE"], _NAMESPACED)
    core = [
        "bindings",
        "configmaps",
        "endpoints",
        "limitranges",
        "podtemplates",
        "secrets",
        "serviceaccounts",
        "serviceaccounts/token",
        *_with_status(
            "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "services"
        ),
    ]
    apps = _with_status("daemonsets", "deployments", "replicasets", "statefulsets")
    networking = [
        "endpointsliceexports",
        "endpointsliceimports",
        *_with_status("internalserviceexports", "internalserviceimports"),
    ]
    for group, version, plurals in (
        ("", "v1", core),
        ("apps", "v1", ["controllerrevisions", *apps]),
        ("authorization.k8s.io", "v1", ["localsubjectaccessreviews"]),
        ("autoscaling", "v1", _with_status("horizontalpodautoscalers")),
        ("batch", "v1", _with_status("cronjobs", "jobs")),
        ("discovery.k8s.io", "v1", ["endpointslices"]),
        ("networking.k8s.io", "v1", _with_status("ingresses", "networkpolicies")),
        ("policy", "v1", _with_status("poddisruptionbudgets")),
        ("rbac.authorization.k8s.io", "v1", ["roles", "rolebindings"]),
        ("storage.k8s.io", "v1", ["csistoragecapacities"]),
        (CLUSTER_GROUP, V1BETA1, _with_status("internalmemberclusters")),
        (PLACEMENT_GROUP, V1BETA1, _with_status("works")),
        (NETWORKING_GROUP, V1ALPHA1, networking),
    ):
        yield _rule(group, version, plurals, _WRITE, _NAMESPACED)
