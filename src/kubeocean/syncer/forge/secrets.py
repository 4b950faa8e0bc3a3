"""Secrets: copied with their type, unless the worker would take the type for its own business.

A token of a service account is Opaque below: the worker has no such account, and would delete the
copy, or fill in a token of its own. A bootstrap token would let machines into the worker, but only
from its system namespace, and we write into ours.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json, Resource
from kubeocean.syncer.forge.copies import Copy, Original, Recipe

__all__ = ["SECRETS", "translate"]

_OPAQUE: Final = "Opaque"
_ACCOUNT_TOKEN: Final = "kubernetes.io/service-account-token"  # noqa: S105 - a type, not a token


def translate(content: Json) -> Json:
    """What the copy of a Secret holds."""
    kind = content.get("type") or _OPAQUE
    held = {key: content[key] for key in ("data", "immutable") if content.get(key)}
    return held | {"type": _OPAQUE if kind == _ACCOUNT_TOKEN else kind}


def _held(content: Json) -> Json:
    return {"/data": content.get("data") or {}, "/immutable": bool(content.get("immutable"))}


def _fixed(content: Json) -> Json:
    return {"type": content.get("type")}


SECRETS: Final = Recipe(
    originals=Resource("", "v1", "secrets", "Secret", True, Original),
    copies=Resource("", "v1", "secrets", "Secret", True, Copy),
    held=_held,
    fixed=_fixed,
)
