"""Tokens: each pod in the worker has a token of its virtual service account, and keeps a good one.

The key is the Secret that a token stands in. It is made when the physical pod is there, which owns
it; one request for the token and one for the Secret. Timers renew it: what fails is tried again,
and the pod keeps the old token meanwhile. After a restart the Secrets say when each is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kubeocean.api import group
from kubeocean.api.ownership import Claim, claim_pod, ownership
from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import SECRETS, SERVICE_ACCOUNTS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Untyped
from kubeocean.runtime.outcomes import After, Done, Outcome, Stuck
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.forge import tokens as forge
from kubeocean.syncer.forge.references import References, TokenSource, references, token_secret
from kubeocean.syncer.forge.tokens import Bearer, Token
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod, virtual_key
from kubeocean.syncer.world import World

__all__ = ["Tokens"]

WORKERS: Final = 8
_DEFAULT_ACCOUNT: Final = "default"
_REFUSALS: Final = (AlreadyExists, BadRequest, Forbidden, Invalid, NotFound, RequestTooLarge)

_log = get_logger(__name__)


class Tokens:
    """The token Secrets of one binding."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._handlers: list[Callable[[Key], None]] = []
        self._refused: dict[Key, ApiError] = {}  # by Secret: why it has no new token
        self.secrets = self._secrets()
        self.controller: Controller[Key] = Controller(
            f"token-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.parts: tuple[Runnable, ...] = (self.secrets, self.controller)
        self.secrets.on_change(self._secret_changed)
        world.reach.on_change(self._reached)

    def _secrets(self) -> Informer[Untyped]:
        """What is secret in them is not kept."""
        world, domain = self.world, self.world.domain
        ours = ownership(world.ids, domain) | {domain.service_account_token: group.TRUE}
        return Informer(
            world.worker,
            SECRETS,
            namespace=world.mount_namespace,
            labels=",".join(f"{key}={value}" for key, value in ours.items()),
            clock=world.clock,
            metrics=world.metrics,
        )

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call with a virtual pod whose Secret was lost, or whose token is not renewed."""
        self._handlers.append(handler)

    def names(self, pod: VirtualPod, refs: References) -> dict[tuple[str, int], str]:
        """What the Secrets of a pod's tokens are called."""
        return {
            (source.volume, source.index): self._name(source, pod).name for source in refs.tokens
        }

    async def attach(self, pod: VirtualPod, ppod: PhysicalPod, refs: References) -> None:
        """Every token of the pod is in a Secret that its physical pod owns.

        :raises ApiError: one of them could not be had, or not renewed; the others may be there.
        """
        if not refs.tokens:
            return
        await self.secrets.synced()
        for source in refs.tokens:
            key = self._name(source, pod)
            secret = self.secrets.get(key)
            if secret is None and not await self.secrets.caught_up(key):
                continue  # we have written it, and the cache will show it
            secret = secret or self.secrets.get(key)
            if secret is not None and forge.is_held_by(secret, ppod.uid):
                continue
            bearer = self._bearer(pod, key, owner=ppod.name, owner_uid=ppod.uid)
            await self._write(bearer, await self._request(source, bearer), secret)
        for source in refs.tokens if self._refused else ():
            if (refused := self._refused.get(self._name(source, pod))) is not None:
                raise refused.with_traceback(None)

    # Renewal

    def _secret_changed(self, old: Untyped | None, new: Untyped | None) -> None:
        if new is not None:
            self.controller.enqueue(new.key)
        elif old is not None:
            self._refused.pop(old.key, None)
            vpod = self._vpod_of(old)
            if vpod is not None:
                self._tell(vpod.key)

    def _vpod_of(self, secret: Untyped) -> VirtualPod | None:
        """The virtual pod of a token: it says so, or its owner does, if it was stripped."""
        world = self.world
        pod, uid = forge.pod_of(secret, world.domain)
        for owner in secret.metadata.owner_references or () if not uid else ():
            ppod = world.ppods.get(Key(secret.namespace, owner.name))
            if ppod is not None and ppod.uid == owner.uid:
                uid = ppod.annotations.get(world.domain.virtual_pod_uid, "")
                pod = virtual_key(ppod, world.domain)
        vpod = world.vpods.get(pod)
        return vpod if vpod is not None and vpod.uid == uid else None

    def _tell(self, pod: Key) -> None:
        for handler in self._handlers:
            handler(pod)

    def _reached(self, answers: bool) -> None:
        if answers:
            for secret in self.secrets.items():
                self.controller.enqueue(secret.key)

    async def _caught_up(self, key: Key) -> bool:
        known = self.secrets.has_synced and self.world.vpods.has_synced
        return known and await self.secrets.caught_up(key)

    async def reconcile(self, key: Key) -> Outcome:
        world = self.world
        secret = self.secrets.get(key)
        if secret is None or secret.deleting or not world.reach.answers:
            return Done()
        vpod = self._vpod_of(secret)
        if vpod is None or vpod.finished:
            return Done()  # it goes with its physical pod
        due = forge.due_of(secret, world.domain)
        wait_s = (due - world.clock.now()).total_seconds() if due else 0.0
        if wait_s > 0:
            return After(wait_s)
        source = self._source(vpod, key)
        owner = next(iter(secret.metadata.owner_references or ()), None)
        if source is None or owner is None:
            return Done()
        bearer = self._bearer(vpod, key, owner=owner.name, owner_uid=owner.uid)
        try:
            await self._write(bearer, await self._request(source, bearer), secret)
        except _REFUSALS as error:
            return self._refuse(vpod, key, error)
        if self._refused.pop(key, None) is not None:
            self._tell(vpod.key)
        return Done()  # what we wrote says when the next one is due

    def _refuse(self, vpod: VirtualPod, secret: Key, error: ApiError) -> Outcome:
        """The old token is good for a while yet; people have to know that there is no new one."""
        known = self._refused.get(secret)
        self._refused[secret] = error
        if known is None or str(known) != str(error):
            self._tell(vpod.key)
        return Stuck(error.reason, str(error))

    # Reading and writing

    async def _request(self, source: TokenSource, bearer: Bearer) -> Token:
        body = forge.request(source, pod=bearer.pod.name, uid=bearer.pod_uid)
        answer = await self.world.computing.post(
            SERVICE_ACCOUNTS, bearer.account, "token", body, bearer.pod.namespace
        )
        return forge.read(answer, secret=bearer.secret.name)

    async def _write(self, bearer: Bearer, token: Token, secret: Untyped | None) -> None:
        worker, key = self.world.worker, bearer.secret
        if secret is None:
            try:
                self.secrets.wrote(await worker.create(SECRETS, forge.forge(bearer, token)))
            except AlreadyExists:
                secret = await self._found(bearer)
            else:
                _log.debug("Created token", pod=bearer.pod, account=bearer.account)
                return
        patch = MergePatch(forge.changes(secret, bearer, token))
        self.secrets.wrote(await worker.patch(SECRETS, key.name, patch, key.namespace))
        _log.info("Renewed token", pod=bearer.pod, account=bearer.account)

    async def _found(self, bearer: Bearer) -> Untyped:
        """The Secret of that name, which the cache does not show.

        :raises Conflict: it went in between.
        :raises AlreadyExists: it is somebody else's.
        """
        key = bearer.secret
        try:
            secret = await self.world.worker.get(SECRETS, key.name, key.namespace)
        except NotFound as error:
            raise Conflict(str(error)) from error
        claim = claim_pod(
            secret,
            virtual=bearer.pod,
            uid=bearer.pod_uid,
            ids=bearer.ids,
            domain=bearer.domain,
        )
        # Whoever stripped it of all that we wrote left it to its owner, which is our pod.
        if claim is Claim.FOREIGN and not forge.is_held_by(secret, bearer.owner_uid):
            message = f"could not create the token of pod {bearer.pod}: {key} is somebody else's"
            raise AlreadyExists(message)
        return secret

    def _bearer(self, pod: VirtualPod, secret: Key, *, owner: str, owner_uid: str) -> Bearer:
        account = (pod.content().get("spec") or {}).get("serviceAccountName")
        return Bearer(
            pod=pod.key,
            pod_uid=pod.uid,
            account=account or _DEFAULT_ACCOUNT,
            secret=secret,
            owner=owner,
            owner_uid=owner_uid,
            ids=self.world.ids,
            domain=self.world.domain,
        )

    def _name(self, source: TokenSource, pod: VirtualPod) -> Key:
        name = token_secret(source, pod.name, pod.namespace, uid=pod.uid)
        return Key(self.world.mount_namespace, name)

    def _source(self, pod: VirtualPod, secret: Key) -> TokenSource | None:
        sources = references(pod.content()).tokens
        return next((each for each in sources if self._name(each, pod) == secret), None)
