"""Access to the worker: the kubeconfig in the Secret that a binding names, followed.

A Secret that makes no sense keeps the last one that did.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Final

import msgspec

from kubeocean.api.group import KUBECONFIG_KEY
from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access
from kubeocean.runtime.kubeconfig import read_kubeconfig
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Object, Resource

__all__ = ["KUBECONFIG_SECRETS", "KubeconfigSecret", "SecretAccess"]

_NEVER_S: Final = 3600.0  # changes are pushed to us

_log = get_logger(__name__)


class KubeconfigSecret(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Secret with a kubeconfig."""

    data: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"KubeconfigSecret({self.key})"


KUBECONFIG_SECRETS: Final = Resource("", "v1", "secrets", "Secret", True, KubeconfigSecret)


class SecretAccess:
    """An `AccessSource` that is told of the Secret."""

    def __init__(self, secret: KubeconfigSecret) -> None:
        self._access = _read(secret)

    @property
    def interval_s(self) -> float:
        return _NEVER_S

    def current(self) -> Access:
        return self._access

    async def refresh(self, *, rejected: bool = False) -> bool:
        return False

    def follow(self, old: KubeconfigSecret | None, new: KubeconfigSecret | None) -> None:
        """A handler for the informer of that one Secret."""
        if new is None:
            return
        try:
            access = _read(new)
        except ConfigError as error:
            _log.warning("Kept old worker credentials", secret=str(new.key), error=str(error))
            return
        if access != self._access:
            self._access = access
            _log.info("Took new worker credentials", secret=str(new.key), server=access.server)


def _read(secret: KubeconfigSecret) -> Access:
    source = f"Secret {secret.key}"
    text = secret.data.get(KUBECONFIG_KEY, "")
    if not text:
        raise ConfigError("is missing or empty", field=f"data.{KUBECONFIG_KEY}", source=source)
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError("is not base64", field=f"data.{KUBECONFIG_KEY}", source=source) from None

    def read(path: Path) -> bytes:
        if path.name != KUBECONFIG_KEY:
            raise ConfigError("files cannot be named in a Secret", value=str(path), source=source)
        return content

    return read_kubeconfig((Path(f"/{KUBECONFIG_KEY}"),), None, read=read).access
