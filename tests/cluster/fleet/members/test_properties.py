"""Properties, resources and conditions of a member, entry by entry, on real API servers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.works import APPLIED_WORKS
from kubeocean.fleet.agent.nodes import AzureOptions
from kubeocean.fleet.extensions import OURS, UPSTREAM
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NAMESPACES, NODES, PODS, Node
from support.fleet_env import FleetEnv
from support.wait import until

SKU = "Standard_D8s_v5"


@pytest.fixture
async def node(env: FleetEnv) -> AsyncIterator[Node]:
    """The only node of the member, with a GPU."""
    name = f"n{uuid.uuid4().hex[:6]}"
    labels = {
        "beta.kubernetes.io/instance-type": SKU,
        "topology.kubernetes.io/zone": "zone-1",
        "topology.kubernetes.io/region": "westus",
    }
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2"}
    body = {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    made = await env.member.create(NODES, body)
    yield made
    await env.member.delete(NODES, name, uid=made.uid)


async def put_pods(env: FleetEnv, node: str, count: int, **requests: str) -> None:
    for number in range(count):
        container = {"name": "c", "image": "i", "resources": {"requests": requests}}
        body = {
            "metadata": {"name": f"{node}-{number}", "namespace": "default"},
            "spec": {"nodeName": node, "containers": [container]},
        }
        await env.member.create(PODS, body)


async def remove_pods(env: FleetEnv, node: str) -> None:
    for pod in (await env.member.list(PODS, "default")).items:
        if pod.name.startswith(node):
            await env.member.delete(PODS, pod.name, "default", uid=pod.uid, grace_s=0)


async def reported(env: FleetEnv, name: str, *properties: str) -> MemberCluster:
    async def has_all() -> MemberCluster | None:
        member = await env.get(name)
        return member if set(properties) <= set(member.status.properties) else None

    member = await until(has_all)
    assert member is not None
    return member


AZURE = {
    "kubernetes-fleet.io/node-count": "1",
    f"kubernetes.azure.com/vm-sizes/{SKU}/count": "1",
    "kubernetes.azure.com/per-cpu-core-cost": "0.056",
    "kubernetes.azure.com/per-gb-memory-cost": "0.014",
}


async def test_without_extensions_a_status_has_kubefleets_entries_only(
    env: FleetEnv, node: Node
) -> None:
    async with env.hub_running(extensions=UPSTREAM):
        name = (await env.join()).name
        async with env.agent_running(
            name, azure=AzureOptions(), with_namespaces=True, extensions=UPSTREAM
        ):
            await env.wait_for(name, "Joined", "True")
            member = await reported(env, name, *AZURE)
    status = member.status
    conditions = [(each.type, each.status, each.reason) for each in status.conditions]
    assert conditions == [
        ("ReadyToJoin", "True", "MemberClusterReadyToJoin"),
        ("Joined", "True", "MemberClusterJoined"),
        ("ClusterPropertyProviderStarted", "True", "Started"),
        ("ClusterPropertyCollectionSucceeded", "True", "PropertiesCollected"),
        ("AKSClusterCostPropertiesCollectionSucceeded", "True", "CostsCalculationDegraded"),
        ("NamespaceCollectionSucceeded", "True", "Succeeded"),
    ]
    assert {each.observed_generation for each in status.conditions} == {1}
    values = {key: each.value for key, each in status.properties.items()}
    assert values.pop("k8s.io/k8s-version").startswith("v1.")
    assert "BEGIN CERTIFICATE" in values.pop("k8s.io/cluster-certificate-authority-data")
    assert values == AZURE
    usage = status.resource_usage
    for amounts in (usage.capacity, usage.allocatable, usage.available):
        assert {key: str(value) for key, value in amounts.items()} == {"cpu": "8", "memory": "32Gi"}
    (agent,) = status.agent_status
    assert {(each.type, each.status, each.reason) for each in agent.conditions} == {
        ("Joined", "True", "InternalMemberClusterJoined"),
        ("Healthy", "True", "InternalMemberClusterHealthy"),
    }
    assert status.namespaces is not None
    assert status.namespaces["kube-system"] == ""


async def test_the_built_in_provider_reports_resources_without_conditions(
    env: FleetEnv, node: Node
) -> None:
    async with env.hub_running(extensions=UPSTREAM):
        name = (await env.join()).name
        async with env.agent_running(name, extensions=UPSTREAM):
            member = await reported(env, name, "kubernetes-fleet.io/node-count")
    assert set(member.status.properties) == {"kubernetes-fleet.io/node-count"}
    assert [each.type for each in member.status.conditions] == ["ReadyToJoin", "Joined"]
    assert member.status.namespaces is None


async def test_extensions_report_devices_zones_and_all_pods(env: FleetEnv, node: Node) -> None:
    gpu = "kubeocean.io/resources/nvidia.com/gpu"
    await put_pods(env, node.name, 120, cpu="10m")
    try:
        async with env.hub_running(extensions=OURS):
            name = (await env.join()).name
            async with env.agent_running(name):
                member = await reported(env, name, f"{gpu}/available")
                assert str(member.status.resource_usage.available["cpu"]) == "6800m"
                values = {key: each.value for key, each in member.status.properties.items()}
                assert values[f"{gpu}/capacity"] == "2"
                assert values[f"kubeocean.io/skus/{SKU}/nodes"] == "1"
                assert values["kubeocean.io/zones/zone-1/nodes"] == "1"
                assert values["kubeocean.io/regions/westus/nodes"] == "1"
                await remove_pods(env, node.name)

                async def freed() -> bool:
                    usage = (await env.get(name)).status.resource_usage
                    return str(usage.available["cpu"]) == "8"

                await until(freed)
                profile = await env.profile(name)
                listed = {each.name: each.value for each in profile.status.properties}
                assert listed[f"{gpu}/capacity"] == "2"
                (access,) = profile.status.access_providers
                assert access.name == "KubeFleet"
                assert access.cluster is not None
                assert access.cluster.certificate_authority_data
    finally:
        await remove_pods(env, node.name)


async def test_namespaces_that_a_work_owns_name_it(env: FleetEnv) -> None:
    space = f"s{uuid.uuid4().hex[:6]}"
    work = await env.member.create(
        APPLIED_WORKS,
        {
            "apiVersion": APPLIED_WORKS.api_version,
            "kind": "AppliedWork",
            "metadata": {"name": f"w-{space}"},
            "spec": {"workName": "w", "workNamespace": "fleet-member-x"},
        },
    )
    owner = {
        "apiVersion": APPLIED_WORKS.api_version,
        "kind": "AppliedWork",
        "name": work.name,
        "uid": work.uid,
    }
    await env.member.create(NAMESPACES, {"metadata": {"name": space}})
    async with env.hub_running():
        name = (await env.join()).name
        async with env.agent_running(name, azure=AzureOptions(), with_namespaces=True):

            async def shows(value: str) -> bool:
                return ((await env.get(name)).status.namespaces or {}).get(space) == value

            await until(lambda: shows(""))
            patch = MergePatch({"metadata": {"ownerReferences": [owner]}})
            await env.member.patch(NAMESPACES, space, patch)
            await until(lambda: shows(work.name))


async def test_an_agent_that_no_longer_collects_namespaces_removes_list_and_condition(
    env: FleetEnv,
) -> None:
    """The scheduler refuses a member that has the condition and no namespaces."""
    azure = AzureOptions()
    async with env.hub_running():
        name = (await env.join()).name
        async with env.agent_running(name, azure=azure, with_namespaces=True):
            await env.wait_for(name, "NamespaceCollectionSucceeded", "True")
        async with env.agent_running(name, azure=azure):

            async def is_removed() -> bool:
                assert await env.condition(name, "NamespaceCollectionSucceeded") is None
                return (await env.get(name)).status.namespaces is None

            await until(is_removed)
        internal = await env.internal(name)
        assert [each.type for each in internal.status.conditions] == [
            "ClusterPropertyProviderStarted",
            "ClusterPropertyCollectionSucceeded",
            "AKSClusterCostPropertiesCollectionSucceeded",
        ]
