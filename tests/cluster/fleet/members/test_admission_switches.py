"""Admission that is switched on and off: which registrations are created, kept and removed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.api.fleet.names import (
    GUARD_RAIL_WEBHOOKS,
    MUTATING_WEBHOOKS,
    SERVICE_ACCOUNT_POLICY,
    SYSTEM_NAMESPACE,
    VALIDATING_WEBHOOKS,
    WEBHOOK_CERTIFICATES,
    WORKLOAD_POLICY,
    policy_binding,
)
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json
from support.admission_env import (
    REGISTERED,
    VALIDATING,
    AdmissionEnv,
    Attempt,
    peer_certificate,
    registered,
)
from support.fleet_env import FleetEnv
from support.fleet_process import HASTY
from support.servers import unused
from support.wait import until

PLAIN = "plain-user"
POD: Json = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def admission(env: FleetEnv, tmp_path: Path) -> AsyncIterator[AdmissionEnv]:
    async with AdmissionEnv.start(env, tmp_path) as made:
        yield made


async def certificates(env: FleetEnv) -> Json:
    secret = await env.hub.get(SECRETS, WEBHOOK_CERTIFICATES, SYSTEM_NAMESPACE, keep_raw=True)
    return dict(secret.content()["data"])


async def test_a_restart_keeps_the_authority_and_switching_off_removes_all(
    admission: AdmissionEnv, env: FleetEnv
) -> None:
    async with admission.hub("first", "--enable-guard-rail") as hub:
        assert await registered(env.hub) == {
            MUTATING_WEBHOOKS,
            VALIDATING_WEBHOOKS,
            GUARD_RAIL_WEBHOOKS,
        }
        assert hub.lines("Registered admission policies and webhooks")
    before = await certificates(env)
    port = unused()
    async with admission.hub("second", port=port):
        # The same certificates serve at another port; the guard rail is off.
        assert await registered(env.hub) == {MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS}
        assert await certificates(env) == before
        assert await peer_certificate(port)
        stored = (await env.hub.get(VALIDATING, VALIDATING_WEBHOOKS, keep_raw=True)).content()
        webhook = stored["webhooks"][0]["clientConfig"]
        assert webhook["url"].startswith(f"https://127.0.0.1:{port}/validate-")
        assert webhook["caBundle"] == before["ca.crt"]
        # Pods are banned by an explicit flag only.
        assert "fleet.pod.validating" not in [each["name"] for each in stored["webhooks"]]
        assert await Attempt("POST", PODS, POD).by(env.hub) == ""
    async with admission.process("off", *HASTY) as hub:
        assert await registered(env.hub) == set()
        assert hub.lines("Deleted admission object")
    account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:fleet-hub"
    requests = env.hub_cluster.audit.requests(user=account)
    written = ("secrets", *(resource.plural for resource, _ in REGISTERED))
    refused = [each for each in requests if each.code == 403 and each.resource in written]
    assert refused == []


async def test_damaged_certificates_are_replaced(admission: AdmissionEnv, env: FleetEnv) -> None:
    port = unused()
    async with admission.hub("hub", port=port):
        old = await peer_certificate(port)
        secret = await env.hub.get(SECRETS, WEBHOOK_CERTIFICATES, SYSTEM_NAMESPACE)
        await env.hub.delete(SECRETS, secret.name, SYSTEM_NAMESPACE, uid=secret.uid)

        async def is_new() -> bool:
            return await peer_certificate(port) != old

        await until(is_new)

        async def is_trusted() -> bool:
            stored = (await env.hub.get(VALIDATING, VALIDATING_WEBHOOKS, keep_raw=True)).content()
            bundle = base64.b64decode(stored["webhooks"][0]["clientConfig"]["caBundle"])
            return bundle == base64.b64decode((await certificates(env))["ca.crt"])

        await until(is_trusted)


async def test_bans_of_workloads_need_a_flag(admission: AdmissionEnv, env: FleetEnv) -> None:
    flags = ("--enable-workload=false", "--enable-pdbs=false")
    async with admission.hub("hub", *flags):
        text = "Pod default/p creation is disallowed in the fleet hub cluster"
        await Attempt("POST", PODS, POD).refused(env.hub, text)
        selector = {"matchLabels": {"a": "b"}}
        replicas = {
            "metadata": {"name": "r"},
            "spec": {
                "selector": selector,
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]},
            },
        }
        path = "/apis/apps/v1/namespaces/default/replicasets"
        text = await Attempt("POST", path, replicas).by(env.hub)
        assert "ReplicaSet default/r creation is disallowed in the fleet hub cluster" in text
        budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}}
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        text = await Attempt("POST", path, budget).by(env.hub)
        assert "PDBs default/b cannot be directly created in the hub cluster" in text
        own = PODS.replace("default", SYSTEM_NAMESPACE)
        assert await Attempt("POST", own, POD).by(env.hub) == ""


async def test_policies_protect_service_accounts_of_reserved_namespaces(
    admission: AdmissionEnv, env: FleetEnv, tmp_path: Path
) -> None:
    client = admission.client(PLAIN)
    own = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts"
    account = Attempt("POST", own, {"metadata": {"name": "a"}})
    message = "writing service accounts in reserved namespaces or requesting tokens"
    token = Attempt("POST", f"{own}/fleet-hub/token", {"spec": {"expirationSeconds": 600}})
    manager = "--enable-admission-policy-manager"
    async with admission.process("default", *HASTY, manager):
        both = {SERVICE_ACCOUNT_POLICY, policy_binding(SERVICE_ACCOUNT_POLICY)}
        assert await registered(env.hub) == both
        await account.refused(client, message)
        assert message in await token.by(client)
        assert await account.by(env.hub) == ""  # a member of system:masters
        elsewhere = "/api/v1/namespaces/default/serviceaccounts"
        body = {"metadata": {"name": "a"}}
        assert await Attempt("POST", elsewhere, body).by(client) == ""
        assert await Attempt("POST", PODS, POD).by(client) == ""
    config = tmp_path / "policies.yaml"
    config.write_text(
        "denyPodsAndReplicaSetsOutsideReservedNamespaces:\n"
        "  ReservedNamespacePrefixes: [fleet-, kube-]\n"
    )
    path = f"--admission-policy-manager-config={config}"
    async with admission.process("pods", *HASTY, manager, path):
        assert await registered(env.hub) == {WORKLOAD_POLICY, policy_binding(WORKLOAD_POLICY)}
        text = "creating pods and replicas is disallowed in the fleet hub cluster"
        await Attempt("POST", PODS, POD).refused(client, text)

        async def is_free() -> bool:
            return not await account.by(client)

        await until(is_free)
    async with admission.process("off", *HASTY):
        assert await registered(env.hub) == set()
