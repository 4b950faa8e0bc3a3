"""Checks of what proves who somebody is: until when it does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from kubeocean.doctoring.findings import Finding, Severity
from kubeocean.installation.credentials import due
from kubeocean.installation.tokens import read_token
from kubeocean.leasing.instants import text_of

__all__ = ["check_certificates", "check_token"]

_SOON: Final = timedelta(days=30)


def check_certificates(
    check: str, about: str, pem: bytes, now: datetime, remedy: str
) -> Iterator[Finding]:
    """Of a bundle the last to end counts: authorities change while both hold."""
    if not pem:
        return
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        yield Finding(check, Severity.ERROR, about, f"it cannot be read: {error}", remedy)
        return
    begins = min(each.not_valid_before_utc for each in found)
    ends = max(each.not_valid_after_utc for each in found)
    if now < begins:
        said = f"it is not valid before {text_of(begins)}"
        yield Finding(check, Severity.ERROR, about, said, remedy)
    yield from _ending(check, about, ends, now, remedy)


def check_token(about: str, token: str, now: datetime, remedy: str) -> Iterator[Finding]:
    """It holds, and is not in the last third of its life."""
    if not token:
        return
    told = read_token(token)
    if told is None:
        said = "it does not say when it ends; such tokens are for ever, or of another kind"
        yield Finding("token", Severity.WARNING, about, said, remedy)
    elif now >= told.ends:
        yield from _ending("token", about, told.ends, now, remedy)
    elif due(told.begins, told.ends, now):
        said = f"it ends at {text_of(told.ends)}; it is time for another"
        yield Finding("token", Severity.WARNING, about, said, remedy)


def _ending(
    check: str, about: str, ends: datetime, now: datetime, remedy: str
) -> Iterator[Finding]:
    if now >= ends:
        said = f"it ended at {text_of(ends)}"
        yield Finding(check, Severity.ERROR, about, said, remedy)
    elif now >= ends - _SOON:
        said = f"it ends at {text_of(ends)}, in {(ends - now).days} days"
        yield Finding(check, Severity.WARNING, about, said, remedy)
