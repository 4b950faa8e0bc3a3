"""The hub's controller of members without an agent: a MemberCluster for each ClusterBinding.

The condition `FleetMember` of a binding is written before each step: the binding's syncer acts as
the member's agent for as long as the condition shows a membership, also after the annotation is
removed, so that a member can leave.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS, MemberCluster
from kubeocean.api.fleet.conditions import MemberCondition
from kubeocean.api.group import DEFAULT, FLEET_LEFT, FLEET_MEMBER, Domain
from kubeocean.errors import NotFound
from kubeocean.fleet.agentless.plan import BindingStep, member_spec, plan_binding
from kubeocean.fleet.optional_kind import WhileDefined
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Json, Key, controller_of, set_condition

__all__ = ["BindingMembers"]

_REPORTED: Final = (MemberCondition.JOINED, MemberCondition.READY_TO_JOIN)

_audit = get_logger("kubeocean.audit")


class BindingMembers:
    """Reconciles the MemberClusters of all ClusterBindings of a hub that is a computing cluster.

    - `members`: the hub's cache of MemberClusters.
    - `everyone`: whether bindings without the annotation are members, too.
    """

    name = "agentless"

    def __init__(
        self,
        client: Client,
        members: Informer[MemberCluster],
        *,
        everyone: bool = False,
        domain: Domain = DEFAULT,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client, self._members = client, members
        self._everyone, self._domain = everyone, domain
        self._clock = clock or RealClock()
        self._metrics = metrics or Metrics()
        self._bindings: Informer[ClusterBinding] | None = None
        self._controller: Controller[Key] | None = None
        self._defined = WhileDefined(
            client, CLUSTER_BINDINGS, self._work, clock=self._clock, metrics=self._metrics
        )
        members.on_change(self._member_changed)

    async def run(self) -> None:
        """Reconcile ClusterBindings until cancelled, while the hub has that kind."""
        await self._defined.run()

    async def _work(self) -> None:
        """Reconcile ClusterBindings with a new cache and a new queue."""
        bindings = self._bindings = Informer(
            self._client, CLUSTER_BINDINGS, clock=self._clock, metrics=self._metrics
        )
        controller = self._controller = Controller(
            "agentless",
            self._reconcile,
            gate=self._caught_up,
            clock=self._clock,
            metrics=self._metrics,
        )
        bindings.on_change(self._binding_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(bindings.run())
            await bindings.synced()
            await self._members.synced()
            await controller.run()

    # Events that enqueue a binding

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if new is not None and self._controller is not None:
            self._controller.enqueue(new.key)

    def _member_changed(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        """Enqueue the ClusterBinding with the name of a changed MemberCluster.

        A heartbeat alone enqueues nothing.
        """
        if old is not None and new is not None and _relevant(old) == _relevant(new):
            return
        member = new or old
        if member is not None and self._controller is not None:
            self._controller.enqueue(member.key)

    async def _caught_up(self, key: Key) -> bool:
        bindings = self._bindings
        return (
            bindings is not None
            and await bindings.caught_up(key)
            and await self._members.caught_up(key)
        )

    # Reconciling

    async def _reconcile(self, key: Key) -> Outcome:
        binding = self._bindings.get(key) if self._bindings is not None else None
        if binding is None:
            return Done()  # the garbage collector deletes the MemberCluster that the binding owned
        member = self._members.get(key)
        plan = plan_binding(binding, member, everyone=self._everyone, domain=self._domain)
        if plan.condition is not None:
            binding = await self._write_condition(binding, plan.condition)
        with suppress(NotFound):  # an event of the deletion follows
            match plan.step:
                case BindingStep.NOTHING:
                    pass
                case BindingStep.ANNOTATE:
                    await self._annotate(binding, FLEET_MEMBER)
                case BindingStep.MARK_LEFT:
                    await self._annotate(binding, FLEET_LEFT)
                case BindingStep.CREATE:
                    await self._create(binding)
                case BindingStep.UPDATE:
                    assert member is not None
                    await self._update(binding, member)
                case BindingStep.DELETE:
                    assert member is not None
                    await self._client.delete(MEMBER_CLUSTERS, member.name, uid=member.uid)
                    _audit.info("Deleted member of binding", binding=binding.name)
        return Done()

    async def _create(self, binding: ClusterBinding) -> None:
        owner = {
            "apiVersion": CLUSTER_BINDINGS.api_version,
            "kind": CLUSTER_BINDINGS.kind,
            "name": binding.name,
            "uid": binding.uid,
            "controller": True,
        }
        body: Json = {
            "apiVersion": MEMBER_CLUSTERS.api_version,
            "kind": MEMBER_CLUSTERS.kind,
            "metadata": {"name": binding.name, "ownerReferences": [owner]},
            "spec": member_spec(binding, self._domain),
        }
        written = await self._client.create(MEMBER_CLUSTERS, body)
        self._members.wrote(written)
        _audit.info("Created member for binding", binding=binding.name, uid=written.uid)

    async def _update(self, binding: ClusterBinding, member: MemberCluster) -> None:
        body: Json = {
            "metadata": {"resourceVersion": member.resource_version, "uid": member.uid},
            "spec": member_spec(binding, self._domain),
        }
        # A merge patch would keep the namespace of a ServiceAccount that became a user.
        empty = {"apiGroup": None, "namespace": None}
        body["spec"]["identity"] = empty | body["spec"]["identity"]
        written = await self._client.patch(MEMBER_CLUSTERS, member.name, MergePatch(body))
        self._members.wrote(written)

    async def _annotate(self, binding: ClusterBinding, value: str) -> None:
        metadata: Json = {
            "resourceVersion": binding.resource_version,
            "uid": binding.uid,
            "annotations": {self._domain.fleet: value},
        }
        patch = MergePatch({"metadata": metadata})
        self._wrote(await self._client.patch(CLUSTER_BINDINGS, binding.name, patch))

    async def _write_condition(
        self, binding: ClusterBinding, condition: Condition
    ) -> ClusterBinding:
        """Write the condition `FleetMember` if it differs; return the binding as written."""
        now = text_of(self._clock.now())
        merged = set_condition(binding.status.conditions, condition, now=now)
        if merged == (binding.status.conditions or ()):
            return binding
        body: Json = {
            "metadata": {"resourceVersion": binding.resource_version, "uid": binding.uid},
            "status": {"conditions": msgspec.to_builtins(merged)},
        }
        try:
            written = await self._client.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch(body), subresource="status"
            )
        except NotFound:
            return binding
        self._wrote(written)
        return written

    def _wrote(self, binding: ClusterBinding) -> None:
        if self._bindings is not None:
            self._bindings.wrote(binding)


def _relevant(member: MemberCluster) -> tuple[object, ...]:
    """Return the parts of a MemberCluster that a binding's condition and its step depend on."""
    owner = controller_of(member)
    conditions = {
        each.type: (each.status, each.message)
        for each in member.status.conditions
        if each.type in _REPORTED
    }
    agents = [
        [(each.type, each.reason, each.message) for each in agent.conditions]
        for agent in member.status.agent_status
    ]
    return (
        member.uid,
        owner.uid if owner is not None else "",
        member.deleting,
        member.spec,
        conditions,
        agents,
    )
