"""Reads the snapshot that doctor examines, from all clusters of an installation.

Nothing is changed. Bindings that cannot be listed are an error; each other part that cannot be read
is a `NotRead`, and checks that need the part are not made. A worker that does not answer delays no
other one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kubeocean.api import group, naming
from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.crds import binding_definition, policy_definition
from kubeocean.api.group import DNS_SERVICE, NODE_LEASE_NAMESPACE, SERVER_SERVICE
from kubeocean.api.ownership import Ids
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.errors import ConfigError, Forbidden, NotFound
from kubeocean.inspect.doctor.enforcement import unenforced
from kubeocean.inspect.doctor.fleet_reading import read_fleet
from kubeocean.inspect.doctor.left_over import left_over, left_over_policies
from kubeocean.inspect.doctor.permissions import missing_rights
from kubeocean.inspect.reader import SnapshotReader, concurrently
from kubeocean.inspect.snapshot import (
    ADMINISTRATOR,
    NOT_REQUESTED,
    NotRead,
    Snapshot,
    SnapshotPart,
    WorkerSnapshot,
    WorkerState,
    failures,
    known,
    read_object,
    read_part,
)
from kubeocean.inspect.workers import list_policies, read_server
from kubeocean.install.access_reviews import granted
from kubeocean.install.management import OPTION, other_management, recorded_management
from kubeocean.install.permissions import Permission
from kubeocean.install.roles import READ_METRICS
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from kubeocean.runtime.objects import Json, Key, Resource, Untyped
from kubeocean.syncer.cleanup.diff import Difference
from kubeocean.syncer.cleanup.snapshot import ClusterSnapshot
from kubeocean.syncer.replication.kinds.table import REPLICATED_KINDS
from kubeocean.worker_access.client import find_binding
from kubeocean.worker_access.identity import identity_of

__all__ = ["DANGERS", "DoctorReader"]

_PODS: Final = Resource("", "v1", "pods", "Pod", True, Untyped)
# The sources of copies, which have a finalizer for each binding that replicates them.
_MARKED: Final = tuple(
    Resource(each.group, each.version, each.plural, each.kind, each.namespaced, Untyped)
    for each in (kind.sources for kind, _ in REPLICATED_KINDS)
)
# Rights that no credential of ours needs, and that would do most harm if the credential leaked.
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


class DoctorReader(SnapshotReader):
    """Reads everything that the checks of doctor need.

    Objects that seem to be left over are read twice, with `pause_s` seconds between the reads.
    `management` is the cluster in which our programs run, if another than the computing cluster.
    """

    def __init__(
        self,
        computing: Client,
        *,
        management: Client | None = None,
        pause_s: float = 2.0,
        **options: Any,
    ) -> None:
        super().__init__(computing, **options)
        self._management = management
        self._pause_s = pause_s

    async def read(self, only: str = "") -> Snapshot:
        """Return the snapshot of all bindings, or of one.

        :raises ConfigError: there is no binding of that name, or our programs run in another
            management cluster.
        :raises ApiError: the bindings could not be listed.
        """
        if only:
            await find_binding(self.computing, only, "BINDING")
        snapshot = await self._computing(only)
        await self.identity()  # read once, before all workers need it
        workers = await concurrently(snapshot.chosen, partial(self._worker, snapshot=snapshot))
        return replace(
            snapshot,
            workers={each.name: each for each in workers},
            unread=failures(*snapshot.unread, *(part for each in workers for part in each.unread)),
        )

    # The computing cluster

    async def _computing(self, only: str) -> Snapshot:
        client, domain = self.computing, self.domain
        bindings = await self._bindings()
        recorded = await read_part(
            f"namespace {domain.system_namespace}", recorded_management(client, domain)
        )
        programs = await self._programs(known(recorded, ""))
        chosen = [each for each in known(bindings, ()) if only in ("", each.name)]
        async with asyncio.TaskGroup() as tasks:
            server = tasks.create_task(self.server())
            definitions = tasks.create_task(
                _definition(client, "computing cluster", binding_definition())
            )
            nodes = tasks.create_task(self.nodes())
            heartbeats = tasks.create_task(
                self.leases(NODE_LEASE_NAMESPACE, f"leases in {NODE_LEASE_NAMESPACE}")
            )
            elections = tasks.create_task(
                self.leases(domain.system_namespace, f"leases in {domain.system_namespace}")
            )
            if not isinstance(programs, NotRead):
                listed = tasks.create_task(self.deployments(programs))
                pods = tasks.create_task(
                    read_part("pods of Kubeocean's programs", self._pods(programs))
                )
            accounts = tasks.create_task(
                read_part("rights of Kubeocean's accounts", missing_rights(client, domain, chosen))
            )
            services = tasks.create_task(read_part("Services", self._services()))
            marked = tasks.create_task(self._marked())
            fleet = None
            if not only:
                fleet = tasks.create_task(read_fleet(client, self.clock, self._pause_s))
        first = Snapshot(
            at=await self.now(),
            only=only,
            domain=domain,
            server=replace(server.result(), definitions=definitions.result()),
            bindings=bindings,
            nodes=nodes.result(),
            heartbeats=heartbeats.result(),
            elections=elections.result(),
            management=known(recorded, ""),
            deployments=programs if isinstance(programs, NotRead) else listed.result(),
            program_pods=programs if isinstance(programs, NotRead) else pods.result(),
            accounts=accounts.result(),
            services=services.result(),
            marked=marked.result(),
            fleet=fleet.result() if fleet is not None else None,
        )
        snapshot = replace(first, left_over=await self._left_over(first))
        unread = failures(
            snapshot.bindings,
            snapshot.server.version,
            snapshot.server.skew,
            snapshot.server.definitions,
            snapshot.nodes,
            snapshot.heartbeats,
            snapshot.elections,
            snapshot.deployments,
            snapshot.program_pods,
            snapshot.accounts,
            snapshot.services,
            *snapshot.marked.values(),
            snapshot.left_over,
            *(snapshot.fleet.unread if snapshot.fleet is not None else ()),
        )
        return replace(snapshot, unread=unread)

    async def _programs(self, recorded: str) -> Client | NotRead:
        """Return the cluster in which our programs run; `recorded` is the management cluster that
        the installation records.

        :raises ConfigError: the given management cluster is not the recorded one.
        """
        if self._management is None:
            if not recorded:
                return self.computing
            reason = f"they run in the management cluster {recorded}; add {OPTION}"
            return NotRead("Kubeocean's programs", reason)
        if not recorded:
            message = (
                "no management cluster is recorded in this installation; leave this option out"
            )
            raise ConfigError(message, source=OPTION)
        identity = await read_part("management cluster", identity_of(self._management))
        if isinstance(identity, NotRead):
            return identity
        if identity != recorded:
            raise other_management(recorded)
        return self._management

    async def _left_over(self, first: Snapshot) -> SnapshotPart[frozenset[str]]:
        """Return the UIDs of objects that are left over in each of two successive reads."""
        candidates = left_over(first)
        if not candidates:
            return candidates
        await self.clock.sleep(self._pause_s)
        # The bindings come last: objects of a binding created meanwhile have their binding then.
        nodes, marked = await self.nodes(), await self._marked()
        bindings = await read_part("bindings", self._bindings())
        again = [marked[kind] for kind in marked if known(first.marked[kind], ())]
        for part in (bindings, nodes, *again):
            if isinstance(part, NotRead):
                return part
        second = replace(first, bindings=bindings, nodes=nodes, marked=marked)
        return candidates & left_over(second)

    async def _bindings(self) -> SnapshotPart[tuple[ClusterBinding, ...]]:
        """List all bindings; a NotRead if their kind is not served, which `definitions` reports.

        :raises ApiError: they could not be listed.
        """
        try:
            return tuple((await self.computing.list(CLUSTER_BINDINGS)).items)
        except NotFound as error:
            return NotRead("bindings", str(error))

    async def _marked(self) -> dict[str, SnapshotPart[tuple[Untyped, ...]]]:
        """List the objects that may have a finalizer of ours, by kind."""
        return {
            each.kind: await read_part(f"{each.kind}s", self._managed(each)) for each in _MARKED
        }

    async def _managed(self, resource: Resource[Untyped]) -> tuple[Untyped, ...]:
        labels = f"{self.domain.managed_by}={self.domain.product}"
        return tuple((await self.computing.list(resource, labels=labels)).items)

    async def _pods(self, cluster: Client) -> tuple[Json, ...]:
        labels = f"{group.APP_PART_OF}={self.domain.product}"
        listing = await cluster.list(
            _PODS, self.domain.system_namespace, labels=labels, keep_raw=True
        )
        return tuple(each.content() for each in listing.items)

    async def _services(self) -> dict[str, Json | None]:
        services: dict[str, Json | None] = {}
        for key in (SERVER_SERVICE, DNS_SERVICE):
            try:
                service = await self.computing.get(SERVICES, key.name, key.namespace, keep_raw=True)
            except NotFound:
                services[str(key)] = None
            else:
                services[str(key)] = service.content()
        return services

    # One worker

    async def _worker(self, binding: ClusterBinding, *, snapshot: Snapshot) -> WorkerSnapshot:
        name = binding.name
        connection = await self.workers.probe(await self.workers.connect(binding))
        tls = await read_part(f"certificate of {name}'s proxier", self._tls(binding))
        worker = WorkerSnapshot(
            binding=binding,
            ids=await self.ids_of(binding),
            state=connection.state,
            message=connection.message,
            access=connection.access,
            tls=tls,
        )
        client = connection.client
        if client is None:
            not_read = connection.state in (WorkerState.NOT_ALLOWED, WorkerState.NOT_ASKED)
            secret = NotRead(f"Secret of {name}", connection.message) if not_read else None
            return replace(worker, unread=failures(worker.ids, tls, secret))
        worker = replace(worker, **await self._rights(client, binding, connection.access))
        if not isinstance(worker.ids, NotRead):  # else the owners of objects are not known
            objects = await self._objects(client, binding, worker.ids, snapshot)
            worker = replace(worker, **objects)
        unread = failures(
            worker.ids,
            tls,
            worker.server.version,
            worker.server.skew,
            worker.missing,
            worker.excess,
            worker.exposed,
            worker.unenforced,
            worker.namespace,
            worker.pod_security,
            worker.policies,
            worker.left_over,
            worker.differences,
        )
        return replace(worker, unread=(*unread, *worker.unread))

    async def _rights(
        self, worker: Client, binding: ClusterBinding, access: Access | None
    ) -> dict[str, Any]:
        """Read the worker's API server, the mount namespace, and the rights of the credential."""
        name, mount = binding.name, self.mount_of(binding)
        what = f"rights in worker {name}"
        server = await read_server(worker, f"worker {name}", self.clock)
        excess = await read_part(what, granted(worker, DANGERS))
        account = Key(mount, self.domain.metrics)
        return {
            "server": replace(
                server,
                definitions=await _definition(worker, f"worker {name}", policy_definition()),
            ),
            "missing": await self.missing_rights(worker, mount, what),
            "excess": excess if isinstance(excess, NotRead) else _dangers(excess),
            "exposed": await read_part(what, _exposed(worker, access, account)),
            "unenforced": await read_part(
                f"limits of worker {name}", unenforced(worker, mount, self.domain)
            ),
            **await _mount_namespace(worker, mount),
        }

    async def _objects(
        self, worker: Client, binding: ClusterBinding, ids: Ids, snapshot: Snapshot
    ) -> dict[str, Any]:
        """Read the worker's policies, and compare the objects of both clusters."""
        name = binding.name
        policies = await read_part(f"policies of {name}", list_policies(worker))
        skipped: list[NotRead] = []
        differences = await read_part(
            f"objects of {name} in both clusters",
            self._differences(worker, ids, self.mount_of(binding), skipped),
        )
        return {
            "policies": policies,
            "left_over": await self._left_over_policies(worker, ids, policies, snapshot),
            "differences": differences,
            "unread": tuple(skipped),
        }

    async def _left_over_policies(
        self,
        worker: Client,
        ids: Ids,
        policies: SnapshotPart[tuple[ResourceLeasingPolicy, ...]],
        snapshot: Snapshot,
    ) -> SnapshotPart[frozenset[str]]:
        """Return the UIDs of policies that have the finalizer of a deleted binding in each of two
        successive reads."""
        if isinstance(policies, NotRead):
            return NOT_REQUESTED
        bindings = known(snapshot.bindings, ())
        candidates = left_over_policies(policies, bindings, ids, self.domain)
        if not candidates:
            return candidates
        await self.clock.sleep(self._pause_s)
        again = await read_part(f"policies of {ids.binding}", list_policies(worker))
        bindings_again = await read_part("bindings", self._bindings())
        if isinstance(again, NotRead):
            return again
        if isinstance(bindings_again, NotRead):
            return bindings_again
        return candidates & left_over_policies(again, bindings_again, ids, self.domain)

    async def _tls(self, binding: ClusterBinding) -> dict[str, bytes]:
        """Return the proxier's certificate from its Secret; empty if there is no Secret yet."""
        domain, annotations = self.domain, binding.annotations
        name = annotations.get(domain.logs_proxy_secret_name)
        namespace = annotations.get(domain.logs_proxy_secret_namespace)
        try:
            secret = await self.computing.get(
                SECRETS,
                name or naming.tls_secret(binding.spec.cluster_id),
                namespace or domain.system_namespace,
                keep_raw=True,
            )
        except NotFound:
            return {}
        data: Json = secret.content().get("data") or {}
        try:
            return {str(secret.key): base64.b64decode(data.get("tls.crt", ""), validate=True)}
        except binascii.Error:
            return {str(secret.key): b"not base64"}

    async def _differences(
        self, worker: Client, ids: Ids, mount: str, skipped: list[NotRead]
    ) -> tuple[Difference, ...]:
        """Return the differences that two comparisons show; one may be a change in progress."""
        clusters = ClusterSnapshot(
            self.computing, worker, ids=ids, mount_namespace=mount, domain=self.domain
        )
        comparison = await clusters.look()
        for kind in sorted(comparison.skipped):
            reason = "its credential may not list them"
            skipped.append(NotRead(f"{kind}s of {ids.binding}", reason))
        first = {each.identity for each in comparison.findings}
        if not first:
            return ()
        await self.clock.sleep(self._pause_s)
        second = (await clusters.look()).findings
        return tuple(each for each in second if each.identity in first)


