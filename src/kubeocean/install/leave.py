"""Unbinds a worker cluster.

The ClusterBinding is deleted first; its syncer deletes virtual nodes and pods. Then the binding's
kubeconfig is deleted in the computing cluster, and in the worker its policy, its credential and,
with the last binding of a mount namespace, the accounts and their roles. CRDs, namespaces and the
priority class stay. Pods and copies that are left after a forced deletion stay, too, and are
reported.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding, SecretReference
from kubeocean.api.conditions import DRAINED
from kubeocean.api.group import Domain
from kubeocean.api.naming import label_value
from kubeocean.api.ownership import is_virtual_node_of
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.errors import ConfigError, Conflict, NotFound
from kubeocean.install.apply import Applier, ApplyResult
from kubeocean.install.credentials import kubeconfig_secret, secret_name
from kubeocean.install.fleet import agentless_roles
from kubeocean.install.join import Report, identity, leads_to, policy_holder, two_clusters
from kubeocean.install.lease_options import policy
from kubeocean.install.values import WorkerValues
from kubeocean.install.worker_objects import (
    credential_secret,
    credential_selector,
    with_everything,
    worker_objects,
)
from kubeocean.leasing.report import counted
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    NODES,
    PODS,
    SECRETS,
    SECRETS_WITH_DATA,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from kubeocean.runtime.objects import Json, Object, ObjectT, Resource, Untyped

__all__ = ["LEFT_KINDS", "Departure", "Leave", "waits_for"]

_POLL_S: Final = 1.0
_FORCED_S: Final = 10.0  # for the API server to delete a binding whose finalizers were removed
_KEPT_KINDS: Final = frozenset({"CustomResourceDefinition", "Namespace", "PriorityClass"})
_CLAIMS: Final = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped
)
_VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
# Kinds that a syncer creates for pods in a worker. A test compares them with the table of
# replicated kinds (`syncer/replication/kinds`), which this package cannot import.
LEFT_KINDS: Final[tuple[Resource[Any], ...]] = (
    PODS,
    CONFIG_MAPS,
    SECRETS,
    _CLAIMS,
    _VOLUMES,
    SERVICES,
)


@dataclass(frozen=True, slots=True)
class Departure:
    """Result of deleting a binding: whether the binding is gone, else why the deletion waits."""

    gone: bool
    waits_for: str = ""


def waits_for(binding: ClusterBinding) -> str:
    """Return why the deletion of a binding waits: a condition's message, or its finalizers."""
    for condition in binding.status.conditions or ():
        if condition.type == DRAINED and condition.status != "True":
            return condition.message
    finalizers = ", ".join(binding.metadata.finalizers or ())
    return f"finalizers {finalizers}" if finalizers else "the API server"


