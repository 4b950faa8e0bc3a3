"""Tokens: what a pod in the worker shows to the computing cluster's API server.

A token is asked for in the virtual pod's name, is bound to that very pod, and stands in a Secret
that goes with the physical pod. It is renewed when four fifths of its life, or a day, are over, a
little earlier by chance so that not all come at once. When is written on the Secret: whoever comes
next knows it, and no token that is good is asked for again.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, ownership
from kubeocean.errors import InternalError
from kubeocean.runtime.objects import Json, Key, Object
from kubeocean.runtime.secrets import Secret
from kubeocean.syncer.forge.references import TokenSource

__all__ = [
    "KEY",
    "Bearer",
    "Token",
    "changes",
    "due_of",
    "forge",
    "is_held_by",
    "pod_of",
    "read",
    "request",
]

KEY: Final = "token"  # of the Secret
_SHARE: Final = 0.8
_LONGEST: Final = timedelta(hours=24)
_JITTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Token:
    """What the server gave."""

    value: Secret[str]
    expires: datetime
    due: datetime  # when the next one is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Who a token is for, and which Secret it stands in."""

    pod: Key  # the virtual one
    pod_uid: str
    account: str
    secret: Key
    owner: str  # the physical pod
    owner_uid: str
    ids: Ids
    domain: Domain = field(default=group.DEFAULT)


def request(source: TokenSource, *, pod: str, uid: str) -> Json:
    """The TokenRequest; without an audience the token is for the API server."""
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": [source.audience] if source.audience else [],
            "expirationSeconds": source.expiration_s,
            "boundObjectRef": bound,
        },
    }


def read(answer: Json, *, secret: str) -> Token:
    """What a TokenRequest was answered with; servers may make a life shorter than was asked.

    :raises InternalError: there is no token in it; what there is is not said.
    """
    spec, status = answer.get("spec") or {}, answer.get("status") or {}
    value, until = status.get("token"), status.get("expirationTimestamp")
    if not (isinstance(value, str) and value and isinstance(until, str)):
        raise InternalError("could not request a token: the answer holds none")
    expires = datetime.fromisoformat(until).astimezone(UTC)
    life = timedelta(seconds=spec.get("expirationSeconds") or 0)
    due = expires - life + min(life * _SHARE, _LONGEST) - _jitter(secret)
    return Token(Secret(value), expires, due)


def forge(bearer: Bearer, token: Token) -> Json:
    """The Secret as it is created."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": bearer.secret.name,
            "namespace": bearer.secret.namespace,
            "labels": _labels(bearer),
            "annotations": _annotations(bearer, token),
            "ownerReferences": [_owner(bearer)],
        },
        "type": "Opaque",
        "data": _data(token),
    }


def changes(secret: Object, bearer: Bearer, token: Token) -> Json:
    """The merge patch that puts a new token into a Secret, for this version of it only."""
    metadata: Json = {
        "uid": secret.uid,
        "resourceVersion": secret.resource_version,
        "labels": _labels(bearer),
        "annotations": _annotations(bearer, token),
    }
    if not is_held_by(secret, bearer.owner_uid):
        metadata["ownerReferences"] = [_owner(bearer)]
    return {"metadata": metadata, "data": _data(token)}


def due_of(secret: Object, domain: Domain) -> datetime | None:
    """When the token in a Secret is to be renewed; unknown where nobody wrote it."""
    try:
        due = datetime.fromisoformat(secret.annotations.get(domain.token_due, ""))
    except ValueError:
        return None
    return due if due.tzinfo is not None else None


def pod_of(secret: Object, domain: Domain) -> tuple[Key, str]:
    """The virtual pod that a Secret says its token is for, and its UID."""
    said = secret.annotations
    pod = Key(said.get(domain.virtual_pod_namespace, ""), said.get(domain.virtual_pod_name, ""))
    return pod, said.get(domain.virtual_pod_uid, "")


def is_held_by(secret: Object, uid: str) -> bool:
    """Whether it goes when that physical pod goes."""
    return any(owner.uid == uid for owner in secret.metadata.owner_references or ())


def _labels(bearer: Bearer) -> dict[str, str]:
    return ownership(bearer.ids, bearer.domain) | {bearer.domain.service_account_token: group.TRUE}


def _annotations(bearer: Bearer, token: Token) -> dict[str, str]:
    domain = bearer.domain
    return {
        domain.virtual_pod_namespace: bearer.pod.namespace,
        domain.virtual_pod_name: bearer.pod.name,
        domain.virtual_pod_uid: bearer.pod_uid,
        domain.service_account: bearer.account,
        domain.token_expires: _text(token.expires),
        domain.token_due: _text(token.due),
    }


def _owner(bearer: Bearer) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "name": bearer.owner, "uid": bearer.owner_uid}


def _data(token: Token) -> Json:
    return {KEY: base64.b64encode(token.value.reveal().encode()).decode()}


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _jitter(secret: str) -> timedelta:
    """Different for each, and for each always the same."""
    chance = int.from_bytes(hashlib.sha256(secret.encode()).digest()[:4]) / 2**32
    return timedelta(seconds=chance * _JITTER_S)
