"""The credential with which the computing cluster connects to a worker.

A credential is a token of the worker's ServiceAccount, bound to a Secret in the same namespace: the
token is valid until its expiry, or until that Secret is deleted. A Secret of the computing cluster
holds the token in a self-contained kubeconfig, and an annotation holds the expiry; the manager
renews the token. The claims of a token are read without verification: only the worker's API server
can verify them.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import yaml

from kubeocean.api.group import KUBECONFIG_KEY, Domain
from kubeocean.api.naming import label_value
from kubeocean.errors import ConfigError
from kubeocean.install.object_parts import labels, named
from kubeocean.runtime.access import Access
from kubeocean.runtime.objects import Json

__all__ = [
    "LIFETIME",
    "TokenClaims",
    "due",
    "kubeconfig",
    "kubeconfig_secret",
    "read_token",
    "secret_name",
    "server_option",
    "token_request",
]

LIFETIME: Final = timedelta(days=365)
_RENEWAL_SHARE: Final = 1 / 3  # the last part of the lifetime, in which a token is renewed


def token_request(secret: str, uid: str, lifetime: timedelta = LIFETIME) -> Json:
    """Return a TokenRequest; the API server may grant a shorter lifetime."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": int(lifetime.total_seconds()),
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": uid},
        },
    }


def kubeconfig(access: Access, token: str, *, namespace: str) -> str:
    """Return a kubeconfig with the server of `access` and the token as its user.

    :raises ConfigError: the server is not https.
    """
    if not access.server.startswith("https://"):
        message = "must be https: a token is not sent unencrypted"
        raise ConfigError(message, field="server", value=access.server, source=access.origin)
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
    """Return the name of the Secret with a binding's kubeconfig."""
    return f"{binding}-kubeconfig"


def server_option(domain: Domain) -> str:
    """Return the annotation that holds the URL of `join --server`, or of `fleet join --hub-url`.

    The first is on the Secret of the kubeconfig, the second on the Deployment of a member's agent.
    """
    return f"{domain.name}/join-server"


def kubeconfig_secret(
    binding: str,
    content: str,
    *,
    ends: str,
    domain: Domain,
    worker_id: str = "",
    server: str = "",
) -> Json:
    """Return the Secret that holds a binding's kubeconfig.

    `worker_id` is the identity of the worker, and `server` the URL of `join --server`.
    """
    body = named(
        "Secret",
        "v1",
        secret_name(binding),
        namespace=domain.system_namespace,
        labels=labels(domain) | {domain.cluster_binding: label_value(binding)},
        type="Opaque",
        data={KUBECONFIG_KEY: base64.b64encode(content.encode()).decode()},
    )
    annotations = {domain.token_expires: ends}
    if worker_id:
        annotations[domain.worker_cluster_id] = worker_id
    if server:
        annotations[server_option(domain)] = server
    body["metadata"]["annotations"] = annotations
    return body


def due(begins: datetime | None, ends: datetime | None, now: datetime) -> bool:
    """Whether a token should be renewed: in the last third of its lifetime, or if not known."""
    if begins is None or ends is None:
        return True
    return now >= ends - (ends - begins) * _RENEWAL_SHARE


class _Reference(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""


class _Kubernetes(msgspec.Struct, frozen=True):
    namespace: str = ""
    serviceaccount: _Reference = _Reference()
    secret: _Reference = _Reference()


class _Claims(msgspec.Struct, frozen=True):
    iat: int = 0
    exp: int = 0
    kubernetes: _Kubernetes = msgspec.field(default=_Kubernetes(), name="kubernetes.io")


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """Validity of a token, its ServiceAccount, and the Secret that the token is bound to."""

    begins: datetime
    ends: datetime
    secret_uid: str
    secret_name: str = ""
    namespace: str = ""
    account: str = ""


def read_token(token: str) -> TokenClaims | None:
    """Return the claims of a ServiceAccount token; None if the text is not such a token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return None
    if not claims.exp:
        return None
    try:
        begins, ends = (datetime.fromtimestamp(each, UTC) for each in (claims.iat, claims.exp))
    except (OverflowError, OSError, ValueError):
        return None
    own = claims.kubernetes
    return TokenClaims(
        begins,
        ends,
        own.secret.uid,
        own.secret.name,
        namespace=own.namespace,
        account=own.serviceaccount.name,
    )
