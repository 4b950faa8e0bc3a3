"""RoleBindings by which the accounts of syncers read Secrets, in single namespaces.

The syncer of a binding lists in the binding's status the namespaces in which its pods, or their
volumes, need Secrets. For each, the manager verifies that a pod on a virtual node of the binding is
in that namespace, or that a volume claimed in the namespace of such a pod names a Secret there.
Then the manager binds the ClusterRole for Secrets to the syncer's account, in that namespace only,
and lists the namespace as granted. A RoleBinding exists until the syncer does not request the
namespace any more, or the binding is deleted.

Namespaces that hold Secrets of Kubeocean or of Kubernetes itself are never granted: the system
namespaces, those of syncers and proxiers, and those of all bindings' kubeconfigs and certificates.
RoleBindings of the same name that belong to others are neither changed nor deleted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import msgspec

from kubeocean.api import naming
from kubeocean.api.bindings import (
    SECRET_NAMESPACES_MOST,
    ClusterBinding,
    RefusedNamespace,
    SecretNamespaces,
)
from kubeocean.api.group import APP_COMPONENT, APP_MANAGED_BY, Domain
from kubeocean.api.ownership import is_virtual_node_of
from kubeocean.api.volume_secrets import claim_of, secrets_of
from kubeocean.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from kubeocean.install.object_parts import role_binding
from kubeocean.install.roles import secret_role
from kubeocean.manager.rendering import KINDS, owner_of
from kubeocean.manager.rollout_drift import drift
from kubeocean.runtime.client import ApplyPatch, Client
from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES, PODS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped

__all__ = ["SecretGrants", "kubeconfig_namespaces_of"]

_COMPONENT: Final = "secret-reader"
_OWNER: Final = "owner"
_BOUND: Final = "Bound"  # phase of a volume
_SYNC_TIMEOUT_S: Final = 10.0
_VERIFY_S: Final = 30.0  # from a refusal until the same request is verified again
_ROLE_BINDINGS: Final[Resource[Any]] = KINDS["RoleBinding"]
_VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
RESERVED: Final = "the namespace holds Secrets of Kubernetes or of Kubeocean"
NO_NAME: Final = "this is not the name of a namespace"
UNPROVEN: Final = "no pod on a virtual node of the binding needs Secrets of the namespace"

# Version of a RoleBinding, UID of its binding, and ServiceAccount of the syncer
_Compared: TypeAlias = tuple[str, str, Key]

_log = get_logger(__name__)


def kubeconfig_namespaces_of(bindings: Iterable[ClusterBinding], domain: Domain) -> Iterator[str]:
    """Yield the namespaces of the bindings' kubeconfigs and of their proxiers' certificates."""
    for binding in bindings:
        yield binding.spec.secret_ref.namespace
        yield binding.annotations.get(domain.logs_proxy_secret_namespace, "")


class SecretGrants:
    """Creates, repairs and deletes the RoleBindings of all bindings' syncers for Secrets.

    `reserved` returns the namespaces that are never granted, besides the system namespaces.
    """

    def __init__(
        self,
        client: Client,
        reserved: Callable[[], Collection[str]],
        *,
        domain: Domain,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._client = client
        self._reserved = reserved
        self._domain = domain
        self._clock = clock
        self._compared: dict[Key, _Compared] = {}  # RoleBindings that are right
        self._unproven: dict[tuple[str, str], float] = {}  # when, by UID of binding and namespace
        self._labels = {APP_MANAGED_BY: domain.manager, APP_COMPONENT: _COMPONENT}
        self._selector = ",".join(f"{key}={value}" for key, value in self._labels.items())
        self.informer: Informer[Any] = Informer(
            client,
            _ROLE_BINDINGS,
            labels=self._selector,
            indexes={_OWNER: _owners},
            keep_raw=True,
            clock=clock,
            metrics=metrics,
        )

    def on_change(self, handler: Callable[[Key], None]) -> None:
        """Call `handler` with the key of a binding after one of its RoleBindings changed."""

        def changed(old: Object | None, new: Object | None) -> None:
            owners = (owner for obj in (old, new) if obj for owner in _owner_references(obj))
            for name in {name for name, _ in owners}:
                handler(Key("", name))

        self.informer.on_change(changed)

    async def synced(self) -> None:
        """Return once the RoleBindings were listed, or after a time-out."""
        try:
            await within(self._clock, _SYNC_TIMEOUT_S, self.informer.synced)
        except TimeoutError:
            _log.warning("Could not list RoleBindings of syncers in time")

    async def ensure(self, binding: ClusterBinding, account: Key | None) -> SecretNamespaces:
        """Create, repair and delete RoleBindings; return the namespaces that are granted.

        `account` is the syncer's own ServiceAccount; None if the syncer has a shared account.

        :raises ApiError: a request failed; retry.
        """
        before = binding.status.secret_namespaces
        requested = sorted(set(before.requested or ()))[:SECRET_NAMESPACES_MOST] if account else []
        if not self.informer.has_synced:
            return before  # not read is not absent
        name = _name(binding, self._domain)
        proof = _Proof(self._client, binding, self._domain)
        granted: list[str] = []
        refused: list[RefusedNamespace] = []
        for namespace in requested:
            assert account is not None
            if reason := await self._grant(binding, account, Key(namespace, name), proof):
                refused.append(RefusedNamespace(namespace, reason))
            else:
                granted.append(namespace)
        for stored in list(self.informer.by(_OWNER, binding.uid)):
            if stored.namespace not in granted and not stored.deleting:
                await self._delete(stored)
        self._forget(binding.uid, {each.namespace for each in refused})
        return msgspec.structs.replace(
            before, granted=tuple(granted) or None, refused=tuple(refused) or None
        )

    async def remove(self, binding: ClusterBinding) -> list[str]:
        """Delete all RoleBindings of a binding; return titles of those that still exist.

        :raises ApiError: a request failed; retry.
        """
        try:
            listing = await self._client.list(_ROLE_BINDINGS, labels=self._selector)
        except Forbidden as error:
            _log.warning("Could not list RoleBindings of deleted binding", error=str(error))
            return []  # the manager has not created any
        owned = [each for each in listing.items if binding.uid in _owners(each)]
        for stored in owned:
            if not stored.deleting:
                await self._delete(stored)
        return [f"{_ROLE_BINDINGS.kind} {each.key}" for each in owned if each.deleting]

    def _body(self, binding: ClusterBinding, account: Key, key: Key) -> Json:
        subject = {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
        body = role_binding(
            key.name,
            key.namespace,
            role=secret_role(self._domain),
            subject=subject,
            labels=self._labels,
        )
        body["roleRef"]["kind"] = "ClusterRole"
        body["metadata"]["ownerReferences"] = [owner_of(binding)]
        return body

    async def _grant(self, binding: ClusterBinding, account: Key, key: Key, proof: _Proof) -> str:
        """Create or repair a RoleBinding; return why that was refused, "" if it exists."""
        if not naming.is_namespace(key.namespace):
            return NO_NAME
        if key.namespace in self._domain.system_namespaces or key.namespace in self._reserved():
            return RESERVED
        if not await self.informer.caught_up(key):
            raise Conflict(f"the cache does not show RoleBinding {key} yet")
        stored = self.informer.get(key)
        if stored is not None and self._compared.get(key) == _compared(stored, binding, account):
            return ""
        body = self._body(binding, account, key)
        try:
            if stored is None:
                if not await self._is_proven(binding, key.namespace, proof):
                    return UNPROVEN
                return await self._create(binding, body, key)
            if binding.uid not in _owners(stored):
                return f"RoleBinding {key} belongs to another owner"
            if stored.deleting:
                return f"RoleBinding {key} is being deleted"
            if reason := await self._repair(body, stored):
                return reason
            self._compared[key] = _compared(stored, binding, account)
            return ""
        except NotFound:
            return "the namespace does not exist"
        except (Forbidden, Invalid) as error:
            return str(error)

    async def _is_proven(self, binding: ClusterBinding, namespace: str, proof: _Proof) -> bool:
        """Whether the syncer needs Secrets of a namespace; a refusal holds for a while.

        Each verification lists pods, and a syncer could request namespaces without end.
        """
        key, now = (binding.uid, namespace), self._clock.monotonic()
        if now < self._unproven.get(key, -math.inf) + _VERIFY_S:
            return False
        proven = await proof.of(namespace)
        if not proven:
            self._unproven[key] = now
        return proven

    def _forget(self, uid: str, refused: Collection[str]) -> None:
        """Drop the memory of requests that a binding has withdrawn, and of deleted RoleBindings."""
        for key in [each for each in self._unproven if each[0] == uid and each[1] not in refused]:
            del self._unproven[key]
        for each in [key for key in self._compared if self.informer.get(key) is None]:
            del self._compared[each]

    async def _create(self, binding: ClusterBinding, body: Json, key: Key) -> str:
        try:
            written = await self._client.create(_ROLE_BINDINGS, body)
        except AlreadyExists:
            # Without our labels, so that the cache does not show it.
            foreign = await self._client.get(_ROLE_BINDINGS, key.name, key.namespace)
            if binding.uid not in _owners(foreign):
                return f"RoleBinding {key} belongs to another owner"
            return await self._apply(body, foreign)
        self.informer.wrote(written)
        _log.info(
            "Granted access to Secrets of namespace", binding=binding.name, namespace=key.namespace
        )
        return ""

    async def _repair(self, body: Json, stored: Object) -> str:
        different = drift(body, stored.content())
        if not different:
            return ""
        if any(path.startswith(".roleRef") for path in different):
            await self._delete(stored)  # a role reference cannot be changed
            return f"RoleBinding {stored.key} is being replaced"
        return await self._apply(body, stored)

    async def _apply(self, body: Json, stored: Object) -> str:
        body = body | {"metadata": body["metadata"] | {"uid": stored.uid}}
        patch = ApplyPatch(body, force=True)
        written = await self._client.patch(_ROLE_BINDINGS, stored.name, patch, stored.namespace)
        self.informer.wrote(written)
        return ""

    async def _delete(self, stored: Object) -> None:
        try:
            await self._client.delete(_ROLE_BINDINGS, stored.name, stored.namespace, uid=stored.uid)
        except (Conflict, NotFound):
            return  # the RoleBinding of that UID is gone
        self.informer.deleted(stored)
        _log.info("Deleted RoleBinding that granted Secrets", role_binding=str(stored.key))


class _Proof:
    """Verifies that pods of a binding, or their volumes, may need Secrets of a namespace."""

    def __init__(self, client: Client, binding: ClusterBinding, domain: Domain) -> None:
        self._client = client
        self._binding = binding
        self._domain = domain
        self._prefix = naming.virtual_node_prefix(binding.spec.cluster_id)
        self._nodes: dict[str, bool] = {}  # whether it is a virtual node of the binding, by name
        self._pods: dict[str, bool] = {}  # whether pods are on such nodes, by namespace
        # Namespaces of claims whose volumes name Secrets, by namespace of the Secrets
        self._claims: dict[str, set[str]] | None = None

    async def of(self, namespace: str) -> bool:
        """Whether a pod of the binding is in the namespace, or has a volume with a Secret there."""
        if await self._has_pod(namespace):
            return True
        if self._claims is None:
            self._claims = await self._claims_by_namespace()
        for claimed_in in sorted(self._claims.get(namespace, ())):
            if await self._has_pod(claimed_in):
                return True
        return False

    async def _has_pod(self, namespace: str) -> bool:
        if namespace not in self._pods:
            self._pods[namespace] = await self._find_pod(namespace)
        return self._pods[namespace]

    async def _find_pod(self, namespace: str) -> bool:
        pages = self._client.pages(PODS, namespace, fields="spec.nodeName!=")
        async with aclosing(pages) as parts:
            async for part in parts:
                names = {pod.spec.node_name for pod in part.items}
                for name in sorted(names):
                    if name.startswith(self._prefix) and await self._is_own(name):
                        return True
        return False

    async def _is_own(self, node: str) -> bool:
        """Whether a node is a virtual node of the binding; prefixes of names prove nothing."""
        if node not in self._nodes:
            listing = await self._client.list(NODES, fields=f"metadata.name={node}")
            self._nodes[node] = any(
                is_virtual_node_of(
                    each,
                    binding=self._binding.name,
                    cluster_id=self._binding.spec.cluster_id,
                    domain=self._domain,
                )
                for each in listing.items
            )
        return self._nodes[node]

    async def _claims_by_namespace(self) -> dict[str, set[str]]:
        """Return the namespaces of claims whose volumes name Secrets, by that of the Secrets.

        A volume whose claim is gone, or does not exist yet, still names it.
        """
        controllers = self._binding.spec.trusts_fully
        found: dict[str, set[str]] = {}
        async with aclosing(self._client.pages(_VOLUMES, keep_raw=True)) as parts:
            async for part in parts:
                for volume in part.items:
                    content = volume.content()
                    if (content.get("status") or {}).get("phase") != _BOUND:
                        continue
                    claimed_in = claim_of(content).namespace
                    for secret in secrets_of(content, controllers=controllers):
                        found.setdefault(secret.namespace, set()).add(claimed_in)
        return found


def _compared(stored: Object, binding: ClusterBinding, account: Key) -> _Compared:
    return stored.resource_version, binding.uid, account


def _name(binding: ClusterBinding, domain: Domain) -> str:
    return f"{naming.syncer_deployment(binding.spec.cluster_id, domain)}-secrets"


def _owner_references(obj: Object) -> list[tuple[str, str]]:
    return [(owner.name, owner.uid) for owner in obj.metadata.owner_references or ()]


def _owners(obj: Object) -> tuple[str, ...]:
    return tuple(uid for _, uid in _owner_references(obj))
