"""Makes the worker of a ClusterBinding a member of the fleet without an agent, and reverts that.

The owner of the worker grants the credential of the binding a second set of permissions, and the
binding is annotated; then the hub creates a MemberCluster, and the binding's syncer acts as the
agent. All bindings of a mount namespace share the credential, and so its permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS, MemberCluster
from kubeocean.api.group import DEFAULT, FLEET_MEMBER, Domain
from kubeocean.errors import ConfigError, NotFound
from kubeocean.install.apply import Applier, ApplyResult
from kubeocean.install.fleet import agentless_objects, agentless_roles, binding_owner
from kubeocean.install.join import identity, leads_to, two_clusters
from kubeocean.install.values import WorkerValues
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import SECRETS_WITH_DATA
from kubeocean.runtime.objects import Json, controller_of

__all__ = ["AgentlessJoin", "bound_member", "revoke"]

Report = Callable[[str, Json, ApplyResult], None]


class AgentlessJoin:
    """Makes the worker of one ClusterBinding a fleet member; `access` points to the worker."""

    def __init__(
        self,
        name: str,
        hub: Applier,
        worker: Applier,
        access: Access,
        *,
        domain: Domain = DEFAULT,
    ) -> None:
        self._name, self._hub, self._worker = name, hub, worker
        self._access, self._domain = access, domain

    async def run(self, heartbeat_s: int | None, report: Report) -> None:
        """Grant the binding's credential permissions in the worker, and annotate the binding.

        Without `heartbeat_s` the time between heartbeats stays as it is.

        :raises ConfigError: there is no such binding, `access` points to another cluster, or a
            member with an agent has the name.
        """
        binding = await self._binding()
        await self._check_member(binding)
        values = WorkerValues(domain=self._domain, namespace=binding.spec.mount_namespace)
        await self._worker.apply_all(agentless_objects(values), partial(report, "worker"))
        annotations = {self._domain.fleet: FLEET_MEMBER}
        if heartbeat_s is not None:
            annotations[self._domain.fleet_heartbeat] = str(heartbeat_s)
        changed = {key: text for key, text in annotations.items() if text != _stored(binding, key)}
        body = {"kind": CLUSTER_BINDINGS.kind, "metadata": {"name": self._name}}
        if not changed:
            report("hub", body, ApplyResult.UNCHANGED)
            return
        patch = MergePatch({"metadata": {"uid": binding.uid, "annotations": changed}})
        await self._hub.client.patch(CLUSTER_BINDINGS, self._name, patch)
        report("hub", body, ApplyResult.CHANGED)

    async def _check_member(self, binding: ClusterBinding) -> None:
        """Check that no MemberCluster with this name belongs to another owner than the binding."""
        try:
            member = await self._hub.client.get(MEMBER_CLUSTERS, self._name)
        except NotFound:
            return
        owner = controller_of(member)
        if not member.deleting and (owner is None or owner.uid != binding.uid):
            message = f"is a member with an agent; run kubeocean fleet leave {self._name} first"
            raise ConfigError(message, source="NAME", value=self._name)

    async def _binding(self) -> ClusterBinding:
        """Return the ClusterBinding, after checking that it belongs to the worker of `access`."""
        client, name = self._hub.client, self._name
        try:
            binding = await client.get(CLUSTER_BINDINGS, name)
        except NotFound:
            message = "is not a ClusterBinding of the hub; bind the cluster first"
            command = f"kubeocean join {name} --kubeconfig FILE"
            raise ConfigError(f"{message}: {command}", source="NAME", value=name) from None
        if binding.deleting:
            message = "is being deleted; wait for the deletion, then bind the cluster again"
            raise ConfigError(message, source="NAME", value=name)
        _, worker_id = await two_clusters(self._hub, self._worker, self._access)
        reference = binding.spec.secret_ref
        try:
            secret = await client.get(SECRETS_WITH_DATA, reference.name, reference.namespace)
        except NotFound:
            secret = None
        if not leads_to(binding, secret, worker_id, self._access, self._domain):
            message = f"points to another cluster than the one that is bound as {name}"
            raise ConfigError(message, source="--kubeconfig", value=self._access.server)
        return binding


def _stored(binding: ClusterBinding, annotation: str) -> str:
    return binding.annotations.get(annotation, "")


async def bound_member(
    hub: Applier, cluster: Applier, members: Iterable[MemberCluster], domain: Domain = DEFAULT
) -> str:
    """Return the name of the member without an agent that a cluster is; empty if it is none.

    The cluster's identity is compared with the one that the syncer has recorded on the binding of
    each such member, or else `kubeocean join` on the binding's Secret.
    """
    owners = {each.uid for each in map(binding_owner, members) if each is not None}
    if not owners:
        return ""
    cluster_id, key = await identity(cluster), domain.worker_cluster_id
    for binding in (await hub.client.list(CLUSTER_BINDINGS)).items:
        if binding.uid not in owners:
            continue
        recorded = _stored(binding, key)
        if not recorded:
            reference = binding.spec.secret_ref
            with suppress(NotFound):
                secret = await hub.client.get(
                    SECRETS_WITH_DATA, reference.name, reference.namespace
                )
                recorded = secret.annotations.get(key, "")
        if recorded == cluster_id:
            return binding.name
    return ""


async def revoke(
    binding: ClusterBinding, worker: Applier, report: Report, *, domain: Domain = DEFAULT
) -> None:
    """Delete the roles in a binding's worker that let the credential apply fleet objects."""
    values = WorkerValues(domain=domain, namespace=binding.spec.mount_namespace)
    for body in reversed(agentless_roles(values)):
        report("worker", body, await worker.remove(body))