async def _definition(
    client: Client, name: str, definition: Json
) -> SnapshotPart[dict[str, Json | None]]:
    """Return one of our CustomResourceDefinitions as the API server has it."""
    crd = definition["metadata"]["name"]
    reading = client.get(CUSTOM_RESOURCE_DEFINITIONS, crd, keep_raw=True)
    installed = await read_object(f"definition of {name}", reading)
    if isinstance(installed, NotRead):
        return installed
    return {crd: installed.content() if installed is not None else None}


async def _mount_namespace(worker: Client, mount: str) -> dict[str, Any]:
    """Read whether the mount namespace exists, and its PodSecurity level."""
    namespace = await read_object(f"Namespace {mount}", worker.get(NAMESPACES, mount))
    if isinstance(namespace, NotRead):
        return {"namespace": namespace, "pod_security": namespace}
    labels = namespace.labels if namespace is not None else {}
    return {
        "namespace": namespace is not None,
        "pod_security": labels.get(group.LABEL_POD_SECURITY, ""),
    }


def _dangers(excess: list[Permission]) -> tuple[str, ...]:
    """Return the texts of dangerous rights; an administrator's rights include all others."""
    if DANGERS[0] in excess:
        return (ADMINISTRATOR,)
    return tuple(map(str, excess))


async def _exposed(worker: Client, access: Access | None, account: Key) -> bool:
    """Whether the proxier sends the worker's own credential to kubelets."""
    if access is None or access.certificate is not None or not access.headers():
        return False
    create_token = Permission("create", "", "serviceaccounts/token", *account)
    rights = await granted(worker, (*READ_METRICS, create_token))
    if not set(READ_METRICS) <= set(rights):
        return False
    if create_token not in rights:
        return True
    try:
        await worker.get(SERVICE_ACCOUNTS, account.name, account.namespace)
    except NotFound:
        return True
    except Forbidden:
        return False  # a right to tokens of one account by name is granted with that account
    return False
