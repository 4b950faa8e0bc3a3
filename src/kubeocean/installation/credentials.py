"""Credentials: how the computing cluster gets to reach a worker.

A credential is a token of the worker's ServiceAccount, bound to a Secret beside it: it ends at its
time, or at once when that Secret is deleted. It stands, as a kubeconfig with everything inside, in
a Secret of the computing cluster, which says when it ends.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import yaml

from kubeocean.api.group import KUBECONFIG_KEY, Domain
from kubeocean.api.naming import label_value
from kubeocean.errors import ConfigError
from kubeocean.installation.parts import labels, named
from kubeocean.runtime.access import Access
from kubeocean.runtime.objects import Json

__all__ = [
    "LIFETIME",
    "Minted",
    "due",
    "kubeconfig",
    "kubeconfig_secret",
    "secret_name",
    "token_request",
]

LIFETIME: Final = timedelta(days=365)
_LEFT: Final = 1 / 3  # of its life: then it is time for another


@dataclass(frozen=True, slots=True)
class Minted:
    """A token and its time; it does not show when printed."""

    token: str
    begins: datetime
    ends: datetime

    def __repr__(self) -> str:
        return f"Minted(ends={self.ends.isoformat()})"


def token_request(secret: str, uid: str, lifetime: timedelta = LIFETIME) -> Json:
    """What is asked of a ServiceAccount; a server may give less time."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": int(lifetime.total_seconds()),
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": uid},
        },
    }


def kubeconfig(access: Access, token: str, *, namespace: str) -> str:
    """The way of `access` to its server, with a token instead of whoever that was."""
    if not access.server.startswith("https://"):
        said = "must be https: a token is not sent over anything else"
        raise ConfigError(said, field="server", value=access.server, source=access.origin)
    cluster: Json = {"server": access.server}
    if access.ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(access.ca).decode()
    if access.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if access.tls_server_name:
        cluster["tls-server-name"] = access.tls_server_name
    if access.proxy_url:
        cluster["proxy-url"] = access.proxy_url
    context = {"cluster": "worker", "user": "kubeocean", "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "worker", "cluster": cluster}],
        "users": [{"name": "kubeocean", "user": {"token": token}}],
        "contexts": [{"name": "worker", "context": context}],
        "current-context": "worker",
    }
    return yaml.safe_dump(document, sort_keys=False)


def secret_name(binding: str) -> str:
    """The Secret of a binding's kubeconfig."""
    return f"{binding}-kubeconfig"


def kubeconfig_secret(
    binding: str, content: str, *, ends: str, domain: Domain, worker_id: str = ""
) -> Json:
    """A kubeconfig where a binding looks for it; `worker_id` is the cluster that it leads to."""
    body = named(
        "Secret",
        "v1",
        secret_name(binding),
        namespace=domain.system_namespace,
        labels=labels(domain) | {domain.cluster_binding: label_value(binding)},
        type="Opaque",
        data={KUBECONFIG_KEY: base64.b64encode(content.encode()).decode()},
    )
    notes = {domain.token_expires: ends}
    if worker_id:
        notes[domain.worker_cluster_id] = worker_id
    body["metadata"]["annotations"] = notes
    return body


def due(begins: datetime | None, ends: datetime | None, now: datetime) -> bool:
    """Whether a token should be replaced: in the last third of its life, or if nobody knows."""
    if begins is None or ends is None:
        return True
    return now >= ends - (ends - begins) * _LEFT
