"""Access to the page `/metrics` over HTTPS, as controller-runtime's secure metrics server has it.

A caller sends a bearer token. A TokenReview authenticates the caller, and a SubjectAccessReview
decides whether the caller may GET the URL `/metrics`. Answers are cached for a short time; caches
hold hashes of tokens, and their size is limited. Unknown tokens cause a limited number of reviews.

The certificate comes from files, which are read again when they change, or is self-signed.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from kubeocean.errors import ApiError, ConfigError, Refusal
from kubeocean.runtime.access import load_pair
from kubeocean.runtime.access_reviews import may
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.token_reviews import bearer_token, review_token
from kubeocean.runtime.ttl_cache import TtlCache

__all__ = ["CertificateFiles", "MetricsAccess", "SecureMetrics", "ServingCertificate"]

_URL: Final = "/metrics"
_ALLOWED_S: Final = 60.0
_DENIED_S: Final = 10.0
_MAX_CACHED: Final = 1_024
_REVIEWS_PER_S: Final = 20
_LIFE: Final = timedelta(days=365)  # validity of a self-signed certificate
_RENEWED_AFTER: Final = _LIFE * 2 / 3
_SKEW: Final = timedelta(hours=1)  # by which the clock of a caller may be behind

_log = get_logger(__name__)


class MetricsAccess:
    """Decides which callers may read metrics; `client` sends the token and access reviews of
    callers.
    """

    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or RealClock()
        # Two caches, so that many bad tokens cannot evict good ones.
        self._allowed: TtlCache[bytes, bool] = TtlCache(_MAX_CACHED, clock=self._clock)
        self._denied: TtlCache[bytes, tuple[int, str]] = TtlCache(_MAX_CACHED, clock=self._clock)
        self._second = 0  # the second in which reviews were counted
        self._reviews = 0

    async def check(self, authorization: str) -> None:
        """Return if the caller with this Authorization header may read metrics.

        :raises Refusal: the caller is not authenticated (401) or may not read metrics (403), there
            are too many unknown tokens (429), or the API server did not answer the review (503).
        """
        token = bearer_token(authorization)
        if not token:
            raise Refusal(401, "a bearer token is required")
        key = hashlib.sha256(token.encode()).digest()
        if self._allowed.get(key):
            return
        denial = self._denied.get(key)
        if denial is None:
            self._count_review()
            denial = await self._review(token)
            if denial is None:
                self._allowed.put(key, True, _ALLOWED_S)
                return
            self._denied.put(key, denial, _DENIED_S)
        raise Refusal(*denial)

    def _count_review(self) -> None:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._reviews = second, 0
        if self._reviews >= _REVIEWS_PER_S:
            raise Refusal(429, "too many unknown tokens were sent within a second")
        self._reviews += 1

    async def _review(self, token: str) -> tuple[int, str] | None:
        """Return the HTTP status and the reason of a denial; None if the caller may read
        metrics."""
        try:
            caller = await review_token(self._client, token)
            if caller is None:
                return 401, "the cluster does not accept the token"
            allowed = await may(self._client, {}, who=caller.subject(), url=_URL)
        except ApiError as error:
            raise Refusal(503, f"could not review the caller: {error.reason}") from error
        return None if allowed else (403, f"user {caller.user!r} may not get {_URL}")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Files of a certificate and its key, in PEM."""

    certificate: Path
    key: Path


class ServingCertificate:
    """TLS context of the metrics server, and its certificate: from files, or self-signed without
    files.

    :raises ConfigError: the files cannot be read, or are no certificate and key.
    """

    def __init__(
        self, files: CertificateFiles | None = None, *, clock: Clock | None = None
    ) -> None:
        self._files = files
        self._clock = clock or RealClock()
        self._seen = FileSet()
        self._made_at = self._clock.now()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._load()

    def refresh(self) -> None:
        """Use changed certificate files, or replace a self-signed certificate in time, for new
        connections.

        Files that are not valid are logged, and the last certificate stays in use.
        """
        if self._files is None:
            if self._clock.now() - self._made_at >= _RENEWED_AFTER:
                self._load()
        elif self._seen.changed():
            try:
                self._load()
            except ConfigError as error:
                _log.error(
                    "Could not load new certificate of metrics server, kept the old one",
                    error=str(error),
                )

    def _load(self) -> None:
        if self._files is None:
            # Imported here: the library costs 10 MiB, for HTTPS with such a certificate only.
            from kubeocean.runtime.pki import self_signed

            self._made_at = self._clock.now()
            identity = self_signed(socket.gethostname(), life=_LIFE, skew=_SKEW, clock=self._clock)
            load_pair(self.context, identity.certificate, Secret(identity.private_key))
            return
        self._seen = FileSet()
        source = "--metrics-cert-path"
        try:
            certificate = self._seen.read(self._files.certificate)
            key = Secret(self._seen.read(self._files.key))
        except OSError as error:
            message = f"cannot read the certificate: {error.strerror or error}"
            raise ConfigError(message, source=source, value=self._files.certificate) from None
        try:
            load_pair(self.context, certificate, key)
        except ssl.SSLError:
            message = "must contain a certificate and its private key, in PEM"
            raise ConfigError(message, source=source, value=self._files.certificate) from None
        _log.info("Loaded certificate of the metrics server", file=str(self._files.certificate))


@dataclass(frozen=True, slots=True)
class SecureMetrics:
    """Access checks and certificate of a metrics server with HTTPS."""

    access: MetricsAccess
    certificate: ServingCertificate
