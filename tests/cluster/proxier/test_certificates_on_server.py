"""The certificate of a replica, signed by a real cluster: had, renewed in time, and ours alone."""

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
from kubeocean.local.pki import Authority
from kubeocean.proxier.certificates import SIGNER, SignedCertificate
from kubeocean.proxier.identity import Identity
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Json
from waiting import until

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ADDRESS = "10.1.2.3"


def wanting(
    client: Client, identity: Identity, clock: VirtualClock, name: str
) -> SignedCertificate:
    return SignedCertificate(
        client,
        identity,
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
    found = await client.request_json("GET", REQUESTS)
    return [each for each in found["items"] if name in each["metadata"]["name"]]


async def test_a_certificate_is_had_and_renewed_when_a_third_of_its_life_is_left(
    client: Client, namespace: str
) -> None:
    clock, identity = VirtualClock(), Identity()
    identity.believe(Authority.create("callers").certificate)
    async with running(wanting(client, identity, clock, namespace)):

        async def shown() -> bool:
            await clock.advance(1.0)
            return identity.pair is not None

        await until(shown)
        first = identity.pair
        assert first is not None
        assert identity.ready
        assert {ADDRESS, "127.0.0.1", "localhost"} <= first.names

        async def tidied() -> bool:
            return not await requests(client, namespace)

        await until(tidied)
        left = (first.not_after - clock.now()).total_seconds()
        await clock.advance(left * 0.6)
        assert identity.pair == first
        await clock.advance(left * 0.1)

        async def renewed() -> bool:
            await clock.advance(1.0)
            return identity.pair != first

        await until(renewed)
        assert identity.ready
        await until(tidied)


class _Interfered(SignedCertificate):
    """Somebody puts a request of their own in the place of ours, before it is approved."""

    async def _approve(self, made: Json) -> None:
        name = made["metadata"]["name"]
        await self._computing.request("DELETE", f"{REQUESTS}/{name}")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateSigningRequestBuilder().subject_name(
            x509.load_pem_x509_csr(base64.b64decode(made["spec"]["request"])).subject
        )
        names = x509.SubjectAlternativeName([x509.DNSName("kube-apiserver")])
        wanted = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(
                    wanted.public_bytes(serialization.Encoding.PEM)
                ).decode(),
                "signerName": SIGNER,
                "usages": made["spec"]["usages"],
            },
        }
        await self._computing.request_json("POST", REQUESTS, body=body)
        await super()._approve(made)


async def test_nobody_elses_request_is_approved_in_the_place_of_ours(
    client: Client, namespace: str
) -> None:
    certificate = _Interfered(
        client,
        Identity(),
        binding=namespace,
        cluster_id=namespace,
        address=ADDRESS,
        pod="proxier-0",
        domain=DEFAULT,
    )
    with pytest.raises(Conflict):
        await certificate._obtain()
    (theirs,) = await requests(client, namespace)  # nor is it deleted in the place of ours
    assert not theirs.get("status")
    await client.request("DELETE", f"{REQUESTS}/{theirs['metadata']['name']}")
