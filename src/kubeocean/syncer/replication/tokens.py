"""Gives each physical pod tokens of its virtual service account, and renews them.

A token is requested for the virtual service account, is bound to the virtual pod, and is stored in
a Secret that the physical pod owns. The token is renewed after four fifths of its life or one day,
and a little earlier at random so that not all are renewed at once. The Secret records the time:
after a restart no token that is still good is requested again.

The key is the Secret. Creating one takes two requests, one for the token and one for the Secret.
A renewal that fails is retried, and the pod keeps the old token meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids, Ownership, ownership_labels, pod_ownership
from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import After, Done, Outcome, Stuck
from kubeocean.runtime.kinds import SECRETS, SERVICE_ACCOUNTS, Node
from kubeocean.runtime.objects import Json, Key, Object, Untyped
from kubeocean.runtime.redaction import Secret
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.plan import is_own_node
from kubeocean.syncer.pods.referenced_objects import (
    References,
    TokenSource,
    references,
    token_secret,
)
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod, virtual_key
from kubeocean.syncer.replication.loop import ReplicationLoop
from kubeocean.syncer.replication.on_demand_caches import synced
from kubeocean.syncer.replication.store import CopyStore, owned_by

__all__ = [
    "KEY",
    "Token",
    "TokenContext",
    "Tokens",
    "due_of",
    "forge_secret",
    "is_owned_by",
    "pod_of",
    "read_token",
    "secret_changes",
    "token_request",
]

KEY: Final = "token"  # of the Secret
WORKERS: Final = 8
_DEFAULT_ACCOUNT: Final = "default"
_SHARE: Final = 0.8  # of the life of a token, after which it is renewed
_LONGEST: Final = timedelta(hours=24)
_JITTER_S: Final = 10.0
_LONGEST_LIFE_S: Final = 86_400  # an admission policy of the installation refuses longer ones
_REFUSALS: Final = (AlreadyExists, BadRequest, Forbidden, Invalid, NotFound, RequestTooLarge)


@dataclass(frozen=True, slots=True)
class Token:
    """A service account token that the computing cluster's API server issued."""

    value: Secret[str]
    expires: datetime
    due: datetime  # when the next token is requested


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenContext:
    """Everything that a token and its Secret in the worker are built from."""

    pod: Key  # the virtual pod
    pod_uid: str
    account: str
    secret: Key
    owner: str  # the physical pod
    owner_uid: str
    ids: Ids
    domain: Domain = field(default=group.DEFAULT)


def token_request(
    source: TokenSource, *, pod: str, uid: str, domain: Domain = group.DEFAULT
) -> Json:
    """Return the TokenRequest; a token without an audience is for the API server.

    An admission policy of the installation compares the node of the pod only for requests with the
    label, and refuses those without it.
    """
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {"labels": {domain.token_request: group.TRUE}},
        "spec": {
            "audiences": [source.audience] if source.audience else [],
            "expirationSeconds": min(source.expiration_s, _LONGEST_LIFE_S),
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid},
        },
    }


def read_token(response: Json, *, secret: str) -> Token:
    """Return the token of a TokenRequest; a server may shorten the life that was requested.

    :raises InternalError: the response has no token; its content is not part of the message.
    """
    spec, status = response.get("spec") or {}, response.get("status") or {}
    value, until = status.get("token"), status.get("expirationTimestamp")
    if not (isinstance(value, str) and value and isinstance(until, str)):
        raise InternalError(
            "could not request a token: the response of the computing cluster contains none"
        )
    expires = datetime.fromisoformat(until).astimezone(UTC)
    life = timedelta(seconds=spec.get("expirationSeconds") or 0)
    due = expires - life + min(life * _SHARE, _LONGEST) - _jitter(secret)
    return Token(Secret(value), expires, due)


