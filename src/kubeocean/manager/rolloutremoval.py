"""Removal: what was rolled out for a binding, taken away in order.

First the syncers, then the proxiers, then how they were reached and whatever else they had; once
nothing runs, the certificate and the requests for it. Everything is read fresh, is provably of this
binding, and goes by its UID. What belongs to somebody else stays.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from kubeocean.api import group, naming
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.errors import Conflict, Forbidden, NotFound
from kubeocean.manager.rendering import KINDS, AnyResource, Component
from kubeocean.manager.rolloutclaims import binding_of, claim
from kubeocean.manager.rolloutviews import DEPLOYMENTS
from kubeocean.manager.rolloutwatching import Place, Watched
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Object, Resource, Untyped

__all__ = ["Removal"]

_SIGNING_REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    Untyped,
)
_SERVICES: Final = KINDS["Service"]
_Found: TypeAlias = list[tuple[AnyResource, Object]]

_log = get_logger(__name__)


class Removal:
    """Takes away what bindings had."""

    def __init__(self, client: Client, watched: Watched, domain: Domain) -> None:
        self._client = client
        self._watched = watched
        self._domain = domain

    async def remove(self, binding: ClusterBinding) -> list[str]:
        """Delete what is the binding's; names of what is still there.

        :raises ApiError: the server could not be asked.
        """
        owned = sorted(await self._owned(binding), key=lambda each: self._order(*each))
        if still := await self._delete_all(owned):
            return still  # who runs could make a certificate again
        return await self._delete_all(await self._certificates(binding))

    async def _delete_all(self, found: _Found) -> list[str]:
        return [title for each in found if (title := await self._delete(*each))]

    def _order(self, resource: AnyResource, there: Object) -> tuple[int, bool, str]:
        """Syncers, proxiers, Services, the rest."""
        kinds = (DEPLOYMENTS.kind, _SERVICES.kind)
        rank = kinds.index(resource.kind) if resource.kind in kinds else len(kinds)
        syncs = there.labels.get(group.APP_COMPONENT) == Component.SYNCER
        return rank, not syncs, there.name

    async def _owned(self, binding: ClusterBinding) -> _Found:
        derived, owned = self._derived(binding), []
        for resource, namespace in self._places():
            found = await self._listed(resource, namespace)
            for name in derived.get(resource.kind, ()):
                key = Key(namespace, name)
                if key not in found and (there := await self._read(resource, key)) is not None:
                    found[key] = there
            for there in found.values():
                claimed = claim(there, binding, self._domain)
                # Labels alone may say anything; with one of our names they are believed.
                proven = binding_of(there) is not None
                if claimed.ours and (proven or there.name in derived.get(resource.kind, ())):
                    owned.append((resource, there))
        return owned

    def _derived(self, binding: ClusterBinding) -> dict[str, tuple[str, ...]]:
        """The names that the earlier implementation gave too."""
        cluster_id, domain = binding.spec.cluster_id, self._domain
        return {
            DEPLOYMENTS.kind: (
                naming.syncer_deployment(cluster_id, domain),
                naming.proxier_deployment(cluster_id, domain),
            ),
            _SERVICES.kind: (naming.proxier_service(cluster_id, domain),),
        }

    def _places(self) -> tuple[Place, ...]:
        """Wherever templates ever spoke of, and where everything is if they never did."""
        usual = self._domain.system_namespace
        return tuple(
            dict.fromkeys((*self._watched.places, (DEPLOYMENTS, usual), (_SERVICES, usual)))
        )

    async def _listed(self, resource: AnyResource, namespace: str) -> dict[Key, Object]:
        try:
            listing = await self._client.list(resource, namespace, labels=self._watched.selector)
        except Forbidden as error:
            # Who may not look there has made nothing there either.
            _log.warning("Could not look for objects", namespace=namespace, error=str(error))
            return {}
        return {each.key: each for each in listing.items}

    async def _read(self, resource: AnyResource, key: Key) -> Object | None:
        try:
            return await self._watched.read_fresh(resource, key)
        except Forbidden:
            return None

    async def _certificates(self, binding: ClusterBinding) -> _Found:
        return [*await self._secrets(binding), *await self._signing_requests(binding)]

    async def _secrets(self, binding: ClusterBinding) -> _Found:
        """The certificate that proxiers of the earlier implementation made themselves."""
        labels = {
            group.APP_NAME: self._domain.proxier,
            group.APP_INSTANCE: naming.label_value(binding.name),
            group.APP_COMPONENT: group.COMPONENT_TLS,
        }
        found: _Found = []
        for namespace in dict.fromkeys(namespace for _, namespace in self._places()):
            key = Key(namespace, naming.tls_secret(binding.spec.cluster_id))
            secret = await self._read(SECRETS, key)
            if secret is not None and labels.items() <= secret.labels.items():
                found.append((SECRETS, secret))
        return found

    async def _signing_requests(self, binding: ClusterBinding) -> _Found:
        domain = self._domain
        labels = {
            domain.component: group.COMPONENT_LOGS_PROXY,
            domain.node_name: naming.label_value(binding.name),
        }
        chosen = ",".join(f"{key}={value}" for key, value in labels.items())
        prefix = naming.signing_request_prefix(binding.name, domain)
        try:
            requests = await self._client.list(_SIGNING_REQUESTS, labels=chosen)
        except Forbidden as error:
            _log.warning("Could not look for signing requests", error=str(error))
            return []
        return [
            (_SIGNING_REQUESTS, each) for each in requests.items if each.name.startswith(prefix)
        ]

    async def _delete(self, resource: AnyResource, there: Object) -> str:
        """Its title if it is still there afterwards."""
        title = f"{resource.kind} {there.key}"
        try:
            if not there.deleting:
                await self._client.delete(resource, there.name, there.namespace, uid=there.uid)
                _log.info("Deleted object", object=title, uid=there.uid)
            now = await self._watched.read_fresh(resource, there.key)
        except (Conflict, NotFound):
            return ""  # that very object is gone
        except Forbidden as error:
            if resource is not _SIGNING_REQUESTS:
                raise
            _log.warning("Could not delete signing request", error=str(error))
            return ""  # they expire by themselves
        return title if now is not None and now.uid == there.uid else ""
