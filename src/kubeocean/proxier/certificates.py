"""Certificates: where the proxier's own comes from.

Either from a Secret that somebody provides, followed as it changes; or signed by the computing
cluster for this very replica, with its own address in it, and renewed when a third of its life is
left. A certificate that the cluster signed is kept in memory: another replica has another one.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubeocean.api import group, naming
from kubeocean.api.group import Domain
from kubeocean.errors import ApiError, ConfigError, KubeoceanError, ServiceUnavailable
from kubeocean.proxier.identity import Identity, Pair
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Object, Resource

__all__ = ["ProvidedCertificate", "SignedCertificate"]

SIGNER: Final = "kubernetes.io/kubelet-serving"
_REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_APPROVAL: Final = "KubeoceanProxierAutoApproval"
_USAGES: Final = ("digital signature", "key encipherment", "server auth")
_LOOK_S: Final = 1.0
_PATIENCE_S: Final = 60.0
_RETRY_S: Final = 15.0
_LEFT: Final = 1 / 3  # of a certificate's life, when it is renewed

_log = get_logger(__name__)


class _TlsSecret(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"_TlsSecret({self.key})"


_TLS_SECRETS: Final = Resource("", "v1", "secrets", "Secret", True, _TlsSecret)


class ProvidedCertificate:
    """The certificate in a Secret."""

    def __init__(
        self, computing: Client, secret: Key, identity: Identity, *, address: str = ""
    ) -> None:
        self._identity = identity
        self._address = address
        self._informer: Informer[_TlsSecret] = Informer(
            computing,
            _TLS_SECRETS,
            namespace=secret.namespace,
            fields=f"metadata.name={secret.name}",
        )
        self._informer.on_change(self._changed)

    async def run(self) -> None:
        await self._informer.run()

    def _changed(self, old: _TlsSecret | None, new: _TlsSecret | None) -> None:
        if new is None:
            return  # what is in use goes on until it ends
        source = f"Secret {new.key}"
        try:
            pair = Pair.load(_content(new, "tls.crt"), _content(new, "tls.key"), source)
            taken = self._identity.show(pair)
        except ConfigError as error:
            _log.error("Cannot use certificate", error=str(error))
            return
        ends = pair.not_after.isoformat()
        if not taken:
            _log.error("Kept old certificate", why="the new one does not hold now", not_after=ends)
            return
        _log.info("Took certificate", source=source, not_after=ends)
        if self._address and self._address not in pair.names:
            # An API server that checks kubelets' certificates will not come in; others do.
            _log.warning("Certificate does not name our address", address=self._address)


def _content(secret: _TlsSecret, name: str) -> bytes:
    try:
        return base64.b64decode(secret.data.get(name, ""), validate=True)
    except binascii.Error:
        raise ConfigError(
            "is not base64", field=f"data[{name}]", source=f"Secret {secret.key}"
        ) from None


class SignedCertificate:
    """A certificate for this replica, signed by the computing cluster."""

    def __init__(
        self,
        computing: Client,
        identity: Identity,
        *,
        binding: str,
        cluster_id: str,
        address: str,
        pod: str,
        domain: Domain,
        clock: Clock | None = None,
    ) -> None:
        self._computing = computing
        self._identity = identity
        self._binding = binding
        self._cluster_id = cluster_id
        self._address = address
        self._pod = pod
        self._domain = domain
        self._clock = clock or RealClock()

    async def run(self) -> None:
        """Have one, and a new one in time, until cancelled."""
        while True:
            try:
                pair = await self._obtain()
                if not self._identity.show(pair):
                    raise ConfigError("does not hold now; is our clock right?", source=pair.source)
            except KubeoceanError as error:
                _log.error("Could not get certificate", error=str(error), retry_in_s=_RETRY_S)
                await self._clock.sleep(_RETRY_S)
                continue
            _log.info("Got certificate", not_after=pair.not_after.isoformat())
            left = (pair.not_after - self._clock.now()).total_seconds()
            await self._clock.sleep(max(_RETRY_S, left * (1 - _LEFT)))

    async def _obtain(self) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        name = naming.signing_request(
            self._binding, self._pod, now_ns=int(self._clock.now().timestamp() * 1e9)
        )
        made = await self._computing.request_json(
            "POST", _REQUESTS, body=self._request(name, self._wanted(key))
        )
        try:
            await self._approve(made)
            certificate = await self._await_signature(name)
        finally:
            await self._forget(name, made["metadata"]["uid"])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair.load(certificate, private, f"CertificateSigningRequest {name}")

    def _wanted(self, key: ec.EllipticCurvePrivateKey) -> bytes:
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

    def _request(self, name: str, wanted: bytes) -> Json:
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
                "request": base64.b64encode(wanted).decode(),
                "signerName": SIGNER,
                "usages": list(_USAGES),
            },
        }

    async def _approve(self, made: Json) -> None:
        """Approve the very request that we made: with its version, so that it is no other's."""
        condition = {
            "type": "Approved",
            "status": "True",
            "reason": _APPROVAL,
            "message": f"The serving certificate of the proxier of {self._binding}",
        }
        path = f"{_REQUESTS}/{made['metadata']['name']}/approval"
        approved: Json = made | {"status": {"conditions": [condition]}}
        await self._computing.request_json("PUT", path, body=approved)

    async def _await_signature(self, name: str) -> bytes:
        waited = 0.0
        while waited < _PATIENCE_S:
            found = await self._computing.request_json("GET", f"{_REQUESTS}/{name}")
            status = found.get("status") or {}
            if status.get("certificate"):
                return _decoded(status["certificate"], name)
            for condition in status.get("conditions") or ():
                if condition.get("type") in ("Denied", "Failed"):
                    why = f"{condition['type']}: {condition.get('message', '')}"
                    raise ServiceUnavailable(f"the certificate was not signed: {why}", status=503)
            await self._clock.sleep(_LOOK_S)
            waited += _LOOK_S
        raise ServiceUnavailable(
            f"nobody signed certificate signing request {name} within {_PATIENCE_S:g} s; is there "
            f"a signer for {SIGNER}?",
            status=503,
        )

    async def _forget(self, name: str, uid: str) -> None:
        body: Json = {"preconditions": {"uid": uid}}
        try:
            await self._computing.request("DELETE", f"{_REQUESTS}/{name}", body=body)
        except ApiError as error:
            _log.warning("Could not delete signing request", name=name, error=str(error))


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        source = f"CertificateSigningRequest {name}"
        raise ConfigError("is not base64", field="status.certificate", source=source) from None


def _is_address(text: str) -> bool:
    """Whether somebody can be reached there: not a name, and not just any address."""
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return False