class Leave:
    """Unbinds one worker cluster: deletes its ClusterBinding and the objects that belong to it."""

    def __init__(
        self, name: str, computing: Applier, *, domain: Domain, clock: Clock | None = None
    ) -> None:
        self._name = name
        self._computing = computing
        self._domain = domain
        self._clock = clock or RealClock()

    async def check_worker(self, worker: Applier, access: Access) -> None:
        """Check that the worker of `access` is the one that is bound.

        :raises ConfigError: another worker is bound under this name.
        """
        _, worker_id = await two_clusters(self._computing, worker, access)
        binding = await self._binding()
        reference = binding.spec.secret_ref if binding is not None else SecretReference()
        name = reference.name or secret_name(self._name)
        namespace = reference.namespace or self._domain.system_namespace
        secret = None
        with suppress(NotFound):
            secret = await self._computing.client.get(SECRETS_WITH_DATA, name, namespace)
        if not leads_to(binding, secret, worker_id, access, self._domain):
            message = f"points to another cluster than the one that is bound as {self._name}"
            raise ConfigError(message, source="--kubeconfig", value=access.server)

    async def check(self, worker: Applier | None, values: WorkerValues) -> None:
        """Check that a cluster has objects of the binding.

        :raises ConfigError: neither cluster has objects of a binding of that name.
        """
        if await self._binding() is not None or await self._has_kubeconfig():
            return
        if worker is None or not await self._remains(worker, values):
            raise await self._unknown()

    async def _has_kubeconfig(self) -> bool:
        name, namespace = secret_name(self._name), self._domain.system_namespace
        try:
            await self._computing.client.get(SECRETS_WITH_DATA, name, namespace)
        except NotFound:
            return False
        return True

    async def _remains(self, worker: Applier, values: WorkerValues) -> bool:
        """Whether objects of an interrupted `leave` remain in the worker."""
        computing_id, client = await identity(self._computing), worker.client
        anchors = await client.list(
            SECRETS, values.mount_namespace, labels=credential_selector(values)
        )
        ours = credential_secret(values, self._name, computing_id)["metadata"]["name"]
        if anchors.items:
            return any(each.name == ours for each in anchors.items)
        try:
            await client.get(SERVICE_ACCOUNTS, values.account, values.mount_namespace)
        except NotFound:
            return await policy_holder(worker, self._name, self._domain) == computing_id
        return True

    async def _unknown(self) -> ConfigError:
        try:
            bindings = (await self._computing.client.list(CLUSTER_BINDINGS)).items
        except NotFound:
            bindings = []
        known = ", ".join(sorted(binding.name for binding in bindings)) or "none"
        message = f"there is no such binding; there are: {known}"
        return ConfigError(message, source="NAME", value=self._name)

    async def mount_namespace(self) -> str:
        """Return the mount namespace of the binding; "" if the binding is gone."""
        binding = await self._binding()
        return binding.spec.mount_namespace if binding is not None else ""

    async def unbind(
        self, *, patience_s: float, force: bool, say: Callable[[str], None]
    ) -> Departure:
        """Delete the ClusterBinding and wait until it is gone, at most `patience_s`.

        After that, `force` deletes its virtual nodes and removes Kubeocean's finalizers; other
        finalizers are not removed.
        """
        client, began = self._computing.client, self._clock.monotonic()
        while (binding := await self._binding()) is not None:
            if not binding.deleting:
                await client.delete(CLUSTER_BINDINGS, binding.name, uid=binding.uid)
                continue
            if self._clock.monotonic() - began >= patience_s:
                if not force:
                    return Departure(False, waits_for(binding))
                if self._clock.monotonic() - began >= patience_s + _FORCED_S:
                    finalizers = ", ".join(binding.metadata.finalizers or ())
                    return Departure(False, f"finalizers {finalizers}")
                say("removing finalizers by force")
                await self._delete_nodes(binding)
                await self._remove_finalizers(CLUSTER_BINDINGS, binding)
            say(f"{binding.status.virtual_nodes} nodes; waiting for {waits_for(binding)}")
            await self._clock.sleep(_POLL_S)
        return Departure(True)

    async def _binding(self) -> ClusterBinding | None:
        try:
            return await self._computing.client.get(CLUSTER_BINDINGS, self._name)
        except NotFound:
            return None

    async def _delete_nodes(self, binding: ClusterBinding) -> None:
        """Delete the virtual nodes of a binding whose syncer does not delete them."""
        client, domain = self._computing.client, self._domain
        name, cluster_id = binding.name, binding.spec.cluster_id
        ours = f"{domain.managed_by}={domain.product}"
        labels = f"{ours},{domain.cluster_binding}={label_value(name)}"
        for vnode in (await client.list(NODES, labels=labels)).items:
            if not is_virtual_node_of(vnode, binding=name, cluster_id=cluster_id, domain=domain):
                continue
            await self._remove_finalizers(NODES, vnode)
            try:
                await client.delete(NODES, vnode.name, uid=vnode.uid)
            except (NotFound, Conflict):
                continue

    async def _remove_finalizers(self, resource: Resource[ObjectT], stored: Object) -> None:
        """Remove Kubeocean's finalizers from an object."""
        before = stored.metadata.finalizers or ()
        others = [each for each in before if not self._domain.owns(each)]
        if len(others) == len(before):
            return
        body = {"metadata": {"resourceVersion": stored.resource_version, "finalizers": others}}
        try:
            await self._computing.client.patch(resource, stored.name, MergePatch(body))
        except (NotFound, Conflict):
            return  # deleted or changed; the next step reads it again

    async def forget(self, report: Report) -> None:
        """Delete the kubeconfig Secret of the binding."""
        secret = kubeconfig_secret(self._name, "", ends="", domain=self._domain)
        report(secret, await self._computing.remove(secret))

    async def clean(
        self, worker: Applier, values: WorkerValues, report: Report, *, force: bool
    ) -> tuple[str, ...]:
        """Delete the binding's objects in the worker; return descriptions of those that stay."""
        computing_id = await identity(self._computing)
        await self._clean_policy(worker, computing_id, report, force=force)
        anchor = credential_secret(values, self._name, computing_id)
        report(anchor, await worker.remove(anchor))
        orphans = await self._orphans(worker, values, computing_id)
        credentials = await worker.client.list(
            SECRETS, values.mount_namespace, labels=credential_selector(values)
        )
        others = [each.name for each in credentials.items if not each.deleting]
        if others:
            return *orphans, f"the accounts and their roles, which {', '.join(others)} need"
        kept: list[Json] = []
        wanted = [*worker_objects(with_everything(values)), *agentless_roles(values)]
        for body in reversed(wanted):
            if body["kind"] in _KEPT_KINDS:
                kept.append(body)
            else:
                report(body, await worker.remove(body))
        return *orphans, *(f"{body['kind']} {body['metadata']['name']}" for body in kept)

    async def _orphans(
        self, worker: Applier, values: WorkerValues, computing_id: str
    ) -> tuple[str, ...]:
        """Describe pods and copies of the binding that are left in the worker."""
        domain = self._domain
        selector = {
            domain.managed_by: domain.product,
            domain.cluster_binding: label_value(self._name),
            domain.computing_cluster_id: label_value(computing_id),
        }
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        orphans = []
        for resource in LEFT_KINDS:
            listing = await worker.client.list(resource, values.mount_namespace, labels=labels)
            if listing.items:
                orphans.append(f"{counted(len(listing.items), resource.kind)} of {self._name}")
        return (*orphans, f"(kubectl finds them with -l {labels})") if orphans else ()

    async def _clean_policy(
        self, worker: Applier, computing_id: str, report: Report, *, force: bool
    ) -> None:
        body = policy(self._name, PolicySpec(self._name), domain=self._domain)
        if await policy_holder(worker, self._name, self._domain) not in ("", computing_id):
            report(body, ApplyResult.FOREIGN)
            return
        try:
            result = await worker.remove(body)
        except NotFound:
            result = ApplyResult.ABSENT  # the worker does not have the CRD
        report(body, result)
        if result is ApplyResult.REMOVED and force:
            try:
                stored = await worker.client.get(RESOURCE_LEASING_POLICIES, self._name)
            except NotFound:
                return
            others = [
                each for each in stored.metadata.finalizers or () if not self._domain.owns(each)
            ]
            change = {"resourceVersion": stored.resource_version, "finalizers": others}
            await worker.client.patch(
                RESOURCE_LEASING_POLICIES, stored.name, MergePatch({"metadata": change})
            )
