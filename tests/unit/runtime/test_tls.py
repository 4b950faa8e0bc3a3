from __future__ import annotations

import ssl

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access, as_file, ssl_context
from kubeocean.runtime.redaction import Secret
from support.certificates import Identity, issue

SERVER = "https://api.example"
root = issue("root", authority=True)
middle = issue("middle", issuer=root, authority=True)
server = issue("api.example", issuer=middle, san="api.example")
client = issue("client", issuer=root)


def shake(
    context: ssl.SSLContext | None, host: Identity = server, *, name: str = "api.example"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a handshake in memory; return the results of the client and of the server."""
    assert context is not None
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.set_alpn_protocols(["h2", "http/1.1"])
    listening.verify_mode = ssl.CERT_OPTIONAL
    listening.load_verify_locations(cadata=root.certificate.decode())
    with as_file(host.certificate + middle.certificate + host.key) as path:
        listening.load_cert_chain(path)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = context.wrap_bio(down, up, server_hostname=name)
    existing = listening.wrap_bio(up, down, server_side=True)
    waiting = [here, existing]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return here, existing


def test_plain_http_needs_no_context() -> None:
    assert ssl_context(Access("http://api.example")) is None


def test_a_server_signed_below_the_authority_is_trusted() -> None:
    here, _ = shake(ssl_context(Access(SERVER, ca=root.certificate)))
    assert here.selected_alpn_protocol() == "http/1.1"
    assert here.version() in ("TLSv1.2", "TLSv1.3")


def test_an_intermediate_authority_is_enough_as_in_go() -> None:
    shake(ssl_context(Access(SERVER, ca=middle.certificate)))


def test_a_server_of_another_authority_is_not_trusted() -> None:
    stranger = issue("stranger", authority=True).certificate
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(ssl_context(Access(SERVER, ca=stranger)))


def test_without_an_authority_the_roots_of_the_machine_decide() -> None:
    context = ssl_context(Access(SERVER))
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(context)


def test_a_server_of_another_name_is_not_trusted() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(ssl_context(Access(SERVER, ca=root.certificate)), name="other.example")


def test_a_common_name_alone_proves_nothing() -> None:
    nameless = issue("api.example", issuer=middle)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(ssl_context(Access(SERVER, ca=root.certificate)), nameless)


def test_insecure_trusts_anyone() -> None:
    shake(ssl_context(Access(SERVER, insecure=True)), issue("anyone"), name="whatever")


def test_the_client_certificate_is_shown_to_the_server() -> None:
    access = Access(
        SERVER,
        ca=root.certificate,
        certificate=client.certificate,
        private_key=Secret(client.key),
    )
    _, existing = shake(ssl_context(access))
    shown = existing.getpeercert()
    assert shown is not None
    assert shown["subject"] == ((("commonName", "client"),),)


def test_nothing_older_than_tls_1_2_is_spoken() -> None:
    context = ssl_context(Access(SERVER))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "access",
    [
        Access(SERVER, ca=b"not PEM", origin="here"),
        Access(
            SERVER,
            ca=root.certificate,
            certificate=client.certificate,
            private_key=Secret(server.key),
            origin="here",
        ),
    ],
)
def test_bad_material_is_a_config_error(access: Access) -> None:
    with pytest.raises(ConfigError, match="here: the certificates or the key cannot be used"):
        ssl_context(access)
