"""PEM: is this a certificate, is this its key?

OpenSSL is the judge, since it is what will use them. The answers are sentences without anything of
the material in them; an empty answer means that there is nothing to complain about.

A private key reaches OpenSSL only through a file. `as_file` keeps it off the disk where the kernel
has anonymous files, and else in a file of mode 0600 that is gone before anything else happens.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from kubeocean.runtime.files import scratch_file
from kubeocean.runtime.secrets import Secret

__all__ = ["as_file", "certificates_problem", "key_problem", "load_pair", "trust"]

# Of another value; of another kind than the certificate, in newer and older versions of OpenSSL.
_MISMATCH = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_ENCRYPTED = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")


def trust(context: ssl.SSLContext, certificates: bytes) -> None:
    """Trust what these PEM certificates sign. Raises ssl.SSLError."""
    # OpenSSL takes bytes for DER; what is not ASCII in PEM can only be a remark between blocks.
    text = certificates.decode("ascii", "ignore")
    if not text:
        raise ssl.SSLError("there is no certificate")
    context.load_verify_locations(cadata=text)


def load_pair(context: ssl.SSLContext, certificate: bytes, key: Secret[bytes]) -> None:
    """Present this certificate. Raises ssl.SSLError, also for an encrypted key."""
    with as_file(certificate + b"\n" + key.reveal()) as path:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(path, password="")


def certificates_problem(certificates: bytes) -> str:
    """What is wrong with a bundle of PEM certificates."""
    try:
        trust(_scratch(), certificates)
    except ssl.SSLError:
        return "is not a PEM certificate"
    return ""


def key_problem(certificate: bytes, key: Secret[bytes]) -> str:
    """What is wrong with a private key, given that its certificate is right."""
    if any(mark in key.reveal() for mark in _ENCRYPTED):
        return "is encrypted; there is nobody to ask for its password"
    try:
        load_pair(_scratch(), certificate, key)
    except ssl.SSLError as error:
        if error.reason in _MISMATCH:
            return "does not match the client certificate"
        if error.library == "SSL" and error.reason:
            return f"cannot be used with the client certificate ({error.reason})"
        return "is not a PEM private key"
    return ""


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """A path under which this process, and nobody else, finds `content` within the block."""
    if hasattr(os, "memfd_create"):
        with scratch_file() as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile(buffering=0) as file:  # created with mode 0600
        file.write(content)
        yield file.name


def _scratch() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
