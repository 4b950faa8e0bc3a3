"""Sources of the proxier's serving certificate.

The certificate is read from a Secret, and again when the Secret changes; or the computing cluster
signs a certificate for this replica, with the replica's address in it, which is renewed when a
third of its life is left. A signed certificate is kept in memory: each replica has its own.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.errors import ApiError, ConfigError, KubeoceanError, ServiceUnavailable
from kubeocean.proxier.server_tls import ServerTls
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import SECRETS_WITH_DATA, SecretWithData
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.server_tls import ServerCertificate

__all__ = ["ProvidedCertificate", "SignedCertificate"]

SIGNER: Final = "kubernetes.io/kubelet-serving"
_REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_APPROVAL_REASON: Final = "KubeoceanProxierAutoApproval"
_USAGES: Final = ("digital signature", "key encipherment", "server auth")
_POLL_S: Final = 1.0
_SIGNING_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 15.0
_RENEWED_AT: Final = 2 / 3  # of a certificate's life

_log = get_logger(__name__)


class ProvidedCertificate:
    """Follows the certificate in a Secret that a person or another controller maintains."""

    def __init__(
        self, computing: Client, secret: Key, tls: ServerTls, *, address: str = ""
    ) -> None:
        self._tls = tls
        self._address = address
        self._informer: Informer[SecretWithData] = Informer(
            computing,
            SECRETS_WITH_DATA,
            namespace=secret.namespace,
            fields=f"metadata.name={secret.name}",
        )
        self._informer.on_change(self._changed)

    async def run(self) -> None:
        await self._informer.run()

    def _changed(self, old: SecretWithData | None, new: SecretWithData | None) -> None:
        if new is None:
            return  # the certificate in use stays until it expires
        source = f"Secret {new.key}"
        try:
            certificate = ServerCertificate.load(
                _decoded(new.data.get("tls.crt", ""), "data[tls.crt]", source),
                _decoded(new.data.get("tls.key", ""), "data[tls.key]", source),
                source,
            )
            used = self._tls.use_certificate(certificate)
        except ConfigError as error:
            _log.error("Could not use new serving certificate", error=str(error))
            return
        not_after = certificate.not_after.isoformat()
        if not used:
            reason = "the new one is not valid now"
            _log.error(
                "Rejected new serving certificate, kept the old one",
                reason=reason,
                not_after=not_after,
            )
            return
        _log.info("Loaded serving certificate", source=source, not_after=not_after)
        if self._address and self._address not in certificate.names:
            # API servers that verify kubelets' certificates will not connect; others will.
            _log.warning(
                "Loaded serving certificate without the address of the proxier",
                address=self._address,
            )


class SignedCertificate:
    """Has the computing cluster sign certificates for this replica, and renews them in time."""

    def __init__(
        self,
        computing: Client,
        tls: ServerTls,
        *,
        binding: str,
        cluster_id: str,
        address: str,
        pod: str,
        domain: Domain,
        clock: Clock | None = None,
    ) -> None:
        self._computing = computing
        self._tls = tls
        self._binding = binding
        self._cluster_id = cluster_id
        self._address = address
        self._pod = pod
        self._domain = domain
        self._clock = clock or RealClock()

    async def run(self) -> None:
        """Obtain a certificate and renew it in time, until cancelled."""
        while True:
            try:
                certificate = await self._obtain()
                if not self._tls.use_certificate(certificate):
                    raise ConfigError(
                        "is not valid at the present time; check the clocks of this machine and"
                        " of the cluster",
                        source=certificate.source,
                    )
            except KubeoceanError as error:
                _log.error(
                    "Could not obtain serving certificate", error=str(error), retry_in_s=_RETRY_S
                )
                await self._clock.sleep(_RETRY_S)
                continue
            _log.info("Obtained serving certificate", not_after=certificate.not_after.isoformat())
            left_s = (certificate.not_after - self._clock.now()).total_seconds()
            await self._clock.sleep(max(_RETRY_S, left_s * _RENEWED_AT))

    async def _obtain(self) -> ServerCertificate:
        key = ec.generate_private_key(ec.SECP256R1())
        name = naming.signing_request(
            self._binding, self._pod, now_ns=int(self._clock.now().timestamp() * 1e9)
        )
        created = await self._computing.request_json(
            "POST", _REQUESTS, body=self._request(name, self._signing_request(key))
        )
        try:
            await self._approve(created)
            certificate = await self._wait_for_signature(name)
        finally:
            await self._delete_request(name, created["metadata"]["uid"])
        private_key = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return ServerCertificate.load(certificate, private_key, _source(name))

    def _signing_request(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{self._binding}"[:64]),
            ]
        )
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName(self._binding)]
        names += [x509.IPAddress(ipaddress.ip_address(each)) for each in self._addresses()]
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _addresses(self) -> list[str]:
        return [each for each in dict.fromkeys((self._address, "127.0.0.1")) if _is_address(each)]

    def _request(self, name: str, signing_request: bytes) -> Json:
        labels = {
            self._domain.component: group.COMPONENT_LOGS_PROXY,
            self._domain.cluster_id: naming.label_value(self._cluster_id),
            self._domain.node_name: naming.label_value(self._binding),
        }
        return {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "request": base64.b64encode(signing_request).decode(),
                "signerName": SIGNER,
                "usages": list(_USAGES),
            },
        }

    async def _approve(self, created: Json) -> None:
        """Approve our CertificateSigningRequest, by the resourceVersion of its creation.

        Another CertificateSigningRequest that took the same name is thus not approved.
        """
        condition = {
            "type": "Approved",
            "status": "True",
            "reason": _APPROVAL_REASON,
            "message": f"The serving certificate of the proxier of {self._binding}",
        }
        path = f"{_REQUESTS}/{created['metadata']['name']}/approval"
        approved: Json = created | {"status": {"conditions": [condition]}}
        await self._computing.request_json("PUT", path, body=approved)

    async def _wait_for_signature(self, name: str) -> bytes:
        waited = 0.0
        while waited < _SIGNING_TIMEOUT_S:
            request = await self._computing.request_json("GET", f"{_REQUESTS}/{name}")
            status = request.get("status") or {}
            if status.get("certificate"):
                return _decoded(status["certificate"], "status.certificate", _source(name))
            for condition in status.get("conditions") or ():
                if condition.get("type") in ("Denied", "Failed"):
                    reason = f"{condition['type']}: {condition.get('message', '')}"
                    raise ServiceUnavailable(
                        f"{_source(name)} was not signed: {reason}", status=503
                    )
            await self._clock.sleep(_POLL_S)
            waited += _POLL_S
        raise ServiceUnavailable(
            f"CertificateSigningRequest {name} was not signed within {_SIGNING_TIMEOUT_S:g} s; "
            f"does the cluster have a signer for {SIGNER}?",
            status=503,
        )

    async def _delete_request(self, name: str, uid: str) -> None:
        body: Json = {"preconditions": {"uid": uid}}
        try:
            await self._computing.request("DELETE", f"{_REQUESTS}/{name}", body=body)
        except ApiError as error:
            _log.warning(
                "Could not delete certificate signing request", name=name, error=str(error)
            )


def _source(name: str) -> str:
    return f"CertificateSigningRequest {name}"


def _decoded(text: str, field: str, source: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError("is not base64", field=field, source=source) from None


def _is_address(text: str) -> bool:
    """Whether a text is an IP address that clients can connect to."""
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return False
