from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kubeocean.runtime.access import as_file, certificates_problem, key_problem
from kubeocean.runtime.redaction import Secret
from support.certificates import identity, issue

someone = identity()


def test_a_certificate_is_fine() -> None:
    assert certificates_problem(someone.certificate) == ""


def test_a_bundle_with_remarks_is_fine() -> None:
    bundle = "# première\n".encode() + someone.certificate + b"text\n" + issue("b").certificate
    assert certificates_problem(bundle) == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"\xff\x00", someone.key, someone.certificate[:-60], b"-----BEGIN CERTIFICATE"],
)
def test_anything_else_is_not_a_certificate(content: bytes) -> None:
    assert certificates_problem(content) == "is not a PEM certificate"


def test_a_key_fits_its_certificate() -> None:
    assert key_problem(someone.certificate, Secret(someone.key)) == ""
    assert key_problem(someone.certificate, Secret(someone.traditional_key)) == ""


def test_a_key_of_another_certificate_does_not_match() -> None:
    other = Secret(issue("other").key)
    assert key_problem(someone.certificate, other) == "does not match the client certificate"


def test_a_key_of_another_kind_does_not_match() -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert key_problem(someone.certificate, Secret(pem)) == "does not match the client certificate"


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_an_encrypted_key_is_named_as_such(form: PrivateFormat) -> None:
    locked = Secret(someone.locked_key(form))
    assert key_problem(someone.certificate, locked).startswith("is encrypted")


@pytest.mark.parametrize("content", [b"", b"hello", someone.certificate, someone.key[:60]])
def test_anything_else_is_not_a_key(content: bytes) -> None:
    assert key_problem(someone.certificate, Secret(content)) == "is not a PEM private key"


def test_a_weak_pair_is_refused_with_the_reason_of_openssl() -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    pem = weak.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = issue("weak", secret=weak).certificate
    message = key_problem(certificate, Secret(pem))
    assert message.startswith("cannot be used with the client certificate (")


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_a_key_on_its_way_to_openssl_leaves_nothing_behind(
    in_memory: bool, fail: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    try:
        with as_file(b"secret") as path:
            assert Path(path).read_bytes() == b"secret"
            assert [stat.S_IMODE(f.stat().st_mode) for f in tmp_path.iterdir()] == (
                [] if in_memory else [0o600]
            )
            if fail:
                raise ssl.SSLError("no")
    except ssl.SSLError:
        assert fail
    assert not list(tmp_path.iterdir())
    assert not os.path.exists(path)
