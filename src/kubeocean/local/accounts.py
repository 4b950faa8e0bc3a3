"""Accounts: kubeconfigs for the users of a cluster. Pure.

Each kubeconfig has one cluster, one user and one context, and contains certificates and keys.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import yaml

from kubeocean.local.pki import Identity
from kubeocean.runtime.objects import Json

__all__ = ["file_name", "kubeconfig"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def kubeconfig(
    cluster: str,
    server: str,
    ca: bytes,
    *,
    user: str,
    credential: Identity | str,
    namespace: str = "default",
) -> bytes:
    """Return the kubeconfig of a user with a client certificate or, as a string, a bearer token."""
    secret: Json
    if isinstance(credential, Identity):
        secret = {
            "client-certificate-data": b64encode(credential.certificate).decode(),
            "client-key-data": b64encode(credential.private_key).decode(),
        }
    else:
        secret = {"token": credential}
    context = {"cluster": cluster, "user": user, "namespace": namespace}
    reach = {"server": server, "certificate-authority-data": b64encode(ca).decode()}
    document: Json = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": reach}],
        "users": [{"name": user, "user": secret}],
        "contexts": [{"name": cluster, "context": context}],
        "current-context": cluster,
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def file_name(user: str) -> str:
    """Return a file name for a user's kubeconfig, unique per user."""
    safe = _UNSAFE.sub("-", user)
    digest = "" if safe == user else "-" + sha256(user.encode()).hexdigest()[:8]
    return f"{safe}{digest}.kubeconfig"
