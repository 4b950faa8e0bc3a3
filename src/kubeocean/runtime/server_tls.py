"""TLS of a server whose certificate changes while the server runs.

New connections use the new certificate, open connections go on. Without a valid certificate no
handshake succeeds.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import certificates_problem, key_problem, load_pair
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.redaction import Secret

__all__ = ["CertificateTls", "ServerCertificate", "server_context"]


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Certificate with its key, and the time for which the certificate is valid."""

    certificate: bytes
    key: Secret[bytes]
    not_before: datetime
    not_after: datetime
    source: str
    names: frozenset[str] = frozenset()  # host names and IP addresses

    def valid_at(self, time: datetime) -> bool:
        return self.not_before <= time < self.not_after

    @classmethod
    def load(cls, certificate: bytes, key: bytes, source: str) -> ServerCertificate:
        """Return a server certificate from a certificate and its key in PEM.

        :raises ConfigError: certificate or key are not PEM, or do not match.
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


class CertificateTls:
    """TLS context of a listener, whose certificate can be replaced."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._certificate: ServerCertificate | None = None
        self._current: ssl.SSLContext | None = None
        self.context = server_context()
        self.context.sni_callback = self._select_context

    @property
    def certificate(self) -> ServerCertificate | None:
        """The certificate in use; None if there is none."""
        return self._certificate

    @property
    def ready(self) -> bool:
        """Whether a TLS handshake could succeed now."""
        certificate = self._certificate
        return certificate is not None and certificate.valid_at(self._clock.now())

    def use_certificate(self, certificate: ServerCertificate) -> bool:
        """Use a certificate from the next connection on; return False if this certificate is not
        valid now and the one in use is.

        :raises ConfigError: TLS cannot use the certificate.
        """
        now, used = self._clock.now(), self._certificate
        if used is not None and used.valid_at(now) and not certificate.valid_at(now):
            return False
        if certificate != used:
            # Kept only afterwards: a certificate that TLS cannot use changes nothing.
            self._current = self._loaded(certificate)
            self._certificate = certificate
        return True

    def _loaded(self, certificate: ServerCertificate) -> ssl.SSLContext | None:
        """Return a TLS context with the certificate.

        :raises ConfigError: TLS cannot use the certificate.
        """
        context = server_context()
        try:
            load_pair(context, certificate.certificate, certificate.key)
        except ssl.SSLError as error:
            reason = f"cannot be used ({error.reason or 'not PEM'})"
            raise ConfigError(reason, source=certificate.source) from None
        return context

    def _select_context(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if self._current is None or not self.ready:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def server_context() -> ssl.SSLContext:
    """Return a server's TLS context for HTTP/1.1 over TLS 1.2 or newer, without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # A resumed session would use a certificate, or a CA, that was replaced since.
    context.options |= ssl.OP_NO_TICKET
    # The authenticated caller of a connection cannot change.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    return context


def _names(leaf: x509.Certificate) -> frozenset[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset((*names.get_values_for_type(x509.DNSName), *map(str, addresses)))