def forge_secret(context: TokenContext, token: Token) -> Json:
    """Return the manifest of a new Secret with a token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": context.secret.name,
            "namespace": context.secret.namespace,
            "labels": _labels(context),
            "annotations": _annotations(context, token),
            "ownerReferences": [_owner(context)],
        },
        "type": "Opaque",
        "data": _data(token),
    }


def secret_changes(secret: Object, context: TokenContext, token: Token) -> Json:
    """Return the merge patch that writes a new token into this version of a Secret."""
    metadata: Json = {
        "uid": secret.uid,
        "resourceVersion": secret.resource_version,
        "labels": _labels(context),
        "annotations": _annotations(context, token),
    }
    if not is_owned_by(secret, context.owner_uid):
        metadata["ownerReferences"] = [_owner(context)]
    return {"metadata": metadata, "data": _data(token)}


def due_of(secret: Object, domain: Domain) -> datetime | None:
    """Return when the token in a Secret is to be renewed; None if that is not recorded."""
    try:
        due = datetime.fromisoformat(secret.annotations.get(domain.token_due, ""))
    except ValueError:
        return None
    return due if due.tzinfo is not None else None


def pod_of(secret: Object, domain: Domain) -> tuple[Key, str]:
    """Return the virtual pod that a Secret names, and its UID."""
    annotations = secret.annotations
    namespace = annotations.get(domain.virtual_pod_namespace, "")
    pod = Key(namespace, annotations.get(domain.virtual_pod_name, ""))
    return pod, annotations.get(domain.virtual_pod_uid, "")


def is_owned_by(secret: Object, uid: str) -> bool:
    """Whether a Secret has an owner reference with this UID, which is that of a physical pod."""
    return any(owner.uid == uid for owner in secret.metadata.owner_references or ())


def _labels(context: TokenContext) -> dict[str, str]:
    domain = context.domain
    return ownership_labels(context.ids, domain) | {domain.service_account_token: group.TRUE}


def _annotations(context: TokenContext, token: Token) -> dict[str, str]:
    domain = context.domain
    return {
        domain.virtual_pod_namespace: context.pod.namespace,
        domain.virtual_pod_name: context.pod.name,
        domain.virtual_pod_uid: context.pod_uid,
        domain.service_account: context.account,
        domain.token_expires: _text(token.expires),
        domain.token_due: _text(token.due),
    }


def _owner(context: TokenContext) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "name": context.owner, "uid": context.owner_uid}


def _data(token: Token) -> Json:
    return {KEY: base64.b64encode(token.value.reveal().encode()).decode()}


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _jitter(secret: str) -> timedelta:
    """Return a duration that differs between Secrets and is always the same for one Secret."""
    share = int.from_bytes(hashlib.sha256(secret.encode()).digest()[:4]) / 2**32
    return timedelta(seconds=share * _JITTER_S)


class Tokens(ReplicationLoop[Untyped, Untyped]):
    """The Secrets with service account tokens of one binding's physical pods.

    Such a Secret has no source, and is its own key.
    """

    def __init__(self, clusters: Clusters) -> None:
        # Without bytes: the cache keeps no secret data.
        store = CopyStore(
            clusters,
            clusters.worker,
            SECRETS,
            lambda secret: secret.key,
            labels=f"{owned_by(clusters)},{clusters.domain.service_account_token}={group.TRUE}",
            namespace=clusters.mount_namespace,
            is_logged=False,
        )
        super().__init__(clusters, "token", store.cache, store, workers=WORKERS)
        self._handlers: list[Callable[[Key], None]] = []
        self._refused: dict[Key, ApiError] = {}  # by Secret: why its token was not renewed
        self.secrets = store.cache
        self.parts: tuple[Runnable, ...] = (self.secrets, self.controller)
        self.secrets.on_change(self._secret_changed)
        clusters.vnodes.on_change(self._vnode_changed)

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call the handler with each virtual pod that lost a token Secret, or a token's renewal."""
        self._handlers.append(handler)

    def names(self, pod: VirtualPod, refs: References) -> dict[tuple[str, int], str]:
        """Return the names of the Secrets of a pod's tokens."""
        return {
            (source.volume, source.index): self._secret(source, pod).name for source in refs.tokens
        }

    async def attach(self, pod: VirtualPod, ppod: PhysicalPod, refs: References) -> None:
        """Create the Secrets of all tokens of a pod, owned by its physical pod.

        :raises ApiError: a token could not be issued or renewed; others may have been.
        """
        if not refs.tokens:
            return
        if not await synced(self.clusters.clock, [self.secrets]):
            raise InternalError(
                "could not create token Secrets: the cache of Secrets of the worker has not synced"
            )
        if not self.clusters.is_on_own_node(pod):
            message = f"pod {pod.key} has no token: node {pod.spec.node_name} is not of the binding"
            raise NotFound(message)
        for source in refs.tokens:
            key = self._secret(source, pod)
            secret = self.secrets.get(key)
            if secret is None and not await self._store.caught_up(key):
                continue  # created a moment ago, as the cache will show
            secret = secret or self.secrets.get(key)
            if secret is not None and is_owned_by(secret, ppod.uid):
                continue
            context = self._context(pod, key, owner=ppod.name, owner_uid=ppod.uid)
            await self._issue(source, context, secret)
        for source in refs.tokens if self._refused else ():
            if (refused := self._refused.get(self._secret(source, pod))) is not None:
                raise refused.with_traceback(None)

    # The loop

    def keys(self) -> Iterator[Key]:
        return (secret.key for secret in self.secrets.items())

    def event_target(self, key: Key) -> None:
        """Return None: the pod controller reports tokens that cannot be renewed."""

    def _secret_changed(self, old: Untyped | None, new: Untyped | None) -> None:
        if new is not None:
            self.controller.queue.add_after(new.key, self._due_in_s(new))
        elif old is not None:
            self._refused.pop(old.key, None)
            vpod = self._vpod_of(old)
            if vpod is not None:
                self._notify(vpod.key)

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        """Enqueue the tokens of pods on a node that is new to this binding: they may be overdue."""
        clusters = self.clusters
        was_own, is_own = (is_own_node(each, clusters.ids, clusters.domain) for each in (old, new))
        if new is None or was_own or not is_own:
            return
        for pod in clusters.vpods.by("node", new.name):
            self.enqueue(self._secret(each, pod) for each in references(pod.content()).tokens)

    async def caught_up(self, key: Key) -> bool:
        caches = (self.secrets, self.clusters.vpods, self.clusters.vnodes)
        return all(cache.has_synced for cache in caches) and await self._store.caught_up(key)

    async def reconcile(self, key: Key) -> Outcome:
        clusters = self.clusters
        secret = self.secrets.get(key)
        if secret is None or secret.deleting or not clusters.worker_health.answers:
            return Done()
        vpod = self._vpod_of(secret)
        if vpod is None or vpod.finished:
            return Done()  # the Secret is deleted with its physical pod
        if not clusters.is_on_own_node(vpod):
            return Done()  # of another binding, or the node is gone: its return enqueues the key
        if (wait_s := self._due_in_s(secret)) > 0:
            return After(wait_s)
        sources = references(vpod.content()).tokens
        source = next((each for each in sources if self._secret(each, vpod) == key), None)
        owner = next(iter(secret.metadata.owner_references or ()), None)
        if source is None or owner is None:
            return Done()
        context = self._context(vpod, key, owner=owner.name, owner_uid=owner.uid)
        try:
            await self._issue(source, context, secret)
        except _REFUSALS as error:
            return self._refuse(vpod, key, error)
        if self._refused.pop(key, None) is not None:
            self._notify(vpod.key)
        return Done()  # the change of the Secret enqueues the key with the next time

    def _due_in_s(self, secret: Untyped) -> float:
        """Return the seconds until the token in a Secret is to be renewed; 0 if that is unknown."""
        due = due_of(secret, self.clusters.domain)
        return (due - self.clusters.clock.now()).total_seconds() if due else 0.0

    def _refuse(self, vpod: VirtualPod, secret: Key, error: ApiError) -> Outcome:
        """Record why a token was not renewed, and notify its pod; the old token stays valid."""
        known = self._refused.get(secret)
        self._refused[secret] = error
        if known is None or str(known) != str(error):
            self._notify(vpod.key)
        return Stuck(error.reason, str(error))

    async def _issue(
        self, source: TokenSource, context: TokenContext, secret: Untyped | None
    ) -> None:
        """Request a token and store it in its Secret; create the Secret if it does not exist."""
        body = token_request(
            source, pod=context.pod.name, uid=context.pod_uid, domain=context.domain
        )
        response = await self.clusters.computing.post(
            SERVICE_ACCOUNTS, context.account, "token", body, context.pod.namespace
        )
        token = read_token(response, secret=context.secret.name)
        if secret is None:
            created_body = forge_secret(context, token)
            secret, created = await self._store.create_or_get(context.secret, created_body)
            if created:
                return
            self._check_adoptable(secret, context)
        patch = MergePatch(secret_changes(secret, context, token))
        await self._store.patch(context.secret, secret, patch)

    def _check_adoptable(self, secret: Untyped, context: TokenContext) -> None:
        """Check that a Secret that the cache does not show belongs to the pod.

        :raises AlreadyExists: the Secret is foreign.
        """
        ownership = pod_ownership(
            secret,
            virtual=context.pod,
            uid=context.pod_uid,
            ids=context.ids,
            domain=context.domain,
        )
        # A Secret that lost all labels and annotations still has its owner.
        if ownership is Ownership.FOREIGN and not is_owned_by(secret, context.owner_uid):
            message = f"Secret {context.secret} exists and belongs to another owner"
            raise AlreadyExists(f"could not create the token of pod {context.pod}: {message}")

    def _vpod_of(self, secret: Untyped) -> VirtualPod | None:
        """Return the virtual pod that a Secret names, or that its owner names."""
        clusters = self.clusters
        pod, uid = pod_of(secret, clusters.domain)
        for owner in secret.metadata.owner_references or () if not uid else ():
            ppod = clusters.ppods.get(Key(secret.namespace, owner.name))
            if ppod is not None and ppod.uid == owner.uid:
                uid = ppod.annotations.get(clusters.domain.virtual_pod_uid, "")
                pod = virtual_key(ppod, clusters.domain)
        vpod = clusters.vpods.get(pod)
        return vpod if vpod is not None and vpod.uid == uid else None

    def _notify(self, pod: Key) -> None:
        for handler in self._handlers:
            handler(pod)

    def _context(self, pod: VirtualPod, secret: Key, *, owner: str, owner_uid: str) -> TokenContext:
        return TokenContext(
            pod=pod.key,
            pod_uid=pod.uid,
            account=pod.spec.service_account_name or _DEFAULT_ACCOUNT,
            secret=secret,
            owner=owner,
            owner_uid=owner_uid,
            ids=self.clusters.ids,
            domain=self.clusters.domain,
        )

    def _secret(self, source: TokenSource, pod: VirtualPod) -> Key:
        """Return the key of the Secret of a token."""
        name = token_secret(source, pod.name, pod.namespace, uid=pod.uid)
        return Key(self.clusters.mount_namespace, name)
