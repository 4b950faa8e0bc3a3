"""Tests of the permissions of Kubeocean's accounts."""

from __future__ import annotations

import pytest

from kubeocean.api.group import DEFAULT, TAPESTRY
from kubeocean.install.permissions import Permission, Rights
from kubeocean.install.roles import (
    ALL_ADD_ONS,
    EVENTS_NAMESPACE,
    AddOn,
    binding_syncer_rights,
    manager_rights,
    metrics_rights,
    proxier_own_rights,
    proxier_rights,
    shared_proxier_rights,
    shared_syncer_rights,
    syncer_own_rights,
    syncer_rights,
    worker_rights,
)

MOUNT = "kubeocean-worker"
READING = {"get", "list", "watch"}
BINDABLE = (
    "kubeocean-syncer",
    "kubeocean-proxier",
    "kubeocean-binding-syncer",
    "kubeocean-secret-reader",
)
EVERYONE = [
    worker_rights(MOUNT, ALL_ADD_ONS),
    metrics_rights(),
    syncer_rights(),
    binding_syncer_rights(),
    syncer_own_rights(binding="b", secret="s", lease="l", namespace="n"),
    shared_syncer_rights(),
    proxier_rights(),
    proxier_own_rights(("s",), "n"),
    shared_proxier_rights(),
    manager_rights(),
]


def permissions(rights: Rights) -> set[Permission]:
    return set(rights.permissions())


@pytest.mark.parametrize("rights", EVERYONE)
def test_no_account_has_wildcard_permissions(rights: Rights) -> None:
    for each in permissions(rights):
        assert "*" not in (each.verb, each.group, each.resource)
        assert each.resource != "nodes/proxy"
        assert each.verb not in ("impersonate", "escalate", "deletecollection")
        assert each.verb != "bind" or each.name in BINDABLE


def test_the_credential_writes_in_the_mount_namespace_only() -> None:
    written = {each for each in permissions(worker_rights(MOUNT, ())) if each.verb not in READING}
    outside = {each for each in written if each.namespace != MOUNT}
    assert {(each.resource, each.namespace) for each in outside} == {
        ("resourceleasingpolicies", ""),
        ("resourceleasingpolicies/status", ""),
        ("events", EVENTS_NAMESPACE),
    }


def test_the_credential_reads_secrets_in_the_mount_namespace_only() -> None:
    granted = permissions(worker_rights(MOUNT, ALL_ADD_ONS))
    assert {each.namespace for each in granted if each.resource == "secrets"} == {MOUNT}


@pytest.mark.parametrize(
    ("add_on", "granted"),
    [
        (AddOn.VOLUMES, {"create persistentvolumes", "patch persistentvolumes"}),
        (AddOn.NODE_LABELS, {"patch nodes"}),
        (AddOn.PRIORITY_CLASSES, {"create priorityclasses.scheduling.k8s.io"}),
        (AddOn.LOG_CONFIGS, {"update logconfigs.cls.cloud.tencent.com"}),
    ],
)
def test_each_add_on_grants_its_own_permissions(add_on: AddOn, granted: set[str]) -> None:
    without = permissions(worker_rights(MOUNT, set(ALL_ADD_ONS) - {add_on}))
    gained = permissions(worker_rights(MOUNT, ALL_ADD_ONS)) - without
    assert granted <= set(map(str, gained))
    assert all(each.namespace == "" for each in gained)


def test_metrics_have_an_account_of_their_own_and_the_credential_requests_its_tokens() -> None:
    without = permissions(worker_rights(MOUNT, set(ALL_ADD_ONS) - {AddOn.METRICS}))
    gained = permissions(worker_rights(MOUNT, ALL_ADD_ONS)) - without
    token = Permission("create", "", "serviceaccounts/token", MOUNT, "kubeocean-metrics")
    assert gained == {token}
    assert set(map(str, metrics_rights().permissions())) == {
        "get nodes/metrics",
        "get nodes/stats",
    }
    for rights in (worker_rights(MOUNT, ALL_ADD_ONS), worker_rights(EVENTS_NAMESPACE, ALL_ADD_ONS)):
        granted = permissions(rights)
        assert not {each for each in granted if each.resource in ("nodes/metrics", "nodes/stats")}
        tokens = [each for each in granted if each.resource.startswith("serviceaccounts")]
        assert {each.name for each in tokens} == {"kubeocean-metrics", "kubeocean-syncer"}


