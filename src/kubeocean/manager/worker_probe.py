"""Probes each bound worker: reachability, identity, mount namespace and permissions.

Each binding has a probe with a controller of its own, so that an unreachable worker delays no other
binding. The probe watches the Secret that its binding names. It runs when that Secret changes, and
otherwise reads the worker's version periodically; a worker that stops answering is noticed within
`PERIOD_S` plus twice `TIMEOUT_S` and a pause. Sufficient permissions are reviewed again every
`REVIEW_S`, because their removal sends no event. The only writes are the creation of a missing
mount namespace, where permitted, and the renewal of a credential (`credential_renewal`).

A `ProbeResult` names the first obstacle only; later checks need the earlier ones to pass. An
unexpected exception is counted, logged and retried by the controller of that one probe.

Responses of a worker are not trusted: they are limited in size, error texts are truncated, and
invalid content never raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from kubeocean.api.bindings import ClusterBinding, SecretReference
from kubeocean.api.group import Domain
from kubeocean.api.naming import label_value
from kubeocean.errors import (
    ApiError,
    ConfigError,
    Forbidden,
    NotFound,
    Unauthorized,
    api_error,
    is_status,
)
from kubeocean.manager.credential_renewal import CredentialRenewal, CredentialReport
from kubeocean.manager.preflight import ensure_namespace, review
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import SECRETS_WITH_DATA, SecretWithData
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport, Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.runtime.workqueue import WorkQueue
from kubeocean.worker_access.credentials import SecretAccess
from kubeocean.worker_access.identity import identity_of, release_of

__all__ = [
    "REVIEW_S",
    "Cause",
    "ProbeContext",
    "ProbeListener",
    "ProbeResult",
    "WorkerProbe",
    "WorkerProbes",
    "release_in",
    "to_worker",
]

_decode_json = msgspec.json.Decoder(Json).decode


class Cause(StrEnum):
    """The obstacle that a probe of a worker met."""

    KUBECONFIG = "Kubeconfig"  # the Secret is missing, or its kubeconfig is unusable
    CREDENTIAL = "Credential"  # the worker did not authenticate the credential
    UNREACHABLE = "Unreachable"  # the worker did not answer
    ANOTHER = "Another"  # the server belongs to another cluster than the binding's
    NAMESPACE = "Namespace"  # the mount namespace does not exist or is being deleted
    RIGHTS = "Rights"  # permissions are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Result of one probe.

    - `error`: description of the obstacle; empty if `cause` is None.
    - `missing`: required permissions that are not granted; `without`: add-ons that are not.
    - `checked`: whether namespace and permissions were checked with this credential.
    - `credential`: the expiry of the credential, and how far its renewal is; None until the worker
      has answered.
    """

    cause: Cause | None = None
    error: str = ""
    server: str = ""
    version: str = ""
    old: bool = False
    checked: bool = False
    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    credential: CredentialReport | None = None

    @property
    def answers(self) -> bool:
        """Whether the worker answered and authenticated the credential."""
        return self.cause in (None, Cause.NAMESPACE, Cause.RIGHTS)

    @property
    def fit(self) -> bool:
        """Whether a syncer can work with this worker: all checks were made and passed."""
        return self.cause is None and self.checked


