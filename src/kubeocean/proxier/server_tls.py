"""TLS of the proxier's server: its certificate, and the CA that client certificates are verified
with.

Both change while the server runs: new connections use the new ones, open connections go on. Without
a valid certificate and a CA no handshake succeeds. API servers publish the CA of client
certificates in a ConfigMap, which `PublishedClientCa` follows; a file may name another CA.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from cryptography import x509

from kubeocean.errors import ConfigError
from kubeocean.proxier.metrics import ProxierMetrics
from kubeocean.runtime.access import certificates_problem, key_problem, load_pair, trust
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Object, Resource
from kubeocean.runtime.redaction import Secret

__all__ = ["PublishedClientCa", "ServerCertificate", "ServerTls"]

_CA_NAMESPACE: Final = "kube-system"
_CA_NAME: Final = "extension-apiserver-authentication"
_CA_KEY: Final = "client-ca-file"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate with its key, and the time for which it is valid."""

    certificate: bytes
    key: Secret[bytes]
    not_before: datetime
    not_after: datetime
    source: str
    names: frozenset[str] = frozenset()  # of hosts, and their addresses

    def valid_at(self, time: datetime) -> bool:
        return self.not_before <= time < self.not_after

    @classmethod
    def load(cls, certificate: bytes, key: bytes, source: str) -> ServerCertificate:
        """Read a certificate and its key.

        :raises ConfigError: they are not PEM, or do not match.
        """
        secret = Secret(key)
        problem = certificates_problem(certificate) or key_problem(certificate, secret)
        if problem:
            raise ConfigError(problem, source=source)
        try:
            leaf = x509.load_pem_x509_certificates(certificate)[0]
        except ValueError:
            raise ConfigError("is not a PEM certificate", source=source) from None
        not_before, not_after = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        return cls(certificate, secret, not_before, not_after, source, _names(leaf))


class ServerTls:
    """The TLS context of all listeners; its certificate and client CA can be replaced."""

    def __init__(
        self, *, clock: Clock | None = None, metrics: ProxierMetrics | None = None
    ) -> None:
        self._clock = clock or RealClock()
        self._metrics = metrics or ProxierMetrics()
        self._certificate: ServerCertificate | None = None
        self._client_ca = b""
        self._current: ssl.SSLContext | None = None
        self.trust_epoch = 0  # grows when the client CA changes
        self.context = _new_context()
        self.context.sni_callback = self._select_context

    @property
    def certificate(self) -> ServerCertificate | None:
        """The certificate in use."""
        return self._certificate

    @property
    def ready(self) -> bool:
        """Whether a handshake could succeed now."""
        certificate = self._certificate
        if certificate is None or not self._client_ca:
            return False
        return certificate.valid_at(self._clock.now())

    def use_certificate(self, certificate: ServerCertificate) -> bool:
        """Use a certificate from the next connection on; False if it is not valid now and the one
        in use is.

        :raises ConfigError: TLS cannot use the certificate.
        """
        now, used = self._clock.now(), self._certificate
        if used is not None and used.valid_at(now) and not certificate.valid_at(now):
            return False
        if certificate != used:
            self._current = _loaded_context(certificate, self._client_ca)
            self._certificate = certificate
            self._metrics.set_certificate_expiry(certificate.not_after.timestamp())
        return True

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

    def _select_context(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if self._current is None or not self.ready:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client certificate is verified if there is one; a caller without one needs a token.
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["http/1.1"])
    # A resumed session would have been verified with the CA that was trusted when it began.
    context.options |= ssl.OP_NO_TICKET
    # The caller of a connection cannot change.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    return context


def _loaded_context(certificate: ServerCertificate | None, ca: bytes) -> ssl.SSLContext | None:
    """Load both into a new context; None while one of the two is missing.

    Callers keep the two only afterwards: what TLS cannot use changes nothing.
    """
    if certificate is None or not ca:
        return None
    context = _new_context()
    try:
        load_pair(context, certificate.certificate, certificate.key)
        trust(context, ca)
    except ssl.SSLError as error:
        reason = f"cannot be used ({error.reason or 'not PEM'})"
        raise ConfigError(reason, source=certificate.source) from None
    return context


def _names(leaf: x509.Certificate) -> frozenset[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset((*names.get_values_for_type(x509.DNSName), *map(str, addresses)))


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
            _log.error("Computing cluster published no client CA", config_map=name)
            return
        try:
            self._tls.trust_clients(ca.encode())
        except ConfigError as error:
            _log.error("Could not use published client CA", error=str(error))
