"""Admission on a real API server that calls the webhooks of a running hub."""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from kubeocean.api.fleet.clusters import INTERNAL_MEMBER_CLUSTERS, MEMBER_CLUSTERS
from kubeocean.api.fleet.names import (
    GUARD_RAIL_WEBHOOKS,
    MUTATING_WEBHOOKS,
    SYSTEM_NAMESPACE,
    VALIDATING_WEBHOOKS,
    member_namespace,
)
from kubeocean.api.fleet.placements import CLUSTER_RESOURCE_PLACEMENTS
from kubeocean.errors import ApiError, Forbidden
from kubeocean.fleet.admission.configurations import validating_path
from kubeocean.fleet.admission.members import LONGEST_MEMBER_NAME
from kubeocean.local.audit import AuditedRequest
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.objects import Json
from support.admission_env import (
    MUTATING,
    TESTERS,
    VALIDATING,
    AdmissionEnv,
    Attempt,
    peer_certificate,
    registered,
)
from support.fleet_env import FleetEnv
from support.servers import unused
from support.wait import until

WEBHOOKS = {MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, GUARD_RAIL_WEBHOOKS}
FLEET = "/apis/cluster.kubernetes-fleet.io/v1beta1"
PLACEMENT = "/apis/placement.kubernetes-fleet.io/v1beta1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANNOTATION = "fleet.azure.com/cluster-resource-id"

# Users by name: their groups in addition to that of all test users
PLAIN = "plain-user"
USERS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    "member-of-masters": ("system:masters",),
    "kubeadm-admin": ("kubeadm:cluster-admins",),
    "trusted-by-name": (),
    "an-account": ("system:serviceaccounts",),
    "a-node": ("system:nodes",),
    "system:kube-scheduler": (),
    "system:kube-controller-manager": (),
    "aks-support": (),
}
ADMINS = {"member-of-masters", "kubeadm-admin", "trusted-by-name"}
ALLOWED = set(USERS) - {PLAIN}
EVERYBODY = set(USERS)
NOBODY: set[str] = set()


@pytest.fixture(scope="module")
async def port() -> int:
    return unused()


@pytest.fixture(scope="module")
async def admission(
    planes: FleetEnv, port: int, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AdmissionEnv]:
    """A hub with all webhooks, which the tests of this module share."""
    directory: Path = tmp_path_factory.mktemp("admission")
    async with (
        AdmissionEnv.start(planes.of_test(), directory) as made,
        made.hub("hub", "--enable-guard-rail", "--whitelisted-users=trusted-by-name", port=port),
    ):
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
        attempt = Attempt("POST", path, {"metadata": {"name": "x"}})
        await attempt.refused(made.client(PLAIN), "is not allowed to CREATE")
        yield made


def member_body(name: str, **metadata: Any) -> Json:
    return {
        "apiVersion": MEMBER_CLUSTERS.api_version,
        "kind": "MemberCluster",
        "metadata": {"name": name, **metadata},
        "spec": {"identity": {"kind": "User", "name": f"agent-of-{name}"}},
    }


