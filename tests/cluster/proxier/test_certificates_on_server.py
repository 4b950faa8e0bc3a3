"""A serving certificate that a real cluster signs: obtained, renewed, and no other approved."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kubeocean.api.group import DEFAULT
from kubeocean.errors import Conflict
from kubeocean.local.pki import LocalAuthority
from kubeocean.proxier.certificates import SIGNER, SignedCertificate
from kubeocean.proxier.server_tls import ServerTls
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Json
from support.wait import until

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ADDRESS = "10.1.2.3"


def certificate_for(
    client: Client, tls: ServerTls, clock: VirtualClock, name: str
) -> SignedCertificate:
    return SignedCertificate(
        client,
        tls,
        binding=name,
        cluster_id=name,
        address=ADDRESS,
        pod="proxier-0",
        domain=DEFAULT,
        clock=clock,
    )


@asynccontextmanager
async def running(certificate: SignedCertificate) -> AsyncIterator[None]:
    task = asyncio.create_task(certificate.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def requests(client: Client, name: str) -> list[Json]:
    listed = await client.request_json("GET", REQUESTS)
    return [each for each in listed["items"] if name in each["metadata"]["name"]]


async def test_a_certificate_is_obtained_and_renewed_when_a_third_of_its_life_is_left(
    client: Client, namespace: str
) -> None:
    clock, tls = VirtualClock(), ServerTls()
    tls.trust_clients(LocalAuthority.create("callers").certificate)
    async with running(certificate_for(client, tls, clock, namespace)):

        async def obtained() -> bool:
            await clock.advance(1.0)
            return tls.certificate is not None

        await until(obtained)
        first = tls.certificate
        assert first is not None
        assert tls.ready
        assert {ADDRESS, "127.0.0.1", "localhost"} <= first.names

        async def deleted() -> bool:
            return not await requests(client, namespace)

        await until(deleted)
        left_s = (first.not_after - clock.now()).total_seconds()
        await clock.advance(left_s * 0.6)
        assert tls.certificate == first
        await clock.advance(left_s * 0.1)

        async def renewed() -> bool:
            await clock.advance(1.0)
            return tls.certificate != first

        await until(renewed)
        assert tls.ready
        await until(deleted)


class _Interfered(SignedCertificate):
    """Another client replaces the request before it is approved."""

    async def _approve(self, created: Json) -> None:
        name = created["metadata"]["name"]
        await self._computing.request("DELETE", f"{REQUESTS}/{name}")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateSigningRequestBuilder().subject_name(
            x509.load_pem_x509_csr(base64.b64decode(created["spec"]["request"])).subject
        )
        names = x509.SubjectAlternativeName([x509.DNSName("kube-apiserver")])
        replacement = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(
                    replacement.public_bytes(serialization.Encoding.PEM)
                ).decode(),
                "signerName": SIGNER,
                "usages": created["spec"]["usages"],
            },
        }
        await self._computing.request_json("POST", REQUESTS, body=body)
        await super()._approve(created)


async def test_a_request_that_took_the_name_is_neither_approved_nor_deleted(
    client: Client, namespace: str
) -> None:
    certificate = _Interfered(
        client,
        ServerTls(),
        binding=namespace,
        cluster_id=namespace,
        address=ADDRESS,
        pod="proxier-0",
        domain=DEFAULT,
    )
    with pytest.raises(Conflict):
        await certificate._obtain()
    (theirs,) = await requests(client, namespace)
    assert not theirs.get("status")
    await client.request("DELETE", f"{REQUESTS}/{theirs['metadata']['name']}")
