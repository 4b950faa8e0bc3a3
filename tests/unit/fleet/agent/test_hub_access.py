"""The way to the hub: variables and flags of KubeFleet's member agent."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from kubeocean.errors import ConfigError
from kubeocean.fleet.agent.hub_access import HeaderTransport, extra_headers, hub_access
from kubeocean.fleet.agent.tokens import SecretTokenAccess
from kubeocean.fleet.settings import MemberSettings
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.flags import parse
from kubeocean.runtime.transport import Request
from support.scripted_transport import Scripted

SERVER = "https://hub.example:6443"
TOKEN = {"CONFIG_PATH": "/x"}
MEMBER = Client(Scripted())


@pytest.fixture(scope="module")
def authority() -> LocalAuthority:
    return LocalAuthority.create("hub")


def access(environ: dict[str, str], *words: str) -> AccessSource:
    settings = parse(MemberSettings, words)
    assert settings is not None
    return hub_access(settings, {"HUB_SERVER_URL": SERVER} | environ, MEMBER)


async def test_a_token_file_is_read_again(tmp_path: Path, authority: LocalAuthority) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    encoded = b64encode(authority.certificate).decode()
    source = access({"CONFIG_PATH": str(token), "HUB_CERTIFICATE_AUTHORITY": encoded})
    first = source.current()
    assert (first.server, first.ca) == (SERVER, authority.certificate)
    assert first.token is not None
    assert first.token.reveal() == "first"
    token.write_text("second")
    assert await source.refresh(rejected=True)
    renewed = source.current().token
    assert renewed is not None
    assert renewed.reveal() == "second"


def test_a_client_certificate(tmp_path: Path, authority: LocalAuthority) -> None:
    identity = authority.issue(Subject("agent", (), client=True))
    files = {"IDENTITY_CERT": identity.certificate, "IDENTITY_KEY": identity.private_key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    bundle = tmp_path / "ca.crt"
    bundle.write_bytes(authority.certificate)
    environ = {name: str(tmp_path / name) for name in files} | {"CA_BUNDLE": str(bundle)}
    used = access(environ, "--use-ca-auth").current()
    assert (used.certificate, used.ca) == (identity.certificate, authority.certificate)
    assert used.token is None


def test_an_insecure_client_ignores_the_certificate_authority(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    environ = {"CONFIG_PATH": str(token), "HUB_CERTIFICATE_AUTHORITY": "nonsense"}
    used = access(environ, "--tls-insecure").current()
    assert (used.insecure, used.ca) == (True, None)


def test_a_secret_takes_the_place_of_the_token_file() -> None:
    source = access({}, "--token-secret=fleet-system/hub-token", "--tls-insecure")
    assert isinstance(source, SecretTokenAccess)


@pytest.mark.parametrize(
    ("environ", "words", "source"),
    [
        ({"HUB_SERVER_URL": ""}, (), "HUB_SERVER_URL"),
        ({"HUB_SERVER_URL": "hub:6443"}, (), "HUB_SERVER_URL"),
        ({}, (), "CONFIG_PATH"),
        ({"CONFIG_PATH": "/nonexistent"}, (), "/nonexistent"),
        ({}, ("--use-ca-auth",), "IDENTITY_CERT"),
        ({"IDENTITY_CERT": "/x"}, ("--use-ca-auth",), "IDENTITY_KEY"),
        (TOKEN | {"CA_BUNDLE": ""}, (), "CA_BUNDLE"),
        (TOKEN | {"CA_BUNDLE": "a", "HUB_CERTIFICATE_AUTHORITY": "b"}, (), "CA_BUNDLE"),
        (TOKEN | {"HUB_CERTIFICATE_AUTHORITY": "%"}, (), "HUB_CERTIFICATE_AUTHORITY"),
        (TOKEN | {"HUB_CERTIFICATE_AUTHORITY": "eA=="}, (), "HUB_CERTIFICATE_AUTHORITY"),
    ],
)
def test_an_error_names_the_variable(
    environ: dict[str, str], words: tuple[str, ...], source: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        access(environ, *words)
    assert raised.value.source == source


def test_a_kubeconfig_excludes_other_ways() -> None:
    with pytest.raises(ConfigError, match="--hub-kubeconfig"):
        parse(MemberSettings, ["--hub-kubeconfig=x", "--use-ca-auth"])


async def test_headers_are_added_to_requests() -> None:
    assert extra_headers({}) == {}
    headers = extra_headers({"HUB_KUBE_HEADER": "X-Fleet: a\r\nX-Member:b\r\n\r\n"})
    assert headers == {"X-Fleet": "a", "X-Member": "b"}
    inner = Scripted()
    await HeaderTransport(inner, headers).send(Request("GET", "/version"))
    assert inner.requests[0].headers == headers
    with pytest.raises(ConfigError, match="HUB_KUBE_HEADER"):
        extra_headers({"HUB_KUBE_HEADER": "no colon"})


def test_an_access_without_a_certificate_authority_trusts_the_machine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    used: Access = access({"CONFIG_PATH": str(token)}).current()
    assert (used.ca, used.insecure) == (None, False)
