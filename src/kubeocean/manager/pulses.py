"""Pulses: whether each worker answers, and can be worked with, as long as it is bound.

Each binding has a controller of its own, whose turns are looks at its worker, so that one dead
worker slows nobody. It watches the one Secret that the binding names, and no other; it looks again
when that changes, and otherwise asks the worker for its version now and then. A worker that stops
answering is known within `ASK_EVERY_S` plus twice `PATIENCE_S` and a pause. Rights that suffice are
asked for again every `REVIEW_S`, for who takes them away tells nobody. Nothing is written but,
where it is allowed, a mount namespace that is not there.

A look that breaks in a way that nobody expected is counted, logged and repeated as any turn is;
pulses of others do not notice.

A worker is a stranger: what it says is kept short, and what is too long is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from kubeocean.api.binding import ClusterBinding, SecretReference
from kubeocean.api.group import Domain
from kubeocean.bound.identities import identity_of
from kubeocean.bound.workers import KUBECONFIG_SECRETS, KubeconfigSecret, SecretAccess
from kubeocean.errors import ApiError, ConfigError, Forbidden, NotFound, Unauthorized, api_error
from kubeocean.manager.findings import Cause, Finding, release_in
from kubeocean.manager.preflight import ensure_namespace, review
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import bound, get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.runtime.outcomes import After, Done, Outcome
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport, Request, Transport
from kubeocean.runtime.workqueue import WorkQueue

__all__ = ["REVIEW_S", "Pulse", "Pulses", "Surroundings", "Told", "to_worker"]

ASK_EVERY_S: Final = 10.0
PATIENCE_S: Final = 5.0
ASK_AGAIN_S: Final = 2.0  # after a first failure, which may be a blink
ASK_DEAD_S: Final = 5.0
CHECK_AGAIN_S: Final = 30.0  # rights that are granted send us no event…
REVIEW_S: Final = 300.0  # …nor do those that are taken away
_LARGEST: Final = 4 << 20  # bytes of an answer; no object of a cluster comes near
_LONGEST: Final = 1000  # characters of an error, some of which are the worker's own words
DOUBTS: Final = 2
_NAME: Final = "pulse"
_UNKNOWN_US: Final = 401
_BROKEN: Final = 500

_log = get_logger(__name__)


def to_worker(access: SecretAccess) -> Transport:
    """The way to a worker, which may answer at no more length than is sensible."""
    return HttpTransport(access, largest=_LARGEST)


class Told(Protocol):
    """Who is told of what a pulse sees."""

    def found(self, binding: Key) -> None:
        """There is another finding."""

    def rotated(self, binding: Key, server: str) -> None:
        """The Secret holds another kubeconfig than before."""

    def namespace_created(self, binding: Key, namespace: str) -> None:
        """The mount namespace was not there, and is now."""

    def too_old(self, binding: Key, version: str) -> None:
        """The worker is older than what is known to work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all pulses share; `connect` gives the way to a worker, and rights that suffice are not
    asked for again for `review_s`."""

    computing: Client
    connect: Callable[[SecretAccess], Transport]
    told: Told
    domain: Domain
    review_s: float = REVIEW_S
    clock: Clock = field(default_factory=RealClock)
    metrics: Metrics = field(default_factory=Metrics)


class Pulse:
    """The pulse of one worker; `finding` is none until there was a first look."""

    def __init__(self, binding: ClusterBinding, around: Surroundings) -> None:
        self._binding = binding
        self._around = around
        self._clock = around.clock
        self._access: SecretAccess | None = None
        self._worker: Client | None = None
        self._about: tuple[Access, str] | None = None  # what the last check was about…
        self._checked = Finding()  # …what it found…
        self._checked_at = float("-inf")  # …and when
        self._failures = 0
        self._secrets: Informer[KubeconfigSecret] | None = None
        self._moved = asyncio.Event()
        self.finding: Finding | None = None
        # All of one name: what is counted is counted together. How full a queue of one key is, is
        # of no interest, and would be told of the last one only.
        queue = WorkQueue[Key](_NAME, clock=self._clock)
        self._controller = Controller(
            _NAME, self._turn, queue=queue, clock=self._clock, metrics=around.metrics
        )

    def follow(self, binding: ClusterBinding) -> None:
        """The binding, as it is now."""
        before, self._binding = self._binding.spec, binding
        if binding.spec.secret_ref != before.secret_ref:
            self.finding = self._secrets = None
            self._moved.set()
        elif binding.spec.mount_namespace != before.mount_namespace:
            self.finding = None
            self._look_again()

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._controller.run())
                while True:
                    # No await between these two: a move that comes later must not be forgotten.
                    self._moved.clear()
                    secrets = self._informer()
                    watching = group.create_task(secrets.run())
                    await self._patience(secrets)
                    if not self._moved.is_set():
                        self._secrets = secrets
                        self._look_again()
                    await self._moved.wait()
                    watching.cancel()
        finally:
            worker, self._worker, self._access = self._worker, None, None
            if worker is not None:
                await worker.close()

    def _look_again(self) -> None:
        self._controller.enqueue(self._binding.key)

    def _informer(self) -> Informer[KubeconfigSecret]:
        reference = self._binding.spec.secret_ref
        secrets = Informer(
            self._around.computing,
            KUBECONFIG_SECRETS,
            namespace=reference.namespace,
            fields=f"metadata.name={reference.name}",
            clock=self._clock,
            metrics=self._around.metrics,
        )
        secrets.on_change(lambda old, new: self._look_again())
        return secrets

    async def _patience(self, secrets: Informer[KubeconfigSecret]) -> None:
        try:
            await within(self._clock, PATIENCE_S, secrets.synced)
        except TimeoutError:
            _log.warning("Could not watch Secret of worker yet")

    async def _turn(self, key: Key) -> Outcome:
        """Look, and say when to look again."""
        secrets, about = self._secrets, self._subject()
        if secrets is None:
            return Done()  # that of another is about to be watched
        finding = await self._look(secrets)
        if self._subject() != about:
            return Done()  # it was asked for again, about something else
        if finding is not None and finding != self.finding:
            self._publish(finding)
        return After(self._pause_s())

    def _subject(self) -> tuple[SecretReference, str]:
        spec = self._binding.spec
        return spec.secret_ref, spec.mount_namespace

    def _publish(self, finding: Finding) -> None:
        before, self.finding = self.finding, finding
        told, key = self._around.told, self._binding.key
        told.found(key)
        if finding.old and (before is None or before.version != finding.version):
            told.too_old(key, finding.version)

    def _pause_s(self) -> float:
        if not self._failures:
            return ASK_EVERY_S
        return ASK_AGAIN_S if self._failures < DOUBTS else ASK_DEAD_S

    # One look

    async def _look(self, secrets: Informer[KubeconfigSecret]) -> Finding | None:
        """What there is to see; none, if that has to be seen twice."""
        try:
            access = self._take(await self._read(secrets))
        except (ApiError, ConfigError) as error:
            self._failures = 0
            return Finding(cause=Cause.KUBECONFIG, error=_short(error))
        try:
            found = await self._ask(access)
            checked = await self._check(access)
        except (ApiError, ConfigError) as error:
            return self._failed(access, error)
        self._failures = 0
        return replace(
            found,
            cause=checked.cause,
            error=checked.error,
            checked=True,
            missing=checked.missing,
            without=checked.without,
        )

    def _failed(self, access: Access, error: Exception) -> Finding | None:
        self._failures += 1
        self._checked_at = float("-inf")  # who comes back may be another
        before = self.finding
        if self._failures < DOUBTS and before is not None and before.answers:
            return None
        refused = isinstance(error, Unauthorized)
        cause = Cause.CREDENTIAL if refused else Cause.UNREACHABLE
        if before is not None and before.cause is cause and before.server == access.server:
            return before  # the same in other words is no news
        if before is None or before.answers:
            _log.warning("Lost worker", server=access.server, error=_short(error))
        return Finding(cause=cause, error=_short(error), server=access.server)

    async def _read(self, secrets: Informer[KubeconfigSecret]) -> KubeconfigSecret:
        reference = self._binding.spec.secret_ref
        key = Key(reference.namespace, reference.name)
        if not secrets.has_synced:  # perhaps we may not watch it; then the server says so
            return await self._around.computing.get(KUBECONFIG_SECRETS, key.name, key.namespace)
        secret = secrets.get(key)
        if secret is None:
            raise NotFound(f"there is no Secret {key}")
        return secret

    def _take(self, secret: KubeconfigSecret) -> Access:
        """The way to the worker that the Secret holds now.

        :raises ConfigError: it holds none.
        """
        access = SecretAccess(secret).current()
        if self._access is None or self._worker is None:
            self._access = SecretAccess(secret)
            self._worker = Client(
                self._around.connect(self._access),
                cluster="worker",
                clock=self._clock,
                retry=RetryPolicy(attempts=1),
                timeout_s=PATIENCE_S,
            )
        elif access != self._access.current():
            self._access.follow(None, secret)
            self._around.told.rotated(self._binding.key, access.server)
        return self._access.current()

    async def _ask(self, access: Access) -> Finding:
        assert self._worker is not None
        request = Request("GET", "/version", timeout_s=PATIENCE_S)
        response = await self._worker.transport.send(request)
        if response.status == _UNKNOWN_US or response.status >= _BROKEN:
            raise api_error(response.status, response.body, doing="get the worker's version")
        version, old = release_in(response.body)
        return Finding(server=access.server, version=version, old=old)

    async def _check(self, access: Access) -> Finding:
        """Namespace and rights: for each credential, and again, soon if they do not suffice."""
        now, about = self._clock.monotonic(), (access, self._binding.spec.mount_namespace)
        holds_s = self._around.review_s if self._checked.cause is None else CHECK_AGAIN_S
        if about == self._about and now - self._checked_at < holds_s:
            return self._checked
        self._checked = await self._strange(access) or await self._preflight(about[1])
        self._about, self._checked_at = about, now
        return self._checked

    async def _strange(self, access: Access) -> Finding | None:
        """What is wrong with a worker that is another one than the syncer once met."""
        assert self._worker is not None
        right = self._binding.annotations.get(self._around.domain.worker_cluster_id, "")
        if not right:
            return None
        try:
            found = await identity_of(self._worker)
        except (Forbidden, NotFound):
            return None  # nobody knows; the syncer decides
        if found == right:
            return None
        said = f"the cluster at {access.server} is {found}, and the binding is for {right}"
        return Finding(cause=Cause.ANOTHER, error=said)

    async def _preflight(self, namespace: str) -> Finding:
        assert self._worker is not None
        place = await ensure_namespace(self._worker, namespace, self._around.domain)
        if place.created:
            self._around.told.namespace_created(self._binding.key, namespace)
        if place.error:
            return Finding(cause=Cause.NAMESPACE, error=place.error)
        found = await review(self._worker, namespace, self._around.domain)
        cause = Cause.RIGHTS if found.missing else None
        error = "; ".join(found.missing)
        return Finding(cause=cause, error=error, missing=found.missing, without=found.without)


class Pulses:
    """The pulses of all bindings."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._group: asyncio.TaskGroup | None = None
        self._pulses: dict[str, tuple[Pulse, asyncio.Task[None]]] = {}  # by the binding's UID

    async def run(self) -> None:
        """Hold all tasks, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._pulses.clear()

    def follow(self, binding: ClusterBinding) -> Finding | None:
        """What is known of the worker of a binding, which is looked after from now on."""
        there = self._pulses.get(binding.uid)
        if there is None:
            if self._group is None:
                return None
            pulse = Pulse(binding, self._around)
            # Not in the context of the turn that asks: the pulse outlives that, and its grant.
            work = _named(pulse, binding.name)
            task = self._group.create_task(work, context=Context())
            self._pulses[binding.uid] = pulse, task
        else:
            pulse, _ = there
            pulse.follow(binding)
        return pulse.finding

    def drop(self, uid: str) -> None:
        """Look no longer after the worker of this binding."""
        there = self._pulses.pop(uid, None)
        if there is not None:
            there[1].cancel()


def _short(error: Exception) -> str:
    said = str(error)
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"


async def _named(pulse: Pulse, binding: str) -> None:
    with bound(binding=binding):
        await pulse.run()
