"""Credentials of a worker: the kubeconfig in the Secret that a binding names.

Changes of the Secret are followed; a change that is not valid is ignored, and the last valid one
stays.

A kubeconfig may name files: of a token, a certificate, a key, a CA. A user who may write Secrets
could name any file that this process can read, and a server that receives its content, so no file
may be named unless the operator sets a directory in the environment. Each Secret has a directory of
its own below, `<namespace>/<name>`, and may name files in this directory only. Changes of these
files are followed, too.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kubeocean.api.group import KUBECONFIG_KEY
from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.kinds import SecretWithData
from kubeocean.runtime.kubeconfig import read_kubeconfig
from kubeocean.runtime.logs import get_logger

__all__ = ["ENV_WORKER_FILES", "SecretAccess"]

ENV_WORKER_FILES: Final = "KUBEOCEAN_WORKER_FILES"

_NEVER_S: Final = 3600.0  # the informer reports changes of a Secret…
_POLL_FILES_S: Final = 10.0  # …and files are polled

_log = get_logger(__name__)


class SecretAccess:
    """`AccessSource` that follows a Secret and the files named in its kubeconfig."""

    def __init__(self, secret: SecretWithData, *, environ: Mapping[str, str] = os.environ) -> None:
        self._root = environ.get(ENV_WORKER_FILES, "")
        # The latest Secret, and the Secret in use: different while the latest is not valid.
        self._latest = self._used = secret
        self._files = _NamedFiles(secret, self._root)
        self._access = _read(secret, self._files)
        self._error = ""  # why the latest Secret is not valid

    @property
    def interval_s(self) -> float:
        return _POLL_FILES_S if self._files.any or self._error else _NEVER_S

    @property
    def refresh_first(self) -> bool:
        return True

    def current(self) -> Access:
        return self._access

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the Secret in use."""
        return self._used.annotations

    async def refresh(self, *, rejected: bool = False) -> bool:
        """Read changed files of the kubeconfig again; `follow` handles changes of the Secret."""
        before = self._access
        if self._error:
            self._use(self._latest)  # a missing file may exist by now
        if self._files.any and (rejected or self._files.changed()):
            self._use(self._used)
        return self._access is not before

    def follow(self, old: SecretWithData | None, new: SecretWithData | None) -> None:
        """Use a changed Secret, if it is valid; a handler of the Secret's informer."""
        if new is not None:
            self._latest, self._error = new, ""
            self._use(new)

    def _use(self, secret: SecretWithData) -> None:
        """Use a Secret and the present content of the files that it names, if they are valid."""
        files, name = _NamedFiles(secret, self._root), str(secret.key)
        try:
            access = _read(secret, files)
        except ConfigError as error:
            if str(error) != self._error:  # logged once, though the Secret is read again and again
                _log.warning(
                    "Could not use new worker credentials, kept the old ones",
                    secret=name,
                    error=str(error),
                )
            self._error = str(error)
            return
        self._used, self._files = secret, files
        if secret is self._latest:
            self._error = ""
        if access != self._access:
            self._access = access
            _log.info("Loaded new worker credentials", secret=name, server=access.server)


class _NamedFiles:
    """Reads the files that the kubeconfig of a Secret names, where the Secret may name them."""

    def __init__(self, secret: SecretWithData, root: str) -> None:
        self._secret = secret
        self._root = root
        self._files = FileSet()
        self.any = False

    def read(self, path: Path) -> bytes:
        """Read a file, if the Secret may name this path.

        :raises ConfigError: the Secret may not name this path.
        :raises OSError: the file cannot be read.
        """
        source, key = f"Secret {self._secret.key}", self._secret.key
        if not self._root:
            message = f"names a file, which needs a directory in {ENV_WORKER_FILES}"
            raise ConfigError(message, value=str(path), source=source)
        home = Path(self._root) / key.namespace / key.name
        # Links are resolved: the files of a mounted Secret are links to a directory next to them.
        try:
            inside = path.resolve().is_relative_to(home.resolve())
        except (OSError, RuntimeError, ValueError):
            inside = False  # links in a circle, or a name that no file can have
        if not inside:
            raise ConfigError(f"names a file outside {home}", value=str(path), source=source)
        self.any = True
        return self._files.read(path)

    def changed(self) -> bool:
        return self._files.changed()


def _read(secret: SecretWithData, files: _NamedFiles) -> Access:
    """Return the server and credentials in a Secret's kubeconfig.

    :raises ConfigError: the kubeconfig is missing or not valid.
    """
    source = f"Secret {secret.key}"
    text = secret.data.get(KUBECONFIG_KEY, "")
    if not text:
        raise ConfigError("is missing or empty", field=f"data.{KUBECONFIG_KEY}", source=source)
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError("is not base64", field=f"data.{KUBECONFIG_KEY}", source=source) from None
    kubeconfig = Path(f"/{KUBECONFIG_KEY}")

    def read(path: Path) -> bytes:
        return content if path == kubeconfig else files.read(path)

    return read_kubeconfig((kubeconfig,), None, read=read).access
