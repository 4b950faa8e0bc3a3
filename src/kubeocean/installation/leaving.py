"""Leaving: a worker, let go of.

The binding goes first, and takes its nodes and pods with it, by its syncer's rules. Only then goes
what it needed: the kubeconfig above; below its policy, its credential, and, with the last binding
of a mount namespace, the accounts and their roles. Definitions, namespaces and priority class stay.
What nobody took back, because the binding was let go by force, stays too, and is told.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding, SecretReference
from kubeocean.api.conditions import DRAINED
from kubeocean.api.group import Domain
from kubeocean.api.naming import label_value
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.bound.workers import KUBECONFIG_SECRETS
from kubeocean.errors import ConfigError, Conflict, NotFound
from kubeocean.installation.applying import Applier, Fate
from kubeocean.installation.credentials import kubeconfig_secret, secret_name
from kubeocean.installation.joining import Tell, identity, leads_to, policy_holder, two_clusters
from kubeocean.installation.policies import policy
from kubeocean.installation.roles import ALL_ADD_ONS
from kubeocean.installation.values import WorkerValues
from kubeocean.installation.workerside import (
    credential_secret,
    credential_selector,
    worker_objects,
)
from kubeocean.leasing.report import counted
from kubeocean.runtime.access import Access
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES, PODS, SECRETS, SERVICE_ACCOUNTS, SERVICES
from kubeocean.runtime.objects import Json, Object, ObjectT, Resource, Untyped
from kubeocean.runtime.patches import MergePatch

__all__ = ["Departure", "Leave", "waits_for"]

_LOOK_S: Final = 1.0
_STAY: Final = frozenset({"CustomResourceDefinition", "Namespace", "PriorityClass"})
_CLAIMS: Final = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Untyped
)
_COPIED: Final[tuple[Resource[Any], ...]] = (PODS, CONFIG_MAPS, SECRETS, _CLAIMS, SERVICES)


@dataclass(frozen=True, slots=True)
class Departure:
    """How far it came."""

    gone: bool
    waits_for: str = ""


def waits_for(binding: ClusterBinding) -> str:
    """What a binding that is being deleted waits for, in a line."""
    for condition in binding.status.conditions or ():
        if condition.type == DRAINED and condition.status != "True":
            return condition.message
    held = ", ".join(binding.metadata.finalizers or ())
    return f"finalizers {held}" if held else "the server"


class Leave:
    """Lets go of one worker."""

    def __init__(
        self, name: str, computing: Applier, *, domain: Domain, clock: Clock | None = None
    ) -> None:
        self._name = name
        self._computing = computing
        self._domain = domain
        self._clock = clock or RealClock()

    # Before anything goes

    async def check_worker(self, worker: Applier, access: Access) -> None:
        """`access` is the way to it.

        :raises ConfigError: it is not the worker that is bound under this name.
        """
        _, worker_id = await two_clusters(self._computing, worker, access)
        binding = await self._binding()
        ref = binding.spec.secret_ref if binding is not None else SecretReference()
        name = ref.name or secret_name(self._name)
        namespace = ref.namespace or self._domain.system_namespace
        secret = None
        with suppress(NotFound):
            secret = await self._computing.client.get(KUBECONFIG_SECRETS, name, namespace)
        if not leads_to(binding, secret, worker_id, access, self._domain):
            said = f"leads to another cluster than the one that is bound as {self._name}"
            raise ConfigError(said, source="--kubeconfig", value=access.server)

    async def check(self, worker: Applier | None, values: WorkerValues) -> None:
        """:raises ConfigError: there is nothing of that name, here or in the worker."""
        if await self._binding() is not None or await self._has_kubeconfig():
            return
        if worker is None or not await self._remains(worker, values):
            raise await self._unknown()

    async def _has_kubeconfig(self) -> bool:
        name, namespace = secret_name(self._name), self._domain.system_namespace
        try:
            await self._computing.client.get(KUBECONFIG_SECRETS, name, namespace)
        except NotFound:
            return False
        return True

    async def _remains(self, worker: Applier, values: WorkerValues) -> bool:
        """Whether an earlier departure did not come to its end there."""
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
            there = (await self._computing.client.list(CLUSTER_BINDINGS)).items
        except NotFound:
            there = []
        known = ", ".join(sorted(each.name for each in there)) or "none"
        said = f"there is no such binding; there are: {known}"
        return ConfigError(said, source="NAME", value=self._name)

    # Above

    async def mount_namespace(self) -> str:
        """Where the binding's pods run; empty if there is no binding any more."""
        binding = await self._binding()
        return binding.spec.mount_namespace if binding is not None else ""

    async def unbind(
        self, *, patience_s: float, force: bool, say: Callable[[str], None]
    ) -> Departure:
        """Delete the binding, and wait until it is gone; then, by force, let it go."""
        client, began = self._computing.client, self._clock.monotonic()
        while (binding := await self._binding()) is not None:
            if not binding.deleting:
                await client.delete(CLUSTER_BINDINGS, binding.name, uid=binding.uid)
                continue
            if self._clock.monotonic() - began >= patience_s:
                if not force:
                    return Departure(False, waits_for(binding))
                say("letting go by force")
                await self._free_nodes()
                await self._free(CLUSTER_BINDINGS, binding)
            say(f"{binding.status.virtual_nodes} nodes; waiting for {waits_for(binding)}")
            await self._clock.sleep(_LOOK_S)
        return Departure(True)

    async def _binding(self) -> ClusterBinding | None:
        try:
            return await self._computing.client.get(CLUSTER_BINDINGS, self._name)
        except NotFound:
            return None

    async def _free_nodes(self) -> None:
        """Nobody would remove virtual nodes that no syncer knows any more."""
        client, domain = self._computing.client, self._domain
        binding = label_value(self._name)
        labels = f"{domain.managed_by}={domain.product},{domain.cluster_binding}={binding}"
        for vnode in (await client.list(NODES, labels=labels)).items:
            await self._free(NODES, vnode)
            try:
                await client.delete(NODES, vnode.name, uid=vnode.uid)
            except (NotFound, Conflict):
                continue

    async def _free(self, resource: Resource[ObjectT], there: Object) -> None:
        """Take off our finalizers, and nobody else's."""
        before = there.metadata.finalizers or ()
        others = [each for each in before if not self._domain.owns(each)]
        if len(others) == len(before):
            return
        body = {"metadata": {"resourceVersion": there.resource_version, "finalizers": others}}
        try:
            await self._computing.client.patch(resource, there.name, MergePatch(body))
        except (NotFound, Conflict):
            return  # it went, or changed: the next look shows

    async def forget(self, tell: Tell) -> None:
        """Remove the kubeconfig of the binding."""
        secret = kubeconfig_secret(self._name, "", ends="", domain=self._domain)
        tell(secret, await self._computing.remove(secret))

    # Below

    async def clean(
        self, worker: Applier, values: WorkerValues, tell: Tell, *, force: bool
    ) -> tuple[str, ...]:
        """Remove what the binding needed in the worker; what stays, for others or for ever."""
        computing_id = await identity(self._computing)
        await self._clean_policy(worker, computing_id, tell, force=force)
        anchor = credential_secret(values, self._name, computing_id)
        tell(anchor, await worker.remove(anchor))
        orphans = await self._orphans(worker, values, computing_id)
        left = await worker.client.list(
            SECRETS, values.mount_namespace, labels=credential_selector(values)
        )
        others = [each.name for each in left.items if not each.deleting]
        if others:
            return *orphans, f"the accounts and their roles, which {', '.join(others)} need"
        stays: list[Json] = []
        for body in reversed(worker_objects(replace(values, isolated=True, add_ons=ALL_ADD_ONS))):
            if body["kind"] in _STAY:
                stays.append(body)
            else:
                tell(body, await worker.remove(body))
        return *orphans, *(f"{body['kind']} {body['metadata']['name']}" for body in stays)

    async def _orphans(
        self, worker: Applier, values: WorkerValues, computing_id: str
    ) -> tuple[str, ...]:
        """What the binding had in the mount namespace, and nobody took back."""
        domain = self._domain
        marks = {
            domain.managed_by: domain.product,
            domain.cluster_binding: label_value(self._name),
            domain.computing_cluster_id: label_value(computing_id),
        }
        labels = ",".join(f"{key}={value}" for key, value in marks.items())
        found = []
        for resource in _COPIED:
            there = (
                await worker.client.list(resource, values.mount_namespace, labels=labels)
            ).items
            if there:
                found.append(f"{counted(len(there), resource.kind)} of {self._name}")
        return (*found, f"(kubectl finds them with -l {labels})") if found else ()

    async def _clean_policy(
        self, worker: Applier, computing_id: str, tell: Tell, *, force: bool
    ) -> None:
        body = policy(self._name, PolicySpec(self._name), domain=self._domain)
        if await policy_holder(worker, self._name, self._domain) not in ("", computing_id):
            tell(body, Fate.FOREIGN)
            return
        try:
            fate = await worker.remove(body)
        except NotFound:
            fate = Fate.ABSENT  # the worker does not even know the kind
        tell(body, fate)
        if fate is Fate.REMOVED and force:
            try:
                there = await worker.client.get(RESOURCE_LEASING_POLICIES, self._name)
            except NotFound:
                return
            others = [
                each for each in there.metadata.finalizers or () if not self._domain.owns(each)
            ]
            change = {"resourceVersion": there.resource_version, "finalizers": others}
            await worker.client.patch(
                RESOURCE_LEASING_POLICIES, there.name, MergePatch({"metadata": change})
            )