def placement_kind(kind: str, name: str, **spec: Any) -> Json:
    return {
        "apiVersion": CLUSTER_RESOURCE_PLACEMENTS.api_version,
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


async def created(client: Client, path: str, body: Json) -> None:
    await client.request("POST", path, body=body)


async def verdicts(admission: AdmissionEnv, attempt: Attempt) -> set[str]:
    """Return the users whose attempt is allowed; the error of the others must have a reason."""

    async def refusal_of(user: str, groups: tuple[str, ...]) -> str:
        return await attempt.by(admission.client(user, (TESTERS, *groups)))

    refusals = await asyncio.gather(*(refusal_of(*each) for each in USERS.items()))
    assert all(not text or "denied the request" in text for text in refusals), refusals
    return {user for user, text in zip(USERS, refusals, strict=True) if not text}


async def test_the_guard_rail_has_its_whole_table(admission: AdmissionEnv, env: FleetEnv) -> None:
    fleet, upstream = (f"{env.new_name()}{suffix}" for suffix in "ab")
    env.joined += [fleet, upstream]
    members = f"{FLEET}/memberclusters"
    await created(env.hub, members, member_body(fleet, annotations={ANNOTATION: "a"}))
    await created(env.hub, members, member_body(upstream))
    for name in (fleet, upstream):
        await env.wait_for(name, "ReadyToJoin", "True")
    space = member_namespace(upstream)
    imc = f"{FLEET}/namespaces/{space}/internalmemberclusters/{upstream}"
    config_map = {"metadata": {"name": "x"}}
    crd = (await env.hub.request_json("GET", f"{CRDS}/works.placement.kubernetes-fleet.io"))["spec"]
    other_crd = {
        "metadata": {"name": "sails.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "sails", "kind": "Sail"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    assert crd["group"] == "placement.kubernetes-fleet.io"
    label = {"metadata": {"labels": {"team": "x"}}}
    taint = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    healthy = {
        "type": "X",
        "status": "True",
        "reason": "X",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"status": {"conditions": [healthy]}}
    cases: dict[str, tuple[Attempt, set[str]]] = {
        "change a CRD of the fleet": (
            Attempt.patch(f"{CRDS}/works.placement.kubernetes-fleet.io", label),
            ADMINS,
        ),
        "delete a CRD of the fleet": (
            Attempt("DELETE", f"{CRDS}/internalserviceexports.networking.fleet.azure.com"),
            ADMINS,
        ),
        "change a CRD of the inventory": (
            Attempt.patch(f"{CRDS}/clusterprofiles.multicluster.x-k8s.io", label),
            ADMINS,
        ),
        "create another CRD": (Attempt("POST", CRDS, other_crd), EVERYBODY),
        "create a namespace fleet-": (
            Attempt("POST", "/api/v1/namespaces", {"metadata": {"name": "fleet-new"}}),
            ALLOWED,
        ),
        "change a namespace kube-": (
            Attempt.patch("/api/v1/namespaces/kube-public", label),
            ALLOWED,
        ),
        "delete a namespace of a member": (
            Attempt("DELETE", f"/api/v1/namespaces/{space}"),
            ALLOWED,
        ),
        "create another namespace": (
            Attempt("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}}),
            EVERYBODY,
        ),
        "create a fleet MemberCluster": (
            Attempt("POST", members, member_body("new", annotations={ANNOTATION: "a"})),
            ALLOWED,
        ),
        "delete a fleet MemberCluster": (Attempt("DELETE", f"{members}/{fleet}"), ALLOWED),
        "change the spec of a fleet MemberCluster": (
            Attempt.patch(f"{members}/{fleet}", {"spec": {"heartbeatPeriodSeconds": 7}}),
            ALLOWED,
        ),
        "change the status of a fleet MemberCluster": (
            Attempt.patch(f"{members}/{fleet}/status", status),
            ALLOWED,
        ),
        "change a fleet annotation": (
            Attempt.patch(f"{members}/{fleet}", {"metadata": {"annotations": {ANNOTATION: "b"}}}),
            ALLOWED,
        ),
        "change finalizers of a fleet MemberCluster": (
            Attempt.patch(f"{members}/{fleet}", {"metadata": {"finalizers": None}}),
            ALLOWED,
        ),
        "remove the last fleet annotation": (
            Attempt.patch(f"{members}/{fleet}", {"metadata": {"annotations": {ANNOTATION: None}}}),
            NOBODY,
        ),
        "change labels of a fleet MemberCluster": (
            Attempt.patch(f"{members}/{fleet}", label),
            EVERYBODY,
        ),
        "change taints of a fleet MemberCluster": (
            Attempt.patch(f"{members}/{fleet}", taint),
            EVERYBODY,
        ),
        "change another annotation": (
            Attempt.patch(f"{members}/{fleet}", {"metadata": {"annotations": {"a": "b"}}}),
            EVERYBODY,
        ),
        "create an upstream MemberCluster": (
            Attempt("POST", members, member_body("new")),
            EVERYBODY,
        ),
        "delete an upstream MemberCluster": (Attempt("DELETE", f"{members}/{upstream}"), EVERYBODY),
        "change the spec of an upstream MemberCluster": (
            Attempt.patch(f"{members}/{upstream}", {"spec": {"heartbeatPeriodSeconds": 7}}),
            EVERYBODY,
        ),
        "change the status of an upstream MemberCluster": (
            Attempt.patch(f"{members}/{upstream}/status", status),
            ALLOWED,
        ),
        "add a fleet annotation": (
            Attempt.patch(
                f"{members}/{upstream}", {"metadata": {"annotations": {ANNOTATION: "b"}}}
            ),
            NOBODY,
        ),
        "change an InternalMemberCluster": (Attempt.patch(imc, label), ALLOWED),
        "change the status of an InternalMemberCluster": (
            Attempt.patch(f"{imc}/status", status),
            ALLOWED,
        ),
        "create a Work": (
            Attempt(
                "POST",
                f"{PLACEMENT}/namespaces/{space}/works",
                placement_kind("Work", "w", workload={"manifests": []}),
            ),
            ALLOWED,
        ),
        "create a networking object": (
            Attempt(
                "POST",
                f"/apis/networking.fleet.azure.com/v1alpha1/namespaces/{space}"
                "/internalserviceexports",
                {
                    "apiVersion": "networking.fleet.azure.com/v1alpha1",
                    "kind": "InternalServiceExport",
                    "metadata": {"name": "e"},
                    "spec": {},
                },
            ),
            ALLOWED,
        ),
        "create a ConfigMap of a member": (
            Attempt("POST", f"/api/v1/namespaces/{space}/configmaps", config_map),
            ALLOWED,
        ),
        "create a ConfigMap of the fleet": (
            Attempt("POST", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps", config_map),
            ALLOWED,
        ),
        "create a ConfigMap of kube-system": (
            Attempt("POST", "/api/v1/namespaces/kube-system/configmaps", config_map),
            ALLOWED,
        ),
        "create a ConfigMap elsewhere": (
            Attempt("POST", "/api/v1/namespaces/default/configmaps", config_map),
            EVERYBODY,
        ),
        "create an Event of the fleet": (
            Attempt(
                "POST",
                f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/events",
                {
                    "metadata": {"name": "e", "namespace": SYSTEM_NAMESPACE},
                    "involvedObject": {"namespace": SYSTEM_NAMESPACE, "name": "x"},
                },
            ),
            EVERYBODY,
        ),
    }
    found = {title: await verdicts(admission, attempt) for title, (attempt, _) in cases.items()}
    assert found == {title: expected for title, (_, expected) in cases.items()}


async def test_a_refusal_of_the_guard_rail_has_kubefleets_text(
    admission: AdmissionEnv, env: FleetEnv
) -> None:
    client = admission.client(PLAIN)
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
    with pytest.raises(Forbidden) as refused:
        await client.request("POST", path, body={"metadata": {"name": "x"}})
    assert (
        f"user: '{PLAIN}' in 'groups: [{TESTERS} system:authenticated]' is not allowed to CREATE"
        f" resource /v1, Kind=ConfigMap/: {SYSTEM_NAMESPACE}/x"
    ) in str(refused.value)


async def test_an_identity_writes_the_objects_of_its_own_member_only(
    admission: AdmissionEnv, env: FleetEnv
) -> None:
    own, other = (await env.join()).name, (await env.join()).name
    for name in (own, other):
        await env.wait_for(name, "ReadyToJoin", "True")
    # RBAC would let this user write both, as testers may do everything: the guard rail does not.
    client = admission.client(f"agent-of-{own}")
    label = MergePatch({"metadata": {"labels": {"x": "y"}}})

    await client.patch(INTERNAL_MEMBER_CLUSTERS, own, label, member_namespace(own))
    imc = f"{FLEET}/namespaces/{member_namespace(other)}/internalmemberclusters/{other}"
    await Attempt.patch(imc, dict(label.body)).refused(client, "is not allowed to UPDATE resource")
    async with env.agent_running(own):
        await env.wait_for(own, "Joined", "True")


async def refusal(client: Client, path: str, body: Json) -> str:
    """Return why an object was refused."""
    try:
        await client.request("POST", path, body=body)
    except ApiError as error:
        return str(error)
    raise AssertionError(f"{body['metadata']['name']} was created")


async def test_bad_member_clusters_are_refused(admission: AdmissionEnv, env: FleetEnv) -> None:
    client, path = admission.client(PLAIN), f"{FLEET}/memberclusters"
    body = member_body("bad")
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    body["spec"]["taints"] = [taint, taint]
    assert "taints must be unique" in await refusal(client, path, body)
    body["spec"]["taints"] = [{"key": "key-123-45678!", "effect": "NoSchedule"}]
    assert (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
        " with an alphanumeric character"
    ) in await refusal(client, path, body)
    assert f"max length is {LONGEST_MEMBER_NAME}" in await refusal(
        client, path, member_body("x" * 51)
    )
    assert "metadata.name max length is 63" in await refusal(client, path, member_body("x" * 64))
    env.joined.append("y" * 50)
    await client.request("POST", path, body=member_body("y" * 50))
    # Also through the other version.
    v1 = "/apis/cluster.kubernetes-fleet.io/v1/memberclusters"
    body = member_body("bad") | {"apiVersion": "cluster.kubernetes-fleet.io/v1"}
    body["spec"]["taints"] = [taint, taint]
    assert "taints must be unique" in await refusal(client, v1, body)


def placement_body(name: str, kind: str = "Namespace", **spec: Any) -> Json:
    selector = {"group": "", "version": "v1", "kind": kind, "name": "nowhere"}
    return placement_kind("ClusterResourcePlacement", name, resourceSelectors=[selector], **spec)


async def test_placements_get_defaults_and_bad_ones_are_refused(
    admission: AdmissionEnv, env: FleetEnv
) -> None:
    client, path = admission.client(PLAIN), f"{PLACEMENT}/clusterresourceplacements"
    name = env.new_name()
    made = await client.request_json("POST", path, body=placement_body(name))
    try:
        assert made["spec"]["policy"] == {"placementType": "PickAll"}
        assert made["spec"]["strategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": "25%",
                "maxUnavailable": "25%",
                "unavailablePeriodSeconds": 60,
            },
            "applyStrategy": {
                "type": "ClientSideApply",
                "comparisonOption": "PartialComparison",
                "whenToApply": "Always",
                "whenToTakeOver": "Always",
            },
        }
        assert made["spec"]["revisionHistoryLimit"] == 10
        wrapper = "deny create/update v1beta1 CRP has invalid fields"
        unknown = await refusal(client, path, placement_body("bad", "Sail"))
        assert wrapper in unknown
        assert "failed to get GVR of the selector" in unknown
        scoped = await refusal(client, path, placement_body("bad", "ConfigMap"))
        assert "it is not a cluster scoped resource" in scoped
        policy = {"placementType": "PickFixed", "clusterNames": ["a", "a"]}
        double = await refusal(client, path, placement_body("bad", policy=policy))
        assert "cluster names must be unique for policy type PickFixed" in double
        evictions = f"{PLACEMENT}/clusterresourceplacementevictions"
        kind = "ClusterResourcePlacementEviction"
        eviction = placement_kind(kind, "e", placementName=f"{name}-x", clusterName="c")
        later = Attempt("POST", evictions, eviction)  # the placement may be created later
        assert await later.by(client) == ""
        budgets = f"{PLACEMENT}/clusterresourceplacementdisruptionbudgets"
        kind = "ClusterResourcePlacementDisruptionBudget"
        budget = placement_kind(kind, name, maxUnavailable=1)
        assert "PickAll is not supported with any specified max unavailable 1" in await refusal(
            client, budgets, budget
        )
    finally:
        await client.request("DELETE", f"{path}/{name}")


async def test_two_overrides_cannot_select_one_object(
    admission: AdmissionEnv, env: FleetEnv
) -> None:
    client, path = admission.client(PLAIN), f"{PLACEMENT}/clusterresourceoverrides"
    first, second = (f"{env.new_name()}{suffix}" for suffix in "ab")
    selector = {"group": "", "version": "v1", "kind": "Namespace", "name": first}
    terms = {"clusterSelectorTerms": [{"labelSelector": {"matchLabels": {"a": "b"}}}]}
    patch = {"op": "add", "path": "/metadata/labels/x", "value": "y"}
    rule = {"clusterSelector": terms, "jsonPatchOverrides": [patch]}

    def override(name: str, **rules: Any) -> Json:
        policy = {"overrideRules": [rule | rules]}
        kind = "ClusterResourceOverride"
        return placement_kind(kind, name, clusterResourceSelectors=[selector], policy=policy)

    await client.request("POST", path, body=override(first))
    try:
        text = await refusal(client, path, override(second))
        assert f"the resource has been selected by both {second} and {first}" in text
        bad = [{"op": "remove", "path": "/status/x", "value": 1}]
        selector["name"] = second
        text = await refusal(client, path, override(second, jsonPatchOverrides=bad))
        assert "cannot override status fields" in text
        assert "remove operation cannot have value" in text
    finally:
        await client.request("DELETE", f"{path}/{first}")


async def test_garbage_gets_a_clear_answer_and_the_server_lives_on(
    admission: AdmissionEnv, port: int
) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    url = f"https://127.0.0.1:{port}"
    path = validating_path("cluster.kubernetes-fleet.io", "v1beta1", "membercluster")
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    no_object = {"uid": "1", "kind": {"kind": "MemberCluster"}, "operation": "CREATE"}
    json_type = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        for body, headers in (
            (b"", json_type),
            (b"\xff\xfe", json_type),
            (b"[" * 100_000, json_type),
            (b"null", json_type),
            (b'{"apiVersion": 3}', json_type),
            (b'{"apiVersion": "v1", "kind": "Pod"}', json_type),
            (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}', json_type),
            (b"{}", {"Content-Type": "text/plain"}),
        ):
            async with session.post(f"{url}{path}", data=body, headers=headers) as answer:
                assert answer.status == 400, body
                assert "not an AdmissionReview" in await answer.text()
        async with session.post(f"{url}{path}", json=review | {"request": no_object}) as answer:
            response = (await answer.json())["response"]
            assert not response["allowed"]
            assert "request.object cannot be read" in response["status"]["message"]
        large = io.BytesIO(b'{"x": "' + b"y" * (9 << 20) + b'"}')
        async with session.post(f"{url}{path}", data=large, headers=json_type) as answer:
            assert answer.status == 413
        for method in ("get", "put", "delete"):
            async with session.request(method, f"{url}{path}") as answer:
                assert answer.status == 405
        async with session.get(f"{url}/") as answer:
            assert answer.status == 404
    taint = {"key": "k", "effect": "NoSchedule"}
    twice = member_body("bad")
    twice["spec"]["taints"] = [taint, taint]
    client = admission.client(PLAIN)
    assert "taints must be unique" in await refusal(client, f"{FLEET}/memberclusters", twice)


async def bundles(hub: Client) -> set[str]:
    """Return the authorities that API servers trust, of all webhooks."""
    trusted = set()
    for resource, name in ((MUTATING, MUTATING_WEBHOOKS), (VALIDATING, VALIDATING_WEBHOOKS)):
        stored = (await hub.get(resource, name, keep_raw=True)).content()
        trusted |= {each["clientConfig"]["caBundle"] for each in stored["webhooks"]}
    return trusted


async def test_replicas_share_the_certificate_and_drift_is_repaired(
    admission: AdmissionEnv, env: FleetEnv, port: int
) -> None:
    assert await registered(env.hub) == WEBHOOKS
    second = unused()
    async with admission.hub("standby", "--enable-guard-rail", port=second, url_port=port):
        assert await peer_certificate(port) == await peer_certificate(second)
    (bundle,) = await bundles(env.hub)
    certificate = x509.load_der_x509_certificate(await peer_certificate(port))
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(base64.b64decode(bundle)))
    stored = await env.hub.get(VALIDATING, VALIDATING_WEBHOOKS)
    damaged = env.hub_cluster.audit.mark()
    await env.hub.delete(VALIDATING, VALIDATING_WEBHOOKS, uid=stored.uid)
    webhooks = [{"name": "fleet.foreign.validating", "sideEffects": "None",
                 "admissionReviewVersions": ["v1"],
                 "clientConfig": {"url": "https://127.0.0.1:1/"}}]  # fmt: skip
    patch = MergePatch({"webhooks": webhooks})
    await env.hub.patch(MUTATING, MUTATING_WEBHOOKS, patch)

    async def repaired() -> bool:
        if await registered(env.hub) != WEBHOOKS:
            return False
        mutating = (await env.hub.get(MUTATING, MUTATING_WEBHOOKS, keep_raw=True)).content()
        names = [each["name"] for each in mutating["webhooks"]]
        return names == ["fleet.clusterresourceplacementv1beta1.mutating"]

    def writes(since: int) -> list[AuditedRequest]:
        account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:fleet-hub"
        return [
            each
            for each in env.hub_cluster.audit.requests(user=account, since=since)
            if each.verb not in ("get", "list", "watch")
            and each.resource.endswith("configurations")
        ]

    await until(repaired)
    # The server shows an object to readers before it records the request that wrote the object.
    await until(lambda: len([each for each in writes(damaged) if each.verb == "patch"]) >= 2)
    mark = env.hub_cluster.audit.mark()
    body = member_body("bad")
    body["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule"}] * 2
    attempt = Attempt("POST", f"{FLEET}/memberclusters", body)
    await attempt.refused(admission.client(PLAIN), "taints must be unique")
    assert writes(mark) == []  # a registration is written once
