"""Access of a member to its hub, from the environment and the flags of KubeFleet's member agent.

    HUB_SERVER_URL               URL of the hub's API server
    CONFIG_PATH                  file with a bearer token, read again when it changes
    IDENTITY_CERT, IDENTITY_KEY  files of a client certificate, with --use-ca-auth
    CA_BUNDLE                    file with the hub's certificate authority
    HUB_CERTIFICATE_AUTHORITY    the hub's certificate authority as text, base64 of PEM
    HUB_KUBE_HEADER              additional request headers, one `Name: value` a line

`--hub-kubeconfig` replaces all of these variables, and `--token-secret` the token file.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.fleet.agent.tokens import SecretTokenAccess
from kubeocean.fleet.settings import MemberSettings
from kubeocean.runtime.access import (
    Access,
    certificates_problem,
    key_problem,
    split_url,
    token_problem,
)
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource, FileAccess, KubeconfigAccess
from kubeocean.runtime.kubeconfig import Loaded
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["HeaderTransport", "extra_headers", "hub_access"]

_SERVER: Final = "HUB_SERVER_URL"
_TOKEN: Final = "CONFIG_PATH"  # noqa: S105 - the name of a variable
_CERTIFICATE: Final = "IDENTITY_CERT"
_KEY: Final = "IDENTITY_KEY"
_BUNDLE: Final = "CA_BUNDLE"
_AUTHORITY: Final = "HUB_CERTIFICATE_AUTHORITY"
_HEADER: Final = "HUB_KUBE_HEADER"


def hub_access(
    settings: MemberSettings, environ: Mapping[str, str], member: Client
) -> AccessSource:
    """Return the server, trust and credentials for the hub.

    `member` is the client that reads the Secret of `--token-secret`.

    :raises ConfigError: a variable is missing or contradicts another, or a file is unusable.
    """
    if settings.hub_kubeconfig:
        return KubeconfigAccess(
            settings.hub_kubeconfig, allow_exec=settings.allow_exec_plugins, environ=environ
        )
    server = _required(environ, _SERVER, "the URL of the hub's API server").rstrip("/")
    parts = split_url(server)
    if parts is None or parts.scheme not in ("http", "https"):
        raise ConfigError("must be an http or https URL", source=_SERVER, value=server)
    base = Access(server, insecure=settings.tls_insecure, origin=_SERVER)
    if settings.use_ca_auth:
        certificate = _required(environ, _CERTIFICATE, "the file of a client certificate")
        key = _required(environ, _KEY, "the file of its private key")
        return FileAccess(
            lambda read: Loaded(
                _with_pair(_trusting(base, environ, read), Path(certificate), Path(key), read)
            )
        )
    if settings.token_secret is not None:
        trusted = _trusting(base, environ, _read_file)
        return SecretTokenAccess(trusted, member, settings.token_secret)
    token = Path(_required(environ, _TOKEN, "the file of a bearer token"))
    return FileAccess(
        lambda read: Loaded(
            _with_token(_trusting(base, environ, read), token, read), token_file=token
        )
    )


def _required(environ: Mapping[str, str], name: str, meaning: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ConfigError(f"must be set to {meaning}, or use --hub-kubeconfig", source=name)
    return value


def _trusting(base: Access, environ: Mapping[str, str], read: Callable[[Path], bytes]) -> Access:
    """Return `base` with the hub's certificate authority from the environment."""
    if base.insecure:
        return base
    for name in (_BUNDLE, _AUTHORITY):
        if environ.get(name) == "":
            raise ConfigError("must not be empty; leave it unset instead", source=name)
    bundle, authority = environ.get(_BUNDLE), environ.get(_AUTHORITY)
    if bundle and authority:
        raise ConfigError(f"must not be set together with {_AUTHORITY}", source=_BUNDLE)
    if bundle:
        content, source = _content(Path(bundle), read), bundle
    elif authority:
        content, source = _decoded(authority), _AUTHORITY
    else:
        return base  # the machine's certificate authorities
    if problem := certificates_problem(content):
        raise ConfigError(problem, source=source)
    return replace(base, ca=content)


def _decoded(authority: str) -> bytes:
    try:
        return b64decode(authority, validate=True)
    except binascii.Error:
        raise ConfigError("must be base64 of PEM certificates", source=_AUTHORITY) from None


def _with_pair(
    access: Access, certificate: Path, key: Path, read: Callable[[Path], bytes]
) -> Access:
    pem, secret = _content(certificate, read), Secret(_content(key, read))
    if problem := certificates_problem(pem):
        raise ConfigError(problem, source=str(certificate))
    if problem := key_problem(pem, secret):
        raise ConfigError(problem, source=str(key))
    return replace(access, certificate=pem, private_key=secret, origin=str(certificate))


def _with_token(access: Access, path: Path, read: Callable[[Path], bytes]) -> Access:
    token = _content(path, read).decode("utf-8", "replace").strip()
    if problem := token_problem(token):
        raise ConfigError(problem, source=str(path))
    return replace(access, token=Secret(token), origin=str(path))


def _content(path: Path, read: Callable[[Path], bytes]) -> bytes:
    try:
        return read(path)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", source=str(path)) from None


def _read_file(path: Path) -> bytes:
    return path.read_bytes()


def extra_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of HUB_KUBE_HEADER.

    :raises ConfigError: a line is not `Name: value`.
    """
    headers: dict[str, str] = {}
    for line in environ.get(_HEADER, "").splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not name.isascii():
            raise ConfigError("must have lines of the form Name: value", source=_HEADER)
        headers[name.strip()] = value.strip()
    return headers


class HeaderTransport:
    """HTTP transport that adds headers to each request to the hub."""

    def __init__(self, inner: Transport, headers: Mapping[str, str]) -> None:
        self._inner = inner
        self._headers = dict(headers)

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        return await self._inner.send(self._with_headers(request))

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._inner.stream(self._with_headers(request))

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(self._with_headers(request), protocol)

    async def close(self) -> None:
        await self._inner.close()

    def _with_headers(self, request: Request) -> Request:
        return replace(request, headers={**self._headers, **request.headers})
