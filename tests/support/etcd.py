"""Operations on etcd that only its operator may do, through its JSON gateway."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from kubeocean.local import layout
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.kinds import PODS
from kubeocean.runtime.objects import Resource
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import HttpTransport

__all__ = ["compact", "half_delete", "stored_bytes"]


async def compact(cluster: Cluster) -> int:
    """Compact all versions but the newest; return its number."""
    async with _operator(cluster) as etcd:
        answer = await etcd.request_json("POST", "/v3/kv/range", body={"key": "AA=="})
        revision = int(answer["header"]["revision"])
        body = {"revision": revision, "physical": True}
        await etcd.request("POST", "/v3/kv/compaction", body=body)
    return revision


async def half_delete(cluster: Cluster, client: Client, name: str, namespace: str) -> None:
    """Leave a pod as a deletion without grace leaves it if its client is lost halfway."""
    pod = (await client.get(PODS, name, namespace, keep_raw=True)).content()
    marks = {"deletionTimestamp": f"{datetime.now(UTC):%FT%TZ}", "deletionGracePeriodSeconds": 0}
    document = {"apiVersion": "v1", "kind": "Pod"} | pod | {"metadata": pod["metadata"] | marks}
    value = msgspec.json.encode(document)
    path = f"/registry/pods/{namespace}/{name}".encode()
    async with _operator(cluster) as etcd:
        body = {"key": _encoded(path), "value": _encoded(value)}
        await etcd.request("POST", "/v3/kv/put", body=body)


async def stored_bytes(cluster: Cluster, resource: Resource[Any], *, most: int = 500) -> float:
    """Return the average size of a resource's objects as etcd stores them, of `most` objects at
    most."""
    prefix = f"/registry/{resource.group}/{resource.plural}/".encode()
    body = {"key": _encoded(prefix), "range_end": _encoded(prefix[:-1] + b"0"), "limit": most}
    async with _operator(cluster) as etcd:
        answer = await etcd.request_json("POST", "/v3/kv/range", body=body)
    sizes = [len(base64.b64decode(each["value"])) for each in answer["kvs"]]
    return sum(sizes) / len(sizes)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


@asynccontextmanager
async def _operator(cluster: Cluster) -> AsyncIterator[Client]:
    pki = cluster.root / "pki"
    access = Access(
        f"https://127.0.0.1:{layout.load_ports(cluster.root).etcd}",
        ca=(pki / "etcd-ca.crt").read_bytes(),
        certificate=(pki / "etcd-client.crt").read_bytes(),
        private_key=Secret((pki / "etcd-client.key").read_bytes()),
    )
    etcd = Client(HttpTransport(StaticAccess(access)))
    try:
        yield etcd
    finally:
        await etcd.close()
