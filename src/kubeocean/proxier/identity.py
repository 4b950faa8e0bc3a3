"""Identity: the certificate that the proxier shows, and whose certificates it believes.

Both change while it runs: a new pair, or a new authority, is used from the next connection on, and
those that are there go on. Without a valid pair nothing is served: there is no other way in.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from kubeocean.errors import ConfigError
from kubeocean.proxier.figures import Figures
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.pem import certificates_problem, key_problem, load_pair, trust
from kubeocean.runtime.secrets import Secret

__all__ = ["Identity", "Pair"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, and the time until which it is good."""

    certificate: bytes
    key: Secret[bytes]
    not_before: datetime
    not_after: datetime
    source: str
    names: frozenset[str] = frozenset()  # of hosts, and their addresses

    def good_at(self, now: datetime) -> bool:
        """Whether it holds at a time."""
        return self.not_before <= now < self.not_after

    @classmethod
    def load(cls, certificate: bytes, key: bytes, source: str) -> Pair:
        """:raises ConfigError: they are none, or do not belong together."""
        secret = Secret(key)
        problem = certificates_problem(certificate) or key_problem(certificate, secret)
        if problem:
            raise ConfigError(problem, source=source)
        try:
            leaf = x509.load_pem_x509_certificates(certificate)[0]
        except ValueError:
            raise ConfigError("is not a PEM certificate", source=source) from None
        began, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        return cls(certificate, secret, began, ends, source, _names(leaf))


class Identity:
    """One TLS context for listeners, whose content can be exchanged."""

    def __init__(self, *, clock: Clock | None = None, figures: Figures | None = None) -> None:
        self._clock = clock or RealClock()
        self._figures = figures or Figures()
        self._pair: Pair | None = None
        self._authority = b""
        self._current: ssl.SSLContext | None = None
        self.epoch = 0  # grows when other callers are believed
        self.context = _context()
        self.context.sni_callback = self._choose

    @property
    def pair(self) -> Pair | None:
        return self._pair

    @property
    def ready(self) -> bool:
        """Whether somebody could be served now."""
        pair = self._pair
        return pair is not None and bool(self._authority) and pair.good_at(self._clock.now())

    def show(self, pair: Pair) -> bool:
        """Use this pair from the next connection on; not if it is no good and the one in use is.

        :raises ConfigError: TLS cannot use it.
        """
        now, used = self._clock.now(), self._pair
        if used is not None and used.good_at(now) and not pair.good_at(now):
            return False
        if pair != used:
            self._current = self._made(pair, self._authority)
            self._pair = pair
            self._figures.certificate(pair.not_after.timestamp())
        return True

    def believe(self, authority: bytes) -> None:
        """Know callers by certificates of these authorities (PEM) from the next connection on.

        :raises ConfigError: they are none.
        """
        problem = certificates_problem(authority)
        if problem:
            raise ConfigError(problem, source="the authority of client certificates")
        if authority != self._authority:
            self._current = self._made(self._pair, authority)
            self._authority = authority
            self.epoch += 1

    def _made(self, pair: Pair | None, authority: bytes) -> ssl.SSLContext | None:
        """What connections are made with; nothing as long as there is only one of the two.

        Made before anything of them is kept: what TLS cannot use changes nothing.
        """
        if pair is None or not authority:
            return None
        context = _context()
        try:
            load_pair(context, pair.certificate, pair.key)
            trust(context, authority)
        except ssl.SSLError as error:
            why = f"cannot be used ({error.reason or 'not PEM'})"
            raise ConfigError(why, source=pair.source) from None
        return context

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if self._current is None or not self.ready:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Asked for, and checked if shown; who shows none needs a token.
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["http/1.1"])
    # A resumed session would be vouched for by whoever was believed when it began.
    context.options |= ssl.OP_NO_TICKET
    # Who was let in stays the one who was let in.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    return context


def _names(leaf: x509.Certificate) -> frozenset[str]:
    try:
        said = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    addresses = said.get_values_for_type(x509.IPAddress)
    return frozenset((*said.get_values_for_type(x509.DNSName), *map(str, addresses)))
