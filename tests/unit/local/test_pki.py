"""Certificates: signers, subjects, and files that are kept."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubeocean.errors import ConfigError
from kubeocean.local.pki import LocalAuthority, LocalIdentity, ServiceAccountKeys, Subject
from kubeocean.runtime.clock import RealClock, VirtualClock

_USER = Subject("ann", ("team-a", "team-b"), client=True)
_SERVER = Subject("server", sans=("localhost", "127.0.0.1", "::1"), server=True)


def _read(identity: LocalIdentity) -> x509.Certificate:
    return x509.load_pem_x509_certificate(identity.certificate)


def test_a_client_certificate_names_the_user_and_the_groups() -> None:
    certificate = _read(LocalAuthority.create("ca").issue(_USER))
    groups = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [group.value for group in groups] == ["team-a", "team-b"]
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert [name.value for name in names] == ["ann"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_certificates_are_signed_by_their_authority_and_no_other() -> None:
    ours, other = LocalAuthority.create("ca"), LocalAuthority.create("ca")
    certificate = _read(ours.issue(_USER))
    certificate.verify_directly_issued_by(_read(ours.identity))
    with pytest.raises(Exception, match=r"^$"):
        certificate.verify_directly_issued_by(_read(other.identity))


def test_a_client_accepts_the_server_by_name_and_by_address(tmp_path: Path) -> None:
    authority = LocalAuthority.create("ca")
    authority.issue(_SERVER).save(tmp_path, "server")
    authority.issue(_USER).save(tmp_path, "ann")
    for host in _SERVER.sans:
        assert _handshake(tmp_path, authority, host) == "ann"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _handshake(tmp_path, authority, "elsewhere")


def _handshake(directory: Path, authority: LocalAuthority, host: str) -> str:
    """Return the client's common name as a server reads it after a handshake in memory."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(directory / "server.crt", directory / "server.key")
    server.load_verify_locations(cadata=authority.certificate.decode())
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    client.load_cert_chain(directory / "ann.crt", directory / "ann.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=host)
    far = server.wrap_bio(up, down, server_side=True)
    for side in (near, far, near, far):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    peer = far.getpeercert()
    assert peer is not None
    return next(pair[0][1] for pair in peer["subject"] if pair[0][0] == "commonName")


def test_files_are_private(tmp_path: Path) -> None:
    authority = LocalAuthority.ensure(tmp_path, "ca")
    authority.ensure_issued(tmp_path, "ann", _USER)
    ServiceAccountKeys.ensure(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "ca.crt", "ca.key", "ann.crt", "ann.key", "sa.key", "sa.pub"
    }  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_what_is_on_disk_is_used_again(tmp_path: Path) -> None:
    first = LocalAuthority.ensure(tmp_path, "ca")
    again = LocalAuthority.ensure(tmp_path, "ca")
    assert first.certificate == again.certificate
    issued = first.ensure_issued(tmp_path, "server", _SERVER)
    assert again.ensure_issued(tmp_path, "server", _SERVER) == issued
    assert ServiceAccountKeys.ensure(tmp_path) == ServiceAccountKeys.ensure(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        Subject("server", sans=("localhost", "10.0.0.1"), server=True),
        Subject("other", sans=_SERVER.sans, server=True),
        Subject("server", ("group",), _SERVER.sans, server=True),
        Subject("server", sans=_SERVER.sans, server=True, client=True),
    ],
)
def test_a_certificate_that_should_say_something_else_is_replaced(
    tmp_path: Path, changed: Subject
) -> None:
    authority = LocalAuthority.ensure(tmp_path, "ca")
    old = authority.ensure_issued(tmp_path, "server", _SERVER)
    new = authority.ensure_issued(tmp_path, "server", changed)
    assert new != old
    assert authority.ensure_issued(tmp_path, "server", changed) == new


def test_a_certificate_is_replaced_before_it_expires(tmp_path: Path) -> None:
    clock = VirtualClock(start=RealClock().now() + timedelta(days=3640))
    LocalAuthority.ensure(tmp_path, "ca")
    old = LocalAuthority.load(tmp_path, "ca").ensure_issued(tmp_path, "server", _SERVER)
    new = LocalAuthority.load(tmp_path, "ca", clock=clock).ensure_issued(
        tmp_path, "server", _SERVER
    )
    assert _read(new).not_valid_after_utc > _read(old).not_valid_after_utc


def test_damaged_and_foreign_certificates_are_replaced(tmp_path: Path) -> None:
    authority = LocalAuthority.ensure(tmp_path, "ca")
    LocalAuthority.create("ca").issue(_USER).save(tmp_path, "ann")
    issued = authority.ensure_issued(tmp_path, "ann", _USER)
    _read(issued).verify_directly_issued_by(_read(authority.identity))
    (tmp_path / "ann.crt").write_bytes(b"half")
    assert authority.ensure_issued(tmp_path, "ann", _USER) != issued
    # A crash between the two files leaves a key that does not belong to the certificate.
    (tmp_path / "ann.key").write_bytes(authority.issue(_USER).private_key)
    fixed = authority.ensure_issued(tmp_path, "ann", _USER)
    fixed.save(tmp_path, "fixed")
    context = ssl.create_default_context()
    context.load_cert_chain(tmp_path / "fixed.crt", tmp_path / "fixed.key")


def test_a_damaged_authority_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    LocalAuthority.ensure(tmp_path, "ca")
    (tmp_path / "ca.key").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"ca\.key"):
        LocalAuthority.ensure(tmp_path, "ca")


def test_an_authority_that_was_never_made_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalAuthority.load(tmp_path, "ca")


def test_private_keys_are_not_shown() -> None:
    assert "PRIVATE" not in repr(LocalAuthority.create("ca").issue(_USER))


@pytest.mark.parametrize(
    "subject", [Subject("x" * 65, client=True), Subject("x", ("",), client=True)]
)
def test_a_name_that_fits_no_certificate_is_refused(subject: Subject) -> None:
    with pytest.raises(ConfigError, match="1 to 64"):
        LocalAuthority.create("ca").issue(subject)
