"""Whose client certificates are believed: the authority that the computing cluster publishes.

Every API server tells its extensions which authority signs client certificates, in one ConfigMap.
It is followed, so that a rotation of that authority needs nobody's hand. A file may name another.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.proxier.identity import Identity
from kubeocean.runtime.client import Client
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Object, Resource

__all__ = ["PublishedAuthority"]

NAMESPACE: Final = "kube-system"
NAME: Final = "extension-apiserver-authentication"
_KEY: Final = "client-ca-file"

_log = get_logger(__name__)


class _Published(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


_PUBLISHED: Final = Resource("", "v1", "configmaps", "ConfigMap", True, _Published)


class PublishedAuthority:
    """Tells an identity whom to believe."""

    def __init__(self, computing: Client, identity: Identity) -> None:
        self._identity = identity
        self._informer: Informer[_Published] = Informer(
            computing, _PUBLISHED, namespace=NAMESPACE, fields=f"metadata.name={NAME}"
        )
        self._informer.on_change(self._changed)

    async def run(self) -> None:
        await self._informer.run()

    def _changed(self, old: _Published | None, new: _Published | None) -> None:
        authority = new.data.get(_KEY, "") if new is not None else ""
        if not authority:
            _log.error("Computing cluster publishes no authority", config_map=f"{NAMESPACE}/{NAME}")
            return
        try:
            self._identity.believe(authority.encode())
        except ConfigError as error:
            _log.error("Cannot use published authority", error=str(error))