def release_in(body: bytes) -> tuple[str, bool]:
    """Return `release_of` a response body; invalid bytes give an unknown version."""
    try:
        return release_of(_decode_json(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", False


PERIOD_S: Final = 10.0
TIMEOUT_S: Final = 5.0
FIRST_RETRY_S: Final = 2.0  # after one failure, which may be transient
UNREACHABLE_PERIOD_S: Final = 5.0
RECHECK_S: Final = 30.0  # while permissions are missing: granting them sends no event
REVIEW_S: Final = 300.0  # while permissions suffice: removing them sends no event
_MAX_RESPONSE: Final = 4 << 20  # bytes; objects in etcd are far smaller
_MAX_ERROR: Final = 1000  # characters; part of an error is text of the worker
MAX_FAILURES: Final = 2  # failures in a row after which a worker counts as unreachable
_NAME: Final = "pulse"  # a label value of metrics
_REFUSALS: Final = 400
_UNAUTHORIZED: Final = 401
_SERVER_ERRORS: Final = 500

_log = get_logger(__name__)


def to_worker(access: SecretAccess) -> Transport:
    """Return a transport to a worker that limits the size of responses."""
    return HttpTransport(access, largest=_MAX_RESPONSE)


class ProbeListener(Protocol):
    """Receives the observations of probes."""

    def result_changed(self, binding: Key) -> None:
        """Handle a new result of a binding's probe."""

    def credential_renewed(self, binding: Key, ends: datetime) -> None:
        """Handle the renewal of the binding's credential."""

    def kubeconfig_rotated(self, binding: Key, server: str) -> None:
        """Handle a changed kubeconfig in the binding's Secret."""

    def namespace_created(self, binding: Key, namespace: str) -> None:
        """Handle the creation of the mount namespace."""

    def worker_too_old(self, binding: Key, version: str) -> None:
        """Handle a worker with a version that is older than `OLDEST`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeContext:
    """Dependencies of all probes; `connect` returns the transport to a worker.

    Sufficient permissions are reviewed again after `review_s`.
    """

    computing: Client
    connect: Callable[[SecretAccess], Transport]
    listener: ProbeListener
    domain: Domain
    review_s: float = REVIEW_S
    clock: Clock = field(default_factory=RealClock)
    metrics: Metrics = field(default_factory=Metrics)


class WorkerProbe:
    """Probes one worker; `result` is None until the first probe has finished."""

    def __init__(self, binding: ClusterBinding, context: ProbeContext) -> None:
        self._binding = binding
        self._context = context
        self._clock = context.clock
        self._access: SecretAccess | None = None
        self._worker: Client | None = None
        # The last check of namespace and permissions: its subject, result and time.
        self._checked_subject: tuple[Access, str] | None = None
        self._checked = ProbeResult()
        self._checked_at = float("-inf")
        self._failures = 0
        self._renewal = CredentialRenewal(
            context.computing, context.connect, domain=context.domain, clock=self._clock
        )
        self._secrets: Informer[SecretWithData] | None = None
        self._reference_changed = asyncio.Event()
        self.result: ProbeResult | None = None
        # Controllers of all probes share one name, so that metrics are summed. The queue has no
        # metrics: the depth of a queue with one key is of no use.
        queue = WorkQueue[Key](_NAME, clock=self._clock)
        self._controller = Controller(
            _NAME, self._reconcile, queue=queue, clock=self._clock, metrics=context.metrics
        )

    def follow(self, binding: ClusterBinding) -> None:
        """Use the present spec of the binding; probe again if its Secret or namespace changed."""
        before, self._binding = self._binding.spec, binding
        if binding.spec.secret_ref != before.secret_ref:
            self.result = self._secrets = None
            self._reference_changed.set()
        elif binding.spec.mount_namespace != before.mount_namespace:
            self.result = None
            self._enqueue()

    async def run(self) -> None:
        """Probe the worker periodically, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._controller.run())
                while True:
                    # No await between these two: a later change of the reference must not be lost.
                    self._reference_changed.clear()
                    secrets = self._informer()
                    watching = group.create_task(secrets.run())
                    await self._wait_synced(secrets)
                    if not self._reference_changed.is_set():
                        self._secrets = secrets
                        self._enqueue()
                    await self._reference_changed.wait()
                    watching.cancel()
        finally:
            worker, self._worker, self._access = self._worker, None, None
            if worker is not None:
                await worker.close()

    def _enqueue(self) -> None:
        self._controller.enqueue(self._binding.key)

    def _informer(self) -> Informer[SecretWithData]:
        reference = self._binding.spec.secret_ref
        secrets = Informer(
            self._context.computing,
            SECRETS_WITH_DATA,
            namespace=reference.namespace,
            fields=f"metadata.name={reference.name}",
            clock=self._clock,
            metrics=self._context.metrics,
        )
        secrets.on_change(lambda old, new: self._enqueue())
        return secrets

    async def _wait_synced(self, secrets: Informer[SecretWithData]) -> None:
        try:
            await within(self._clock, TIMEOUT_S, secrets.synced)
        except TimeoutError:
            _log.warning("Could not watch kubeconfig Secret of worker in time")

    async def _reconcile(self, key: Key) -> Outcome:
        """Probe the worker, publish a changed result, and requeue."""
        secrets, subject = self._secrets, self._subject()
        if secrets is None:
            return Done()  # the informer of another Secret is about to start
        result = await self._probe(secrets)
        if self._subject() != subject:
            return Done()  # the binding changed meanwhile, and was enqueued
        if result is not None and result != self.result:
            self._publish(result)
        return After(self._pause_s())

    def _subject(self) -> tuple[SecretReference, str]:
        spec = self._binding.spec
        return spec.secret_ref, spec.mount_namespace

    def _publish(self, result: ProbeResult) -> None:
        before, self.result = self.result, result
        listener, key = self._context.listener, self._binding.key
        listener.result_changed(key)
        if result.old and (before is None or before.version != result.version):
            listener.worker_too_old(key, result.version)

    def _pause_s(self) -> float:
        if not self._failures:
            return PERIOD_S
        return FIRST_RETRY_S if self._failures < MAX_FAILURES else UNREACHABLE_PERIOD_S

    async def _probe(self, secrets: Informer[SecretWithData]) -> ProbeResult | None:
        """Run all checks of the worker; None after a first failure, which a second must confirm."""
        try:
            secret = await self._read(secrets)
            access = self._use(secret)
        except (ApiError, ConfigError) as error:
            self._failures = 0
            return ProbeResult(cause=Cause.KUBECONFIG, error=_short(error))
        try:
            version = await self._read_version(access)
            checked = await self._check(access)
        except (ApiError, ConfigError) as error:
            return self._failed(access, error)
        self._failures = 0
        return replace(
            version,
            credential=await self._renew(secret, access, checked),
            cause=checked.cause,
            error=checked.error,
            checked=True,
            missing=checked.missing,
            without=checked.without,
        )

    async def _renew(
        self, secret: SecretWithData, access: Access, checked: ProbeResult
    ) -> CredentialReport:
        """Renew the credential if that is due, and if the worker is the binding's."""
        assert self._worker is not None
        worker = None if checked.cause is Cause.ANOTHER else self._worker
        report = await self._renewal.follow(self._binding, secret, access, worker)
        if report.renewed_now and report.ends is not None:
            self._context.listener.credential_renewed(self._binding.key, report.ends)
        return replace(report, renewed_now=False, error=_cut(report.error))

    def _failed(self, access: Access, error: Exception) -> ProbeResult | None:
        self._failures += 1
        self._checked_at = float("-inf")  # the server that answers next may be another
        before = self.result
        if self._failures < MAX_FAILURES and before is not None and before.answers:
            return None
        refused = isinstance(error, Unauthorized)
        cause = Cause.CREDENTIAL if refused else Cause.UNREACHABLE
        if before is not None and before.cause is cause and before.server == access.server:
            return before  # the same cause with another text
        described = _short(error)
        if before is None or before.answers:
            _log.warning("Lost connection to worker", server=access.server, error=described)
        return ProbeResult(cause=cause, error=described, server=access.server)

    async def _read(self, secrets: Informer[SecretWithData]) -> SecretWithData:
        reference = self._binding.spec.secret_ref
        key = Key(reference.namespace, reference.name)
        if not secrets.has_synced:  # without permission to watch, the error of a read is reported
            return await self._context.computing.get(SECRETS_WITH_DATA, key.name, key.namespace)
        secret = secrets.get(key)
        if secret is None:
            raise NotFound(f"Secret {key} does not exist")
        return secret

    def _use(self, secret: SecretWithData) -> Access:
        """Connect to the worker with the kubeconfig of the Secret.

        :raises ConfigError: the Secret holds no usable kubeconfig, or is that of another binding.
        """
        label = self._context.domain.cluster_binding
        if secret.labels.get(label, own := label_value(self._binding.name)) != own:
            message = f"the label {label} names another binding"
            raise ConfigError(message, source=f"Secret {secret.key}", value=secret.labels[label])
        access = SecretAccess(secret).current()
        if self._access is None or self._worker is None:
            self._access = SecretAccess(secret)
            self._worker = Client(
                _StatusOnly(self._context.connect(self._access)),
                cluster="worker",
                clock=self._clock,
                retry=RetryPolicy(attempts=1),
                timeout_s=TIMEOUT_S,
            )
        elif access != self._access.current():
            self._access.follow(None, secret)
            self._context.listener.kubeconfig_rotated(self._binding.key, access.server)
        return self._access.current()

    async def _read_version(self, access: Access) -> ProbeResult:
        assert self._worker is not None
        request = Request("GET", "/version", timeout_s=TIMEOUT_S)
        response = await self._worker.transport.send(request)
        if response.status == _UNAUTHORIZED or response.status >= _SERVER_ERRORS:
            raise api_error(response.status, response.body, doing="get the worker's version")
        version, old = release_in(response.body)
        return ProbeResult(server=access.server, version=version, old=old)

    async def _check(self, access: Access) -> ProbeResult:
        """Check namespace and permissions, unless the last result for this credential is recent."""
        now, subject = self._clock.monotonic(), (access, self._binding.spec.mount_namespace)
        valid_s = self._context.review_s if self._checked.cause is None else RECHECK_S
        if subject == self._checked_subject and now - self._checked_at < valid_s:
            return self._checked
        self._checked = await self._identify(access) or await self._preflight(subject[1])
        self._checked_subject, self._checked_at = subject, now
        return self._checked

    async def _identify(self, access: Access) -> ProbeResult | None:
        """Return a failure if the worker is not the cluster that the binding's annotation names."""
        assert self._worker is not None
        recorded = self._binding.annotations.get(self._context.domain.worker_cluster_id, "")
        if not recorded:
            return None
        try:
            identity = await identity_of(self._worker)
        except (Forbidden, NotFound):
            return None  # unknown; the syncer decides
        if identity == recorded:
            return None
        message = f"the cluster at {access.server} is {identity}, and the binding is for {recorded}"
        return ProbeResult(cause=Cause.ANOTHER, error=message)

    async def _preflight(self, namespace: str) -> ProbeResult:
        assert self._worker is not None
        checked = await ensure_namespace(self._worker, namespace, self._context.domain)
        if checked.created:
            self._context.listener.namespace_created(self._binding.key, namespace)
        if checked.error:
            return ProbeResult(cause=Cause.NAMESPACE, error=checked.error)
        reviewed = await review(self._worker, namespace, self._context.domain)
        return ProbeResult(
            cause=Cause.RIGHTS if reviewed.missing else None,
            error="; ".join(reviewed.missing),
            missing=reviewed.missing,
            without=reviewed.without,
        )


class _StatusOnly:
    """A transport that drops the body of a refusal that is not a Kubernetes Status.

    The status of a binding shows errors. With the page of a server that is no API server, authors
    of kubeconfigs could read pages that only the manager can reach.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        response = await self._inner.send(request)
        if response.status < _REFUSALS or is_status(response.body):
            return response
        return replace(response, body=b"")

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._inner.stream(request)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()


class WorkerProbes:
    """The probes of all bindings."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._group: asyncio.TaskGroup | None = None
        # By UID of the binding.
        self._probes: dict[str, tuple[WorkerProbe, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Run all probes until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._probes.clear()

    def follow(self, binding: ClusterBinding) -> ProbeResult | None:
        """Pass a binding to its probe, or start one; return the last result of the probe."""
        entry = self._probes.get(binding.uid)
        if entry is None:
            if self._group is None:
                return None
            probe = WorkerProbe(binding, self._context)
            # Not in the context of the calling reconcile: the probe outlives it and its grant.
            task = self._group.create_task(_run_logged(probe, binding.name), context=Context())
            self._probes[binding.uid] = probe, task
        else:
            probe, _ = entry
            probe.follow(binding)
        return probe.result

    def drop(self, uid: str) -> None:
        """Stop the probe of the binding with this UID."""
        entry = self._probes.pop(uid, None)
        if entry is not None:
            entry[1].cancel()


def _short(error: Exception) -> str:
    return _cut(str(error))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_ERROR else f"{text[: _MAX_ERROR - 1]}…"


async def _run_logged(probe: WorkerProbe, binding: str) -> None:
    with bound(binding=binding):
        await probe.run()
