"""Documents that a hub registers: webhook configurations and admission policies."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kubeocean.errors import ConfigError
from kubeocean.fleet.admission.configurations import (
    WebhookEndpoint,
    WebhookSet,
    configurations,
)
from kubeocean.fleet.admission.policies import (
    POLICY_LABELS,
    PolicyConfig,
    ServiceAccountPolicy,
    policy_objects,
    read_policy_config,
)

SERVICE = WebhookEndpoint("fleetwebhook", "fleet-system", 9443, bundle=b"ca")
URL = WebhookEndpoint("fleetwebhook", "fleet-system", 9443, "https://hub.example:9443", b"ca")


def webhooks(endpoint: WebhookEndpoint, **wanted: bool) -> dict[str, dict[str, Any]]:
    documents = configurations(endpoint, WebhookSet(**wanted))
    return {each["name"]: each for document in documents for each in document["webhooks"]}


VALIDATING = {
    f"fleet.{kind}.validating"
    for kind in (
        "clusterresourceplacementv1beta1",
        "membercluster",
        "clusterresourceoverride",
        "resourceoverride",
        "clusterresourceplacementeviction",
        "clusterresourceplacementdisruptionbudget",
    )
}
MUTATING = "fleet.clusterresourceplacementv1beta1.mutating"
GUARD = {
    f"fleet.{subject}.guardrail.validating"
    for subject in (
        "customresourcedefinition",
        "membercluster",
        "fleetmembernamespacedresources",
        "fleetsystemnamespacedresources",
        "kubenamespacedresources",
        "namespace",
    )
}


def test_bans_and_the_guard_rail_are_registered_only_if_asked_for() -> None:
    assert set(webhooks(SERVICE)) == {MUTATING, *VALIDATING}
    assert set(webhooks(SERVICE, guard_rail=True)) == {MUTATING, *VALIDATING, *GUARD}
    bans = set(webhooks(SERVICE, ban_workloads=True, ban_budgets=True)) - {MUTATING, *VALIDATING}
    assert bans == {
        "fleet.pod.validating",
        "fleet.replicaset.validating",
        "fleet.poddisruptionbudget.validating",
    }


def test_policies_and_time_limits_are_kubefleets() -> None:
    for name, each in webhooks(SERVICE, guard_rail=True, ban_workloads=True).items():
        is_strict = "guardrail" not in name and name != MUTATING
        assert each["failurePolicy"] == ("Fail" if is_strict else "Ignore")
        assert each["timeoutSeconds"] == (1 if "guardrail" in name else 5)
        assert each["matchPolicy"] == "Equivalent"
        assert each["sideEffects"] == "None"


def test_the_server_is_reached_by_service_or_by_url() -> None:
    path = "/validate-cluster.kubernetes-fleet.io-v1beta1-membercluster"
    bundle = base64.b64encode(b"ca").decode()
    by_service = webhooks(SERVICE)["fleet.membercluster.validating"]["clientConfig"]
    reference = {"namespace": "fleet-system", "name": "fleetwebhook", "path": path, "port": 9443}
    assert by_service == {"caBundle": bundle, "service": reference}
    by_url = webhooks(URL)["fleet.membercluster.validating"]["clientConfig"]
    assert by_url == {"caBundle": bundle, "url": f"https://hub.example:9443{path}"}
    managed = WebhookEndpoint("s", "n", 1, bundle=None).client_config("/x")
    assert "caBundle" not in managed


def test_the_hubs_own_pods_are_never_asked_about() -> None:
    """A ban that fails while the hub is down would keep the hub down."""
    for name in ("fleet.pod.validating", "fleet.replicaset.validating"):
        selector = webhooks(SERVICE, ban_workloads=True)[name]["namespaceSelector"]
        (expression,) = selector["matchExpressions"]
        assert expression["operator"] == "NotIn"
        assert {"fleet-system", "kube-system"} <= set(expression["values"])


# Policies


def names(config: PolicyConfig) -> list[str]:
    return [each["metadata"]["name"] for each in policy_objects(config)]


ACCOUNTS = "deny-serviceaccounts-and-tokenrequests-in-reserved-namespaces"
WORKLOADS = "deny-pods-and-replicasets-outside-reserved-namespaces"


def test_pods_are_banned_by_a_file_only() -> None:
    assert names(PolicyConfig()) == [ACCOUNTS, f"{ACCOUNTS}-binding"]
    assert names(PolicyConfig(None)) == []
    assert names(PolicyConfig(None, ("fleet-",))) == [WORKLOADS, f"{WORKLOADS}-binding"]
    for each in policy_objects(PolicyConfig(workload_prefixes=("fleet-",))):
        assert each["metadata"]["labels"] == POLICY_LABELS


def test_a_file_is_read_without_regard_to_case() -> None:
    content = b"""
denyServiceAccountsAndTokenRequestsInReservedNamespaces:
  ReservedNamespacePrefixes: [fleet-, kube-, my-]
  whitelistedusernames: [alice]
  WhitelistedUserGroups: [ops]
DENYPODSANDREPLICASETSOUTSIDERESERVEDNAMESPACES:
  reservedNamespacePrefixes: [fleet-]
"""
    assert read_policy_config(content, "file") == PolicyConfig(
        ServiceAccountPolicy(("fleet-", "kube-", "my-"), ("alice",), ("ops",)), ("fleet-",)
    )
    assert read_policy_config(b"", "file") == PolicyConfig(None, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[", "is not a YAML document"),
        (b"[a]", "must be a mapping"),
        (b"other: {}", "has an unknown section other"),
        (b"denyPodsAndReplicaSetsOutsideReservedNamespaces:", "must be a mapping"),
        (b"denyPodsAndReplicaSetsOutsideReservedNamespaces: {}", "is required"),
        (
            b"denyPodsAndReplicaSetsOutsideReservedNamespaces: {reservedNamespacePrefixes: [A]}",
            "must consist of lower case letters",
        ),
        (
            b"denyPodsAndReplicaSetsOutsideReservedNamespaces: {reservedNamespacePrefixes: [1]}",
            "must be a list of strings",
        ),
    ],
)
def test_bad_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_policy_config(content, "file")
