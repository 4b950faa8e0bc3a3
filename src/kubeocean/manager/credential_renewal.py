"""Renews the credentials of workers that `kubeocean join` has created, before they expire.

Such a credential is a token of the worker's account. The account may request tokens of itself, and
of no other account with permissions; the worker's admission policy admits only tokens that are
bound to the Secret with which the owner revokes the credential. In the last third of the
credential's lifetime the manager requests a new token, tries the token once, and writes it into the
kubeconfig Secret with the resourceVersion that was read. Syncer and proxier follow the Secret. The
old token stays valid until its own expiry.

A failed renewal changes nothing else: the failure is shown in the condition `CredentialValid`, and
the renewal is repeated at growing intervals. A kubeconfig that `join` has not made is never
written; its expiry is shown.

Answers of the worker are not trusted: a token is written only if it is one of the same account,
bound to the same Secret, ends later than the present one, and is accepted by the worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import msgspec
from cryptography import x509

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import APP_PART_OF, KUBECONFIG_KEY, Domain
from kubeocean.api.naming import label_value
from kubeocean.errors import ApiError, ConfigError, api_error
from kubeocean.install.apply import FIELD_MANAGER
from kubeocean.install.credentials import (
    TokenClaims,
    due,
    kubeconfig,
    kubeconfig_secret,
    read_token,
    secret_name,
    server_option,
    token_request,
)
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import ApplyPatch, Client
from kubeocean.runtime.clock import Clock, text_of
from kubeocean.runtime.kinds import SECRETS_WITH_DATA, SERVICE_ACCOUNTS, SecretWithData
from kubeocean.runtime.logs import AUDIT_LOGGER, get_logger
from kubeocean.runtime.objects import Json
from kubeocean.runtime.retries import backoff_s
from kubeocean.runtime.transport import Request, Transport
from kubeocean.worker_access.credentials import SecretAccess

__all__ = [
    "CredentialRenewal",
    "CredentialReport",
    "CredentialValidity",
    "NewToken",
    "accepted",
    "credential_of",
]

FIRST_RETRY_S: Final = 60.0
LAST_RETRY_S: Final = 3600.0
_TIMEOUT_S: Final = 5.0
_LONGEST_TOKEN: Final = 16 * 1024
_REFUSALS: Final = 400
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")

_audit = get_logger(AUDIT_LOGGER)


@dataclass(frozen=True, slots=True)
class CredentialValidity:
    """The validity of a worker's credential; `renews` is the token that the manager may renew."""

    begins: datetime | None = None
    ends: datetime | None = None  # None: unknown, or never
    renews: TokenClaims | None = None

    def is_due(self, now: datetime) -> bool:
        """Whether the credential is in the last third of its lifetime, or past it."""
        return self.ends is not None and due(self.begins, self.ends, now)


@dataclass(frozen=True, slots=True)
class CredentialReport:
    """The expiry of a credential, whether the manager renews it, and why a renewal failed."""

    ends: datetime | None = None
    renews: bool = False
    due: bool = False
    error: str = ""
    renewed_now: bool = False


def credential_of(
    secret: SecretWithData, access: Access, binding: ClusterBinding, domain: Domain
) -> CredentialValidity:
    """Return the validity of the credential in a binding's Secret."""
    token = access.token.reveal() if access.token is not None else ""
    claims = read_token(token)
    if claims is not None:
        ours = _made_by_join(secret, binding, domain) and access.impersonate is None
        renewable = bool(ours and claims.account and claims.secret_name and claims.secret_uid)
        return CredentialValidity(claims.begins, claims.ends, claims if renewable else None)
    if token or not access.certificate:
        return CredentialValidity()
    try:
        certificates = x509.load_pem_x509_certificates(access.certificate)
    except ValueError:
        return CredentialValidity()
    first = certificates[0]  # of a chain, the client's own
    return CredentialValidity(first.not_valid_before_utc, first.not_valid_after_utc)


