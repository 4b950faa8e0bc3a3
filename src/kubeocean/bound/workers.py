"""Access to the worker: the kubeconfig in the Secret that a binding names, followed.

A Secret that makes no sense keeps the last one that did.

A kubeconfig may name files: of a token, a certificate, a key, an authority. Who may write a Secret
must not read our files by it, and send them to a server of their own: no file may be named unless
the operator says, in the environment, under which directory they are. Below it, each Secret has a
directory of its own, `<namespace>/<name>`, and may name what is in there and nothing else. Such
files are followed as they change.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kubeocean.api.group import KUBECONFIG_KEY
from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.kubeconfig import read_kubeconfig
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Object, Resource

__all__ = ["ENV_WORKER_FILES", "KUBECONFIG_SECRETS", "KubeconfigSecret", "SecretAccess"]

ENV_WORKER_FILES: Final = "KUBEOCEAN_WORKER_FILES"

_NEVER_S: Final = 3600.0  # changes of a Secret are pushed to us…
_LOOK_S: Final = 10.0  # …and those of a file are not

_log = get_logger(__name__)


class KubeconfigSecret(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Secret with a kubeconfig."""

    data: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"KubeconfigSecret({self.key})"


KUBECONFIG_SECRETS: Final = Resource("", "v1", "secrets", "Secret", True, KubeconfigSecret)


class SecretAccess:
    """An `AccessSource` that is told of the Secret, and looks at the files that it names."""

    def __init__(
        self, secret: KubeconfigSecret, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._root = environ.get(ENV_WORKER_FILES, "")
        self._told = self._used = (
            secret  # another one is used while what we are told makes no sense
        )
        self._named = _Named(secret, self._root)
        self._access = _read(secret, self._named)
        self._trouble = ""

    @property
    def interval_s(self) -> float:
        return _LOOK_S if self._named.any or self._trouble else _NEVER_S

    def current(self) -> Access:
        return self._access

    @property
    def annotations(self) -> Mapping[str, str]:
        """What stands on the Secret that is used."""
        return self._used.annotations

    async def refresh(self, *, rejected: bool = False) -> bool:
        """Look at the files; the Secret itself is told of by `follow`."""
        before = self._access
        if self._trouble:
            self._take(self._told)  # a file that it names may be there by now
        if self._named.any and (rejected or self._named.changed()):
            self._take(self._used)
        return self._access is not before

    def follow(self, old: KubeconfigSecret | None, new: KubeconfigSecret | None) -> None:
        """A handler for the informer of that one Secret."""
        if new is not None:
            self._told, self._trouble = new, ""
            self._take(new)

    def _take(self, secret: KubeconfigSecret) -> None:
        """Use what a Secret says now, if it makes sense."""
        named, said = _Named(secret, self._root), str(secret.key)
        try:
            access = _read(secret, named)
        except ConfigError as error:
            if str(error) != self._trouble:  # it is looked at again and again
                _log.warning("Kept old worker credentials", secret=said, error=str(error))
            self._trouble = str(error)
            return
        self._used, self._named = secret, named
        if secret is self._told:
            self._trouble = ""
        if access != self._access:
            self._access = access
            _log.info("Took new worker credentials", secret=said, server=access.server)


class _Named:
    """The files that a Secret names."""

    def __init__(self, secret: KubeconfigSecret, root: str) -> None:
        self._secret = secret
        self._root = root
        self._files = FileSet()
        self.any = False

    def read(self, path: Path) -> bytes:
        """The content of one, if it may be named.

        :raises ConfigError: it may not.
        :raises OSError: it cannot be read.
        """
        source, key = f"Secret {self._secret.key}", self._secret.key
        if not self._root:
            said = f"names a file, which is only possible where {ENV_WORKER_FILES} says where"
            raise ConfigError(said, value=str(path), source=source)
        home = Path(self._root) / key.namespace / key.name
        # Where links lead to counts: those of a mounted Secret lead to a directory beside them.
        try:
            inside = path.resolve().is_relative_to(home.resolve())
        except (OSError, RuntimeError, ValueError):
            inside = False  # links in a circle, or what no file can be called
        if not inside:
            raise ConfigError(f"names a file outside {home}", value=str(path), source=source)
        self.any = True
        return self._files.read(path)

    def changed(self) -> bool:
        return self._files.changed()


def _read(secret: KubeconfigSecret, named: _Named) -> Access:
    source = f"Secret {secret.key}"
    text = secret.data.get(KUBECONFIG_KEY, "")
    if not text:
        raise ConfigError("is missing or empty", field=f"data.{KUBECONFIG_KEY}", source=source)
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError("is not base64", field=f"data.{KUBECONFIG_KEY}", source=source) from None
    whole = Path(f"/{KUBECONFIG_KEY}")

    def read(path: Path) -> bytes:
        return content if path == whole else named.read(path)

    return read_kubeconfig((whole,), None, read=read).access
