"""Doing to etcd what only its operator may, through its JSON gateway."""

from __future__ import annotations

from kubeocean.local import layout
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.secrets import Secret
from kubeocean.runtime.transport import HttpTransport

__all__ = ["compact"]


async def compact(cluster: Cluster) -> int:
    """Forget every version but the newest; its number."""
    pki = cluster.root / "pki"
    access = Access(
        f"https://127.0.0.1:{layout.load_ports(cluster.root).etcd}",
        ca=(pki / "etcd-ca.crt").read_bytes(),
        certificate=(pki / "etcd-client.crt").read_bytes(),
        private_key=Secret((pki / "etcd-client.key").read_bytes()),
    )
    etcd = Client(HttpTransport(StaticAccess(access)))
    answer = await etcd.request_json("POST", "/v3/kv/range", body={"key": "AA=="})
    revision = int(answer["header"]["revision"])
    await etcd.request("POST", "/v3/kv/compaction", body={"revision": revision, "physical": True})
    await etcd.close()
    return revision
