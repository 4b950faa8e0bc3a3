"""Deletes the objects that were rolled out for a binding, in order.

First the syncers, then the proxiers, then Services and other objects; once these are gone, the
certificate and its signing requests. Accounts and roles are deleted when the pods have ended. Each
object is read from the API server, must provably belong to this binding, and is deleted by UID.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from kubeocean.api import group, naming
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.group import NODE_LEASE_NAMESPACE, Domain
from kubeocean.errors import Conflict, Forbidden, NotFound
from kubeocean.manager.rendering import ACCOUNT_KINDS, KINDS, AnyResource, RolloutComponent
from kubeocean.manager.rollout_watch import (
    Place,
    RolloutInformers,
    binding_of,
    ownership_of,
    read_fresh,
)
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import DEPLOYMENTS, SECRETS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Object, Resource, Untyped

__all__ = ["RolloutRemoval"]

_SIGNING_REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    Untyped,
)
_SERVICES: Final = KINDS["Service"]
_OWN_KINDS: Final = (
    DEPLOYMENTS,
    _SERVICES,
    KINDS["PodDisruptionBudget"],
    KINDS["HorizontalPodAutoscaler"],
)
_ROLE_BINDINGS: Final = ("ClusterRoleBinding", "RoleBinding")
_Objects: TypeAlias = list[tuple[AnyResource, Object]]

_log = get_logger(__name__)


class RolloutRemoval:
    """Deletes the objects that were rolled out for bindings.

    `client` is a client of the cluster in which syncers and proxiers run. Certificates are in the
    computing cluster. A binding has accounts of its own only if both are the same cluster.
    """

    def __init__(
        self, client: Client, computing: Client, watched: RolloutInformers, domain: Domain
    ) -> None:
        self._client = client
        self._computing = computing
        self._watched = watched
        self._domain = domain

    async def remove(self, binding: ClusterBinding) -> list[str]:
        """Delete the binding's objects; return titles of those that still exist.

        :raises ApiError: objects could not be read or deleted.
        """
        owned = await self._owned(binding, self._places())
        owned.sort(key=lambda each: self._order(*each))
        if remaining := await self._delete_all(self._client, owned):
            return remaining  # a running proxier could create a certificate again
        return await self._delete_all(self._computing, await self._certificates(binding))

    async def remove_accounts(self, binding: ClusterBinding) -> list[str]:
        """Delete the binding's accounts and roles; return titles of those that still exist.

        :raises ApiError: objects could not be read or deleted.
        """
        owned = await self._owned(binding, self._account_places())
        # Bindings first, so that no account keeps a part of its permissions for long.
        owned.sort(key=lambda each: (each[0].kind not in _ROLE_BINDINGS, each[1].name))
        return await self._delete_all(self._client, owned)

    async def _delete_all(self, client: Client, objects: _Objects) -> list[str]:
        return [title for each in objects if (title := await self._delete(client, *each))]

    def _order(self, resource: AnyResource, stored: Object) -> tuple[int, bool, str]:
        """Return the sort key by which objects are deleted: syncers, proxiers, Services, others."""
        kinds = (DEPLOYMENTS.kind, _SERVICES.kind)
        rank = kinds.index(resource.kind) if resource.kind in kinds else len(kinds)
        is_syncer = stored.labels.get(group.APP_COMPONENT) == RolloutComponent.SYNCER
        return rank, not is_syncer, stored.name

    async def _owned(self, binding: ClusterBinding, places: Iterable[Place]) -> _Objects:
        derived, owned = self._derived(binding), []
        for resource, namespace in places:
            objects = await self._listed(resource, namespace)
            for name in derived.get(resource.kind, ()):
                key = Key(namespace, name)
                if (
                    key not in objects
                    and (stored := await self._read(self._client, resource, key)) is not None
                ):
                    objects[key] = stored
            for stored in objects.values():
                ownership = ownership_of(stored, binding, self._domain)
                # Labels prove ownership only together with a name of Kubeocean.
                proven = binding_of(stored, self._domain) is not None
                if ownership.ours and (proven or stored.name in derived.get(resource.kind, ())):
                    owned.append((resource, stored))
        return owned

    def _derived(self, binding: ClusterBinding) -> dict[str, tuple[str, ...]]:
        """Return the names of a binding's Deployments and Service, by kind.

        The earlier implementation used the same names.
        """
        cluster_id, domain = binding.spec.cluster_id, self._domain
        return {
            DEPLOYMENTS.kind: (
                naming.syncer_deployment(cluster_id, domain),
                naming.proxier_deployment(cluster_id, domain),
            ),
            _SERVICES.kind: (naming.proxier_service(cluster_id, domain),),
        }

    def _places(self) -> tuple[Place, ...]:
        """Return the kinds and namespaces with objects to delete, without accounts and roles.

        These are the kinds and namespaces that the manager watches, and those in which Kubeocean's
        own templates create objects.
        """
        watched = [each for each in self._watched.places if each[0].kind not in ACCOUNT_KINDS]
        namespaces = (*(namespace for _, namespace in watched), self._domain.system_namespace)
        own = ((kind, each) for each in namespaces for kind in _OWN_KINDS)
        return tuple(dict.fromkeys((*watched, *own)))

    def _account_places(self) -> tuple[Place, ...]:
        """Return the kinds and namespaces with accounts and roles to delete.

        These are the kinds and namespaces that the manager watches, and those in which Kubeocean's
        own templates create objects.
        """
        domain = self._domain
        watched = [each for each in self._watched.places if each[0].kind in ACCOUNT_KINDS]
        if self._client is not self._computing:
            return tuple(watched)  # Kubeocean's own templates have none in a management cluster
        bound = (NODE_LEASE_NAMESPACE, domain.host_port_namespace, domain.system_namespace)
        own = (
            *((KINDS["RoleBinding"], namespace) for namespace in bound),
            *((KINDS[kind], domain.system_namespace) for kind in ("Role", "ServiceAccount")),
            *((KINDS[kind], "") for kind in ("ClusterRoleBinding", "ClusterRole")),
        )
        return tuple(dict.fromkeys((*watched, *own)))

    async def _listed(self, resource: AnyResource, namespace: str) -> dict[Key, Object]:
        try:
            listing = await self._client.list(resource, namespace, labels=self._watched.selector)
        except Forbidden as error:
            # Without permission to list, the manager has not created anything either.
            _log.warning(
                "Could not list objects of deleted binding", namespace=namespace, error=str(error)
            )
            return {}
        return {each.key: each for each in listing.items}

    async def _read(self, client: Client, resource: AnyResource, key: Key) -> Object | None:
        try:
            return await read_fresh(client, resource, key)
        except Forbidden:
            return None

    async def _certificates(self, binding: ClusterBinding) -> _Objects:
        return [*await self._secrets(binding), *await self._signing_requests(binding)]

    async def _secrets(self, binding: ClusterBinding) -> _Objects:
        """Return the certificate Secrets that proxiers of the earlier implementation created."""
        labels = {
            group.APP_NAME: self._domain.proxier,
            group.APP_INSTANCE: naming.label_value(binding.name),
            group.APP_COMPONENT: group.COMPONENT_TLS,
        }
        secrets: _Objects = []
        for namespace in dict.fromkeys(namespace for _, namespace in self._places()):
            key = Key(namespace, naming.tls_secret(binding.spec.cluster_id))
            secret = await self._read(self._computing, SECRETS, key)
            if secret is not None and labels.items() <= secret.labels.items():
                secrets.append((SECRETS, secret))
        return secrets

    async def _signing_requests(self, binding: ClusterBinding) -> _Objects:
        domain = self._domain
        labels = {
            domain.component: group.COMPONENT_LOGS_PROXY,
            domain.node_name: naming.label_value(binding.name),
        }
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        prefix = naming.signing_request_prefix(binding.name, domain)
        try:
            requests = await self._computing.list(_SIGNING_REQUESTS, labels=selector)
        except Forbidden as error:
            _log.warning("Could not list certificate signing requests", error=str(error))
            return []
        return [
            (_SIGNING_REQUESTS, each) for each in requests.items if each.name.startswith(prefix)
        ]

    async def _delete(self, client: Client, resource: AnyResource, stored: Object) -> str:
        """Delete one object; return its title if it still exists afterwards."""
        title = f"{resource.kind} {stored.key}"
        try:
            if not stored.deleting:
                await client.delete(resource, stored.name, stored.namespace, uid=stored.uid)
                _log.info("Deleted object of deleted binding", object=title, uid=stored.uid)
            current = await read_fresh(client, resource, stored.key)
        except (Conflict, NotFound):
            return ""  # the object of that UID is gone
        except Forbidden as error:
            if resource is not _SIGNING_REQUESTS:
                raise
            _log.warning("Could not delete certificate signing request", error=str(error))
            return ""  # signing requests expire
        return title if current is not None and current.uid == stored.uid else ""