def test_the_credential_is_renewed_with_tokens_of_its_own_account_only() -> None:
    without = permissions(worker_rights(MOUNT, set(ALL_ADD_ONS) - {AddOn.RENEWAL}))
    gained = permissions(worker_rights(MOUNT, ALL_ADD_ONS)) - without
    assert gained == {Permission("create", "", "serviceaccounts/token", MOUNT, "kubeocean-syncer")}


def test_the_mount_namespace_may_be_the_namespace_of_events() -> None:
    rights = worker_rights(EVENTS_NAMESPACE, ())
    assert Permission("create", "", "events", EVENTS_NAMESPACE) in permissions(rights)
    assert Permission("create", "", "pods", EVENTS_NAMESPACE) in permissions(rights)


def test_only_the_shared_account_of_syncers_reads_secrets_of_all_namespaces() -> None:
    for rights in (binding_syncer_rights(), proxier_rights()):
        assert not [each for each in permissions(rights) if each.resource == "secrets"]
    for rights in (shared_proxier_rights(), manager_rights()):
        namespaces = {each.namespace for each in permissions(rights) if each.resource == "secrets"}
        assert namespaces == {DEFAULT.system_namespace}
    assert not [
        each
        for each in permissions(syncer_rights())
        if each.resource == "secrets" and each.verb in ("create", "delete", "update")
    ]


def test_the_account_of_a_binding_is_limited_to_its_own_objects() -> None:
    own = syncer_own_rights(
        binding="berlin",
        secret="kubeconfig",
        lease="kubeocean-syncer-w1",
        namespace="kubeocean-system",
    )
    unnamed = [each for each in permissions(own) if not each.name]
    assert list(map(str, unnamed)) == ["create leases.coordination.k8s.io in kubeocean-system"]
    assert {each.name for each in permissions(own)} - {""} == {
        "berlin",
        "kubeconfig",
        "kubeocean-syncer-w1",
    }
    shared = {(each.verb, each.resource) for each in permissions(syncer_rights())}
    assert ("patch", "clusterbindings") not in shared
    assert ("patch", "clusterbindings/status") not in shared


def test_the_manager_holds_what_it_grants_and_binds_roles_by_name() -> None:
    holds = {each._replace(name="") for each in permissions(manager_rights())}
    namespace = DEFAULT.system_namespace
    own = (
        syncer_own_rights(binding="b", secret="s", lease="l", namespace=namespace),
        proxier_own_rights(("s",), namespace),
    )
    for rights in own:
        assert {each._replace(name="") for each in permissions(rights)} <= holds


def test_permissions_use_the_names_of_the_domain() -> None:
    theirs = permissions(worker_rights(MOUNT, ALL_ADD_ONS, TAPESTRY))
    assert {each.name for each in theirs if each.name} == {
        "kube-system",
        "tapestry-metrics",
        "tapestry-syncer",
        "tapestry-syncer-egress",
    }
    assert TAPESTRY.system_namespace in manager_rights(TAPESTRY).within
    assert TAPESTRY.host_port_namespace in syncer_rights(TAPESTRY).within


def test_a_permission_has_review_attributes_and_a_text() -> None:
    permission = Permission("get", "", "pods/log", MOUNT)
    assert str(permission) == "get pods/log in kubeocean-worker"
    assert permission.attributes() == {
        "verb": "get",
        "resource": "pods",
        "subresource": "log",
        "namespace": MOUNT,
    }
