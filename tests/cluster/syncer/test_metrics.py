"""Metrics of a syncer, scraped from its process: they appear, change, and vanish."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.kinds import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from support.binding_env import BindingEnv
from support.syncer_process import SyncerProcess, syncer
from support.wait import until

Series = dict[tuple[str, ...], float]
AMOUNTS = ("origin_resource", "available_resource", "physical_usage", "virtual_usage")


class Page:
    """The series of one binding, by name and labels."""

    def __init__(self, binding_env: BindingEnv, process: SyncerProcess) -> None:
        self._sea = binding_env
        self._process = process

    async def read(self) -> Series:
        status, text = await self._process.page("metrics", "/metrics")
        assert status == 200
        series: Series = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = dict(sample.labels)
                if labels.pop("clusterbinding", None) == self._sea.name:
                    name = sample.name.removeprefix("kubeocean_syncer_")
                    series[(name, *labels.values())] = sample.value
        return series

    async def shows(self, **wanted: float) -> Series:
        """Return the series, once the metrics of the whole cluster have these values."""

        async def matching() -> Series | None:
            series = await self.read()
            assert {name: series.get((name, "cpu")) for name in wanted} == wanted
            return series

        series = await until(matching)
        assert series is not None
        return series


def host_of(cluster: Cluster) -> str:
    return urlsplit(cluster.server).netloc


async def add_pod(
    binding_env: BindingEnv, namespace: str, name: str, node: str, **metadata: object
) -> None:
    """Create a pod that is bound to a node from the start."""
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    body: Json = {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "default",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "none", "resources": resources}],
        },
    }
    client = binding_env.computing_api if node.startswith("vnode-") else binding_env.worker_api
    await client.create(PODS, body)


async def test_metrics_appear_change_and_vanish(
    binding_env: BindingEnv, namespace: str, tmp_path: Path
) -> None:
    await binding_env.bind()
    nodes = [await binding_env.add_node(name) for name in ("a", "b")]
    flags = (f"--cluster-binding-name={binding_env.name}",)
    kubeconfig = binding_env.computing.user(f"{binding_env.name}-metrics", ["system:masters"])
    async with syncer("one", *flags, kubeconfig=kubeconfig, directory=tmp_path) as one:
        await until(one.is_ready)
        page = Page(binding_env, one)
        before = await page.read()
        assert before[("vnode_total",)] == 0
        assert before[("virtual_pod_total", "Running")] == 0
        assert before[("create_pod_total",)] == before[("pod_created_failed_total",)] == 0
        assert not [series for series in before if series[0].startswith("cluster_")]

        began = time.time()
        policy = await binding_env.lend(resourceLimits=[{"resource": "cpu", "percent": 50}])
        series = await page.shows(cluster_origin_resource=16_000, cluster_available_resource=8_000)
        assert series[("vnode_total",)] == 2

        async def in_sync() -> bool:
            return (await page.read())[("last_sync_timestamp_seconds",)] >= began

        await until(in_sync)
        vnode = (await binding_env.vnodes())[0].name
        assert [series[f"vnode_{name}", vnode, "cpu"] for name in AMOUNTS] == [8000, 4000, 0, 0]
        assert [series[f"vnode_{name}", vnode, "memory"] for name in AMOUNTS] == [
            *(32 * 1024, 32 * 1024),
            *(0, 0),
        ]
        assert not [labels for labels in series if "pods" in labels]

        # A foreign pod on the worker's node, and a pod on the virtual node.
        await binding_env.worker_api.create(NAMESPACES, {"metadata": {"name": namespace}})
        await binding_env.worker_api.create(
            SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=namespace
        )
        await add_pod(binding_env, namespace, "other", nodes[0].name)
        await add_pod(binding_env, namespace, "virtual", vnode)
        await add_pod(binding_env, "kube-system", f"system-{binding_env.name}", vnode)
        series = await page.shows(cluster_physical_usage=500, cluster_available_resource=7_750)
        assert series[("vnode_physical_usage", vnode, "memory")] == 1024

        async def one_pending() -> bool:
            return (await page.read())[("virtual_pod_total", "Pending")] == 1

        await until(one_pending)

        # The series of a deleted node vanish, and with the policy all series of nodes.
        await binding_env.worker_api.delete(NODES, nodes[1].name, uid=nodes[1].uid)

        async def one_left() -> bool:
            series = await page.read()
            named = {labels[1] for labels in series if len(labels) == 3}
            return named == {vnode} and series[("vnode_total",)] == 1

        await until(one_left)
        assert (await page.read())[("cluster_origin_resource", "cpu")] == 8_000
        for name, where in (("virtual", namespace), (f"system-{binding_env.name}", "kube-system")):
            await binding_env.computing_api.delete(PODS, name, where, uid=None, grace_s=0)
        lending = await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, policy)
        await binding_env.worker_api.delete(RESOURCE_LEASING_POLICIES, policy, uid=lending.uid)

        async def none_left() -> bool:
            return set(await page.read()) == set(before)

        await until(none_left)
        text = (await one.page("metrics", "/metrics"))[1]
        assert (
            f'rest_client_requests_total{{code="201",host="{host_of(binding_env.computing)}",'
            in text
        )
        assert (
            f'rest_client_requests_total{{code="200",host="{host_of(binding_env.worker)}",' in text
        )
        assert await one.process.stop() == 0
