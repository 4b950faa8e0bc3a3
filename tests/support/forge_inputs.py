"""Inputs of the forge: virtual pods and contexts."""

from __future__ import annotations

from typing import Any

from kubeocean.api import naming
from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge_context import Context, CopyNames, Endpoint
from kubeocean.syncer.pods.referenced_objects import references, token_secret

__all__ = ["OWNERSHIP", "SERVER", "context_for", "names_for", "vpod"]

UID = "6a1e31c6-9d6c-4f9e-8c33-0d2a3a0f7e55"
SERVER = Endpoint("10.9.8.7", 6443)
OWNERSHIP = {
    DEFAULT.managed_by: DEFAULT.product,
    DEFAULT.cluster_binding: "worker-1",
    DEFAULT.physical_cluster_id: "w1",
    DEFAULT.computing_cluster_id: "c1",
}


def vpod(
    name: str = "web",
    *,
    namespace: str = "team",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owners: list[Json] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod as the computing cluster's API server stores it."""
    metadata: Json = {"name": name, "namespace": namespace, "uid": UID, "resourceVersion": "7"}
    for key, value in (
        ("labels", labels),
        ("annotations", annotations),
        ("ownerReferences", owners),
    ):
        if value is not None:
            metadata[key] = value
    given = {
        "containers": [{"name": "app", "image": "app:1"}],
        "serviceAccountName": "robot",
        "serviceAccount": "robot",
        "nodeName": "vnode-w1-n1",
        "dnsPolicy": "Default",
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": given, "status": {}}


def names_for(pod: Json) -> CopyNames:
    """Return the names of the copies of all objects that a pod refers to."""
    meta, refs = pod["metadata"], references(pod)
    namespace = meta["namespace"]

    def copies(names: Any) -> dict[str, str]:
        return {name: naming.physical_name(name, namespace) for name in names}

    tokens = {
        (t.volume, t.index): token_secret(t, meta["name"], namespace, uid=meta["uid"])
        for t in refs.tokens
    }
    by_kind = {
        "ConfigMap": copies(refs.config_maps),
        "Secret": copies((*refs.secrets, *refs.pull_secrets)),
        "PersistentVolumeClaim": copies(refs.all_claims),
    }
    return CopyNames(by_kind, tokens)


def context_for(pod: Json, **changes: Any) -> Context:
    """Return a context of an ordinary worker, with these changes."""
    meta = pod["metadata"]
    given: dict[str, Any] = {
        "name": naming.physical_name(meta["name"], meta["namespace"]),
        "namespace": "kubeocean-worker",
        "node": "n1",
        "vnode": "vnode-w1-n1",
        "names": names_for(pod),
        "ownership_labels": OWNERSHIP,
        "server": SERVER,
        "dns": "10.9.8.6",
    }
    return Context(**(given | changes))
