"""TLS of the proxier's server: its certificate, and the CA that client certificates are verified
with.

Both change while the server runs: new connections use the new ones, open connections go on. Without
a valid certificate and a CA no handshake succeeds. API servers publish the CA of client
certificates in a ConfigMap, which `PublishedClientCa` follows; a file may name another CA.
"""

from __future__ import annotations

import ssl
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.proxier.metrics import ProxierMetrics
from kubeocean.runtime.access import certificates_problem, load_pair, trust
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Object, Resource
from kubeocean.runtime.server_tls import CertificateTls, ServerCertificate, server_context

__all__ = ["PublishedClientCa", "ServerTls"]

_CA_NAMESPACE: Final = "kube-system"
_CA_NAME: Final = "extension-apiserver-authentication"
_CA_KEY: Final = "client-ca-file"

_log = get_logger(__name__)


class ServerTls(CertificateTls):
    """The TLS context of all listeners; its certificate and client CA can be replaced."""

    def __init__(
        self, *, clock: Clock | None = None, metrics: ProxierMetrics | None = None
    ) -> None:
        super().__init__(clock=clock)
        self._metrics = metrics or ProxierMetrics()
        self._client_ca = b""
        self.trust_epoch = 0  # grows when the client CA changes
        _verify_clients(self.context)

    @property
    def ready(self) -> bool:
        """Whether a handshake could succeed now."""
        return bool(self._client_ca) and super().ready

    def use_certificate(self, certificate: ServerCertificate) -> bool:
        """Use a certificate from the next connection on.

        False if the certificate is not valid now and the one in use is.

        :raises ConfigError: TLS cannot use the certificate.
        """
        used = super().use_certificate(certificate)
        if used:
            self._metrics.set_certificate_expiry(certificate.not_after.timestamp())
        return used

    def trust_clients(self, ca: bytes) -> None:
        """Verify client certificates with this CA (PEM) from the next connection on.

        :raises ConfigError: the CA is not PEM, or TLS cannot use it.
        """
        problem = certificates_problem(ca)
        if problem:
            raise ConfigError(problem, source="the CA of client certificates")
        if ca != self._client_ca:
            self._current = _loaded_context(self._certificate, ca)
            self._client_ca = ca
            self.trust_epoch += 1

    def _loaded(self, certificate: ServerCertificate) -> ssl.SSLContext | None:
        return _loaded_context(certificate, self._client_ca)


def _verify_clients(context: ssl.SSLContext) -> None:
    # A client certificate is verified if there is one; a caller without one needs a token.
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _loaded_context(certificate: ServerCertificate | None, ca: bytes) -> ssl.SSLContext | None:
    """Return a TLS context with certificate and client CA; None while one of them is missing.

    Callers store the two only after this returns: a certificate or CA that TLS cannot use changes
    nothing.
    """
    if certificate is None or not ca:
        return None
    context = server_context()
    _verify_clients(context)
    try:
        load_pair(context, certificate.certificate, certificate.key)
        trust(context, ca)
    except ssl.SSLError as error:
        reason = f"cannot be used ({error.reason or 'not PEM'})"
        raise ConfigError(reason, source=certificate.source) from None
    return context


class _ConfigMap(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


_CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", True, _ConfigMap)


class PublishedClientCa:
    """Follows the client CA that the computing cluster publishes for its extensions."""

    def __init__(self, computing: Client, tls: ServerTls) -> None:
        self._tls = tls
        self._informer: Informer[_ConfigMap] = Informer(
            computing, _CONFIG_MAPS, namespace=_CA_NAMESPACE, fields=f"metadata.name={_CA_NAME}"
        )
        self._informer.on_change(self._changed)

    async def run(self) -> None:
        await self._informer.run()

    def _changed(self, old: _ConfigMap | None, new: _ConfigMap | None) -> None:
        ca = new.data.get(_CA_KEY, "") if new is not None else ""
        if not ca:
            name = f"{_CA_NAMESPACE}/{_CA_NAME}"
            _log.error("Found no client CA of computing cluster", config_map=name)
            return
        try:
            self._tls.trust_clients(ca.encode())
        except ConfigError as error:
            _log.error(
                "Could not use client CA of computing cluster, kept the old one",
                config_map=f"{_CA_NAMESPACE}/{_CA_NAME}",
                error=str(error),
            )
