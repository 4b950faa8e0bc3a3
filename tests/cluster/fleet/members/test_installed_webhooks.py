"""Webhooks of an installed hub: how API servers reach them, and which objects an uninstall
keeps."""

from __future__ import annotations

import copy
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.api.fleet.names import HUB_ACCOUNT, SYSTEM_NAMESPACE, WEBHOOK_PORT
from kubeocean.install.fleet import hub_objects, hub_workload
from kubeocean.install.values import Values
from kubeocean.runtime.objects import Json
from support.admission_env import AdmissionEnv, Attempt, registered
from support.control_planes import applier
from support.fleet_env import FleetEnv
from support.fleet_process import HASTY
from support.servers import unused
from support.wait import until

CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
SERVICES = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/endpointslices"
MEMBERS = "/apis/cluster.kubernetes-fleet.io/v1beta1/memberclusters"
TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}
TWICE: Json = {
    "apiVersion": "cluster.kubernetes-fleet.io/v1beta1",
    "kind": "MemberCluster",
    "metadata": {"name": "twice"},
    "spec": {"identity": {"kind": "User", "name": "u"}, "taints": [TAINT, TAINT]},
}


@pytest.fixture
async def admission(env: FleetEnv, tmp_path: Path) -> AsyncIterator[AdmissionEnv]:
    async with AdmissionEnv.start(env, tmp_path) as made:
        yield made


def own_address() -> str:
    """Return an address of this machine that may be in an EndpointSlice: not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


async def test_an_api_server_reaches_an_installed_hub_by_its_service(
    admission: AdmissionEnv, env: FleetEnv
) -> None:
    """The flags and the Service are those of the manifests, with a port that is free here."""
    objects = {each["kind"]: each for each in hub_workload(Values())}
    port = unused()
    service = copy.deepcopy(objects["Service"])
    (entry,) = service["spec"]["ports"]
    assert entry["port"] == WEBHOOK_PORT
    entry["port"] = port
    (program,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    skipped = ("address", "metrics-secure")
    flags = [each for each in program["args"][2:] if not any(word in each for word in skipped)]
    name = service["metadata"]["name"]
    # On this machine no kubelet runs the pods of the Deployment, and no controller finds them.
    ports = [{"name": entry["name"], "port": port}]
    endpoint = {"addresses": [own_address()], "conditions": {"ready": True}}
    slice_: Json = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": ports,
    }
    async with applier(env.hub_cluster) as installing:
        await installing.apply(service)
    await env.hub.request("POST", SLICES, body=slice_)
    try:
        words = (*HASTY, *flags, f"--webhook-bind-address=:{port}")
        async with admission.process("hub", *words):
            await Attempt("POST", MEMBERS, TWICE).refused(env.hub, "taint")
            plain = TWICE | {"spec": {"identity": TWICE["spec"]["identity"]}}
            assert await Attempt("POST", MEMBERS, plain).by(env.hub) == ""
    finally:
        await env.hub.request("DELETE", f"{SLICES}/{name}")
        await env.hub.request("DELETE", f"{SERVICES}/{name}")


async def test_a_hub_that_is_uninstalled_leaves_no_webhooks(
    admission: AdmissionEnv, env: FleetEnv
) -> None:
    """Webhooks that no process serves would refuse every change of members and placements."""
    async with admission.hub("hub", "--enable-guard-rail"):
        await until(lambda: has_webhooks(env))
        try:
            await env.hub.request("DELETE", f"{CLUSTER_ROLES}/{HUB_ACCOUNT}")

            async def are_gone() -> bool:
                return not await has_webhooks(env)

            await until(are_gone)
            audit = env.hub_cluster.audit
            user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{HUB_ACCOUNT}"
            since = audit.mark()
            # A replica that still runs tries to register again.
            await until(
                lambda: [
                    each for each in audit.requests(user=user, since=since) if each.code == 403
                ]
            )
            assert not await has_webhooks(env)
        finally:
            async with applier(env.hub_cluster) as installing:
                await installing.apply_all(hub_objects())
        # With its rights the hub registers its webhooks again, with another owner.
        await until(lambda: has_webhooks(env))


async def has_webhooks(env: FleetEnv) -> bool:
    return bool(await registered(env.hub))
