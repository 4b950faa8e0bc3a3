"""Examining: what a doctor looks at, read from all clusters of an installation.

Nothing is changed. What cannot be read is noted, and no check is made of it. A worker that does not
answer holds up nobody else's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.crds import binding_definition, policy_definition
from kubeocean.api.group import (
    DNS_SERVICE,
    NODE_LEASE_NAMESPACE,
    SERVER_SERVICE,
    Domain,
)
from kubeocean.api.ownership import Ids
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.bound.identities import identity_of
from kubeocean.bound.notes import Notes
from kubeocean.bound.sides import find_binding, reach_worker
from kubeocean.doctoring.accounts import missing_rights
from kubeocean.doctoring.facts import Computing, Server, Ward
from kubeocean.errors import ApiError, Forbidden, NotFound
from kubeocean.installation.reviews import granted
from kubeocean.installation.rights import Permission
from kubeocean.installation.roles import READ_METRICS
from kubeocean.manager.preflight import Reviewed, review
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import (
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NAMESPACES,
    NODES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Lease,
)
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from kubeocean.runtime.transport import Request
from kubeocean.syncer.comparison import Finding as Difference
from kubeocean.syncer.inventory import Inventory

__all__ = ["DANGERS", "Examiner"]

_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
_PODS: Final = Resource("", "v1", "pods", "Pod", True, Untyped)
_MARKED: Final = (
    Resource("", "v1", "configmaps", "ConfigMap", True, Untyped),
    SECRETS,
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped),
    Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped),
)
# What no credential of ours needs, and what would hurt most in the wrong hands.
DANGERS: Final = (
    Permission("*", "*", "*"),
    Permission("get", "", "secrets"),
    Permission("list", "", "secrets"),
    Permission("create", "", "secrets"),
    Permission("get", "", "nodes/proxy"),
    Permission("create", "", "nodes/proxy"),
    Permission("create", "", "pods"),
    Permission("delete", "", "pods"),
    Permission("create", "", "pods/exec"),
    Permission("delete", "", "nodes"),
    Permission("create", "", "serviceaccounts/token"),
    Permission("impersonate", "", "users"),
    Permission("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    Permission("escalate", "rbac.authorization.k8s.io", "clusterroles"),
)


@dataclass
class Examiner:
    """Looks at one computing cluster and its workers; `stack` closes the ways to these."""

    computing: Client
    stack: AsyncExitStack
    domain: Domain = field(default=group.DEFAULT)
    clock: Clock = field(default_factory=RealClock)
    pause_s: float = 2.0  # between two looks at what seems to be left over
    notes: Notes = field(default_factory=Notes)

    async def examine(self, only: str = "") -> tuple[Computing, list[Ward]]:
        """All of it, or of the bindings just this one.

        :raises ConfigError: there is no such binding.
        """
        if only:
            await find_binding(self.computing, only, "BINDING")
        above = await self._above(only)
        identity = await self.notes.read("namespace kube-system", identity_of(self.computing), "")
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(self._ward(each, identity)) for each in above.chosen]
        return above, [task.result() for task in made]

    # The computing cluster

    async def _above(self, only: str) -> Computing:
        client, domain = self.computing, self.domain
        managed = f"{domain.managed_by}={domain.product}"
        server = await self._server(client, "computing cluster", binding_definition())
        bindings = await self.notes.read("bindings", client.list(CLUSTER_BINDINGS), None)
        nodes = await self.notes.read("nodes", client.list(NODES, labels=managed), None)
        marked = []
        for resource in _MARKED:
            found = await self.notes.read(
                f"{resource.kind}s", client.list(resource, labels=managed), None
            )
            marked += [(resource.kind, each) for each in (found.items if found else [])]
        services = {
            str(key): await self.notes.read(f"Service {key}", self._service(key), None)
            for key in (SERVER_SERVICE, DNS_SERVICE)
        }
        return Computing(
            now=self.clock.now(),
            only=only,
            domain=domain,
            server=server,
            bindings=tuple(bindings.items) if bindings else (),
            nodes=tuple(nodes.items) if nodes else (),
            heartbeats=await self._leases(NODE_LEASE_NAMESPACE),
            elections=await self._leases(domain.system_namespace),
            deployments=await self.notes.read("Deployments", self._deployments(), None),
            pods=await self.notes.read("pods of our programs", self._pods(), ()),
            accounts=await self.notes.read(
                "rights of our accounts", missing_rights(client, domain), {}
            ),
            services=services,
            marked=tuple(marked),
        )

    async def _leases(self, namespace: str) -> dict[str, Lease] | None:
        listing = self.computing.list(LEASES, namespace)
        found = await self.notes.read(f"leases in {namespace}", listing, None)
        return {each.name: each for each in found.items} if found is not None else None

    async def _deployments(self) -> dict[str, Json] | None:
        listing = await self.computing.list(
            _DEPLOYMENTS, self.domain.system_namespace, keep_raw=True
        )
        return {each.name: each.content() for each in listing.items}

    async def _pods(self) -> tuple[Json, ...]:
        ours = f"{group.APP_PART_OF}={self.domain.product}"
        listing = await self.computing.list(
            _PODS, self.domain.system_namespace, labels=ours, keep_raw=True
        )
        return tuple(each.content() for each in listing.items)

    async def _service(self, key: Key) -> Json | None:
        found = await self.computing.get(SERVICES, key.name, key.namespace, keep_raw=True)
        return found.content()

    # One worker

    async def _ward(self, binding: ClusterBinding, identity: str) -> Ward:
        ids = Ids(binding.name, binding.spec.cluster_id, identity)
        below = await reach_worker(self.computing, binding, self.stack)
        worker, name = below.client, binding.name
        tls = await self.notes.read(f"certificate of {name}'s proxier", self._tls(binding), {})
        if worker is None:
            return Ward(
                binding=binding, ids=ids, access=below.access, problem=below.problem, tls=tls
            )
        mount = binding.spec.mount_namespace or self.domain.worker_namespace
        rights = await self.notes.read(
            f"rights in worker {name}", review(worker, mount, self.domain), Reviewed()
        )
        excess = await self.notes.read(f"rights in worker {name}", granted(worker, DANGERS), [])
        exposed = await self.notes.read(
            f"rights in worker {name}",
            _exposed(worker, below.access, Key(mount, self.domain.metrics)),
            False,
        )
        differences = await self.notes.read(
            f"both sides of {name}", self._differences(worker, ids, mount), ()
        )
        return Ward(
            binding=binding,
            ids=ids,
            access=below.access,
            server=await self._server(worker, f"worker {name}", policy_definition()),
            missing=rights.missing,
            without=rights.without,
            excess=_shown(excess),
            exposed=exposed,
            namespace=await self.notes.read(f"namespace {mount}", _namespace(worker, mount), None),
            policies=await self.notes.read(f"policies of {name}", _policies(worker), None),
            tls=tls,
            differences=differences,
        )

    async def _tls(self, binding: ClusterBinding) -> dict[str, bytes]:
        """The certificate that the proxier serves with; there is none before it has started."""
        domain, said = self.domain, binding.annotations
        name = said.get(domain.logs_proxy_secret_name) or naming.tls_secret(binding.spec.cluster_id)
        namespace = said.get(domain.logs_proxy_secret_namespace) or domain.system_namespace
        secret = await self.computing.get(SECRETS, name, namespace, keep_raw=True)
        data: Json = secret.content().get("data") or {}
        try:
            return {str(secret.key): base64.b64decode(data.get("tls.crt", ""), validate=True)}
        except binascii.Error:
            return {str(secret.key): b"not base64"}

    async def _differences(self, worker: Client, ids: Ids, mount: str) -> tuple[Difference, ...]:
        """What is left over, both times: what is on its way in or out is not there twice."""
        inventory = Inventory(
            self.computing, worker, ids=ids, mount_namespace=mount, domain=self.domain
        )
        look = await inventory.look()
        for kind in sorted(look.skipped):
            self.notes.unread.append(f"{kind}s of {ids.binding}: its credential may not list them")
        first = {each.identity for each in look.findings}
        if not first:
            return ()
        await self.clock.sleep(self.pause_s)
        return tuple(each for each in (await inventory.look()).findings if each.identity in first)

    # Any server

    async def _server(self, client: Client, whose: str, definition: Json) -> Server:
        began = self.clock.now()
        try:
            answer = await client.transport.send(Request("GET", "/version", timeout_s=10.0))
        except ApiError as error:
            self.notes.unread.append(f"version of {whose}: {error}")
            return Server()
        ended = self.clock.now()
        version = await self.notes.read(
            f"version of {whose}", client.request_json("GET", "/version"), {}
        )
        return Server(
            version=version,
            skew=_skew(answer.headers.get("Date", ""), began, ended),
            definitions=await self._definition(client, definition["metadata"]["name"]),
        )

    async def _definition(self, client: Client, name: str) -> dict[str, Json | None]:
        """Ours, as the server has it; credentials of workers may not look, and need not."""
        try:
            found = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name, keep_raw=True)
        except NotFound:
            return {name: None}
        except ApiError:
            return {}
        return {name: found.content()}


def _shown(excess: list[Permission]) -> tuple[str, ...]:
    """Who may do everything need not be told what that is."""
    if DANGERS[0] in excess:
        return ("do everything, as an administrator",)
    return tuple(map(str, excess))


def _skew(date: str, began: datetime, ended: datetime) -> timedelta | None:
    """How far the server is ahead; its date is of the second in which it answered."""
    try:
        told = parsedate_to_datetime(date)
    except ValueError:
        return None
    return told + timedelta(seconds=0.5) - (began + (ended - began) / 2)


async def _namespace(worker: Client, name: str) -> bool | None:
    try:
        await worker.get(NAMESPACES, name)
    except NotFound:
        return False
    return True


async def _exposed(worker: Client, access: Access | None, account: Key) -> bool:
    """Whether kubelets are shown the credential itself, by the rules of the proxier's `Badge`."""
    if access is None or access.certificate is not None or not access.headers():
        return False
    ask = Permission("create", "", "serviceaccounts/token", *account)
    may = await granted(worker, (*READ_METRICS, ask))
    if not set(READ_METRICS) <= set(may):
        return False
    if ask not in may:
        return True
    try:
        await worker.get(SERVICE_ACCOUNTS, account.name, account.namespace)
    except NotFound:
        return True
    except Forbidden:
        return False  # who may ask for tokens of an account by its name will have been given one
    return False


async def _policies(worker: Client) -> tuple[ResourceLeasingPolicy, ...] | None:
    return tuple((await worker.list(RESOURCE_LEASING_POLICIES)).items)
