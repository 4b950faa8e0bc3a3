"""Sources of the webhook server's certificate: the Secret that replicas share, or files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.fleet.admission.certificates import CertificateSet
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import SECRETS_WITH_DATA, SecretWithData
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.runtime.server_tls import CertificateTls, ServerCertificate

__all__ = ["CertificateDirectory", "SharedCertificate"]

_LOOK_S: Final = 10.0

_log = get_logger(__name__)


class SharedCertificate:
    """Loads the webhook server's certificate from the Secret that the leading replica maintains."""

    def __init__(self, client: Client, secret: Key, tls: CertificateTls) -> None:
        self._tls = tls
        self._informer: Informer[SecretWithData] = Informer(
            client,
            SECRETS_WITH_DATA,
            namespace=secret.namespace,
            fields=f"metadata.name={secret.name}",
        )
        self._informer.on_change(self._changed)

    async def run(self) -> None:
        """Watch the Secret and load its certificate after each change, until cancelled."""
        await self._informer.run()

    def _changed(self, old: SecretWithData | None, new: SecretWithData | None) -> None:
        if new is None:
            return  # the certificate in use stays; the leader writes a new one
        certificates = CertificateSet.from_data(new.data)
        if certificates is None:
            return  # the leader replaces invalid data
        source = f"Secret {new.key}"
        try:
            _use(self._tls, certificates.server_certificate(source))
        except ConfigError as error:
            _log.error("Could not use certificate of webhooks", error=str(error))


class CertificateDirectory:
    """Loads the webhook server's certificate from `tls.crt` and `tls.key` of a directory.

    cert-manager maintains the files.
    """

    def __init__(self, directory: Path, tls: CertificateTls, *, clock: Clock | None = None) -> None:
        self._directory = directory
        self._tls = tls
        self._clock = clock or RealClock()

    async def run(self) -> None:
        """Read the files whenever they have changed, until cancelled."""
        files: FileSet | None = None
        while True:
            if files is None or files.changed():
                files = FileSet()
                try:
                    _use(self._tls, self._load(files))
                except ConfigError as error:
                    _log.error("Could not use certificate of webhooks", error=str(error))
            await self._clock.sleep(_LOOK_S)

    def _load(self, files: FileSet) -> ServerCertificate:
        source = str(self._directory)
        try:
            certificate = files.read(self._directory / "tls.crt")
            key = files.read(self._directory / "tls.key")
        except OSError as error:
            raise ConfigError(f"cannot be read: {error}", source=source) from error
        return ServerCertificate.load(certificate, key, source)


def _use(tls: CertificateTls, certificate: ServerCertificate) -> None:
    not_after = certificate.not_after.isoformat()
    if tls.use_certificate(certificate):
        _log.info("Loaded certificate of webhooks", source=certificate.source, not_after=not_after)
    else:
        reason = "the new one is not valid now"
        _log.error(
            "Rejected new certificate of webhooks, kept the old one",
            reason=reason,
            not_after=not_after,
        )
