"""Hashes of a fleet's objects, as KubeFleet's agents compute them.

A hash is the SHA-256 of a JSON text that is compact, has sorted keys, and escapes the characters
that Go's encoder escapes. Snapshots, Works and placed objects that KubeFleet wrote are therefore
recognized as unchanged.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kubeocean.api.fleet.placements import NamespacedName
from kubeocean.api.fleet.schema import document
from kubeocean.runtime.objects import Json

__all__ = ["canonical", "content_hash", "hash_bytes", "names_hash", "policy_hash"]

_encode = msgspec.json.Encoder(order="sorted").encode
_ESCAPED: Final = {
    b"<": rb"\u003c",
    b">": rb"\u003e",
    b"&": rb"\u0026",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}


def canonical(content: Any) -> bytes:
    """Return the canonical text of a JSON value, from which hashes are computed."""
    text = _encode(content)
    for character, escape in _ESCAPED.items():  # these characters occur inside strings only
        text = text.replace(character, escape)
    return text


def content_hash(content: Any) -> str:
    """Return the SHA-256 of a JSON value, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(content)).hexdigest()


def policy_hash(policy: Json) -> str:
    """Return the hash of a placement policy, computed without the number of clusters."""
    return content_hash(
        {name: value for name, value in policy.items() if name != "numberOfClusters"}
    )


def names_hash(names: Sequence[str] | Sequence[NamespacedName]) -> str:
    """Return the hash of a binding's override snapshots, as the annotations of Works have it."""
    listed = [name if isinstance(name, str) else document(name) for name in names]
    return content_hash(listed or None)


def hash_bytes(digest: str) -> str:
    """Return a hash in the form of `policyHash` and `overrideHash`: base64 of its hex digits."""
    return base64.b64encode(digest.encode()).decode()