def _made_by_join(secret: SecretWithData, binding: ClusterBinding, domain: Domain) -> bool:
    """Whether labels, annotations and name of a Secret are those that `join` gives it."""
    return (
        secret.name == secret_name(binding.name)
        and secret.namespace == domain.system_namespace
        and secret.labels.get(APP_PART_OF) == domain.product
        and secret.labels.get(domain.cluster_binding) == label_value(binding.name)
        and domain.token_expires in secret.annotations
        and set(secret.data) == {KUBECONFIG_KEY}
    )


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token from the worker that may replace the token in the kubeconfig."""

    token: str = field(repr=False)
    ends: datetime


def accepted(token: object, present: TokenClaims) -> NewToken:
    """Return a token from the worker's answer, if it may replace the present token.

    :raises ApiError: the answer has no token, or the token is not one of the same account and
        Secret that ends later.
    """
    if not isinstance(token, str) or len(token) > _LONGEST_TOKEN:
        raise ApiError("could not renew the token: the answer of the worker's API server has none")
    claims = read_token(token)
    if claims is None or not _TOKEN.fullmatch(token):
        raise ApiError(
            "could not renew the token: the worker's API server issued no service account token"
        )
    if replace(claims, begins=present.begins, ends=present.ends) != present:
        message = "for another account, or not bound to the Secret of the present one"
        raise ApiError(f"could not renew the token: the new one is {message}")
    if claims.ends <= present.ends:
        ends = text_of(claims.ends)
        raise ApiError(
            f"could not renew the token: the new one expires at {ends}, no later than the present"
            " one"
        )
    return NewToken(token, claims.ends)


class CredentialRenewal:
    """Renews the credential of one binding, and remembers the last failure.

    - `computing`: a client that may patch Secrets of the system namespace.
    - `connect`: returns a transport to the worker with a credential.
    """

    def __init__(
        self,
        computing: Client,
        connect: Callable[[SecretAccess], Transport],
        *,
        domain: Domain,
        clock: Clock,
    ) -> None:
        # The field manager of `join`, so that the two never conflict.
        self._computing = computing.with_field_manager(FIELD_MANAGER)
        self._connect = connect
        self._domain = domain
        self._clock = clock
        self._version = ""  # resourceVersion of the Secret that the failures are about
        self._failures = 0
        self._retry_at = 0.0
        self._error = ""

    async def follow(
        self,
        binding: ClusterBinding,
        secret: SecretWithData,
        access: Access,
        worker: Client | None,
    ) -> CredentialReport:
        """Renew the credential if that is due; return its state. Failures are not raised.

        Without a `worker` nothing is renewed: the server that answers is not that of the binding.
        """
        credential = credential_of(secret, access, binding, self._domain)
        is_due = credential.is_due(self._clock.now())
        if secret.resource_version != self._version or not is_due:
            self._version, self._failures, self._error = secret.resource_version, 0, ""
            self._retry_at = 0.0
        claims = credential.renews
        may_try = is_due and self._clock.monotonic() >= self._retry_at
        if worker is not None and claims is not None and may_try:
            try:
                ends = await self._renew(binding, secret, access, claims, worker)
            except (ApiError, ConfigError) as error:
                self._failures += 1
                wait_s = backoff_s(self._failures, FIRST_RETRY_S, LAST_RETRY_S)
                self._retry_at = self._clock.monotonic() + wait_s
                self._error = str(error)
            else:
                return CredentialReport(ends, renews=True, renewed_now=True)
        return CredentialReport(credential.ends, claims is not None, is_due, self._error)

    async def _renew(
        self,
        binding: ClusterBinding,
        secret: SecretWithData,
        access: Access,
        claims: TokenClaims,
        worker: Client,
    ) -> datetime:
        """Request, try and write a new token; return its expiry.

        :raises ApiError: a cluster refused, or the new token cannot be used.
        """
        body = token_request(claims.secret_name, claims.secret_uid)
        answer = await worker.post(
            SERVICE_ACCOUNTS, claims.account, "token", body, claims.namespace
        )
        status = answer.get("status")
        token = status.get("token") if isinstance(status, dict) else None
        fresh = accepted(token, claims)
        content = kubeconfig(access, fresh.token, namespace=claims.namespace)
        written = self._secret(binding, secret, content, fresh.ends)
        await self._try(msgspec.convert(written, SecretWithData))
        await self._computing.patch(
            SECRETS_WITH_DATA, secret.name, ApplyPatch(written), secret.namespace
        )
        _audit.info(
            "Renewed worker credentials",
            binding=binding.name,
            secret=str(secret.key),
            ends=text_of(fresh.ends),
        )
        return fresh.ends

    def _secret(
        self, binding: ClusterBinding, secret: SecretWithData, content: str, ends: datetime
    ) -> Json:
        """Return the kubeconfig Secret as `join` applies it, with the version that was read."""
        domain, annotations = self._domain, secret.annotations
        body = kubeconfig_secret(
            binding.name,
            content,
            ends=text_of(ends) or "",
            domain=domain,
            worker_id=annotations.get(domain.worker_cluster_id, ""),
            server=annotations.get(server_option(domain), ""),
        )
        body["metadata"]["resourceVersion"] = secret.resource_version
        body["metadata"]["uid"] = secret.uid
        return body

    async def _try(self, secret: SecretWithData) -> None:
        """Send one request with a new credential.

        :raises ApiError: the worker does not accept it.
        """
        transport = self._connect(SecretAccess(secret))
        try:
            response = await transport.send(Request("GET", "/version", timeout_s=_TIMEOUT_S))
        finally:
            await transport.close()
        if response.status >= _REFUSALS:
            raise api_error(response.status, b"", doing="use the new token")
