"""One real control plane: its life, its users, its audit log."""

from __future__ import annotations

from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES


async def test_shared_cluster_serves(cluster: Cluster, client: Client) -> None:
    names = {namespace.name for namespace in (await client.list(NAMESPACES)).items}
    assert {"default", "kube-system"} <= names


async def test_objects_can_be_made_in_a_fresh_namespace(client: Client, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace=namespace)
    assert made.namespace == namespace
