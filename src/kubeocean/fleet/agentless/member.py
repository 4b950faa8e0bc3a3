"""A member without an agent, in the process of its binding's syncer.

While the binding is annotated as a member, or its condition shows a membership, a `MemberAgent`
runs in the syncer: its hub is the computing cluster, and its client of the worker uses the
kubeconfig of the binding. First the syncer annotates the binding with the syncer's user name, so
that the hub can grant this user the member's namespace. Failures are logged and tried again; the
syncer goes on.

Objects are applied only if the credential may do so: if an owner grants the rights for pods and
nothing else, the agent's condition `Joined` lists the missing rights.

Most bindings are no members: the modules of the agent are imported when it is first started.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.conditions import is_in_fleet
from kubeocean.api.fleet.names import member_namespace
from kubeocean.api.fleet.works import APPLIED_WORKS
from kubeocean.api.group import DEFAULT, FLEET_MEMBER, Domain
from kubeocean.errors import ApiError, NotFound
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.retries import backoff_s, jittered

if TYPE_CHECKING:
    from kubeocean.fleet.agent.agent import MemberAgent
    from kubeocean.fleet.applier import WorkApplier
    from kubeocean.fleet.extensions import Extensions
    from kubeocean.fleet.properties.leasing import LeasingSource

__all__ = ["AgentlessMember", "MemberParts", "WorkerRights", "is_member"]

_FIRST_S: Final = 1.0  # before the agent is started again after a failure
_LONGEST_S: Final = 30.0
_REVIEW_S: Final = 10.0  # for one review of the rights
_REVIEW_AGAIN_S: Final = (2.0, 60.0)  # while rights are missing
_IDENTITY: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

_log = get_logger(__name__)


def is_member(binding: ClusterBinding | None, domain: Domain = DEFAULT) -> bool:
    """Whether the syncer acts as a member's agent for this binding."""
    if binding is None:
        return False
    joins = binding.annotations.get(domain.fleet) == FLEET_MEMBER and not binding.deleting
    return joins or is_in_fleet(binding.status.conditions)


class WorkerRights:
    """Reviews whether the credential of a binding may apply Works in the worker.

    The rights are reviewed until they suffice. `problem` is the message for the condition Joined;
    empty if they suffice.
    """

    def __init__(self, member: Client, name: str, *, clock: Clock) -> None:
        self._member, self._name, self._clock = member, name, clock
        self.problem = "the rights in the worker have not been reviewed yet"

    async def run(self) -> None:
        """Review the credential's rights in the worker until they suffice."""
        for attempt in itertools.count(1):
            try:
                self.problem = await within(self._clock, _REVIEW_S, self._review)
            except (ApiError, TimeoutError) as error:
                reason = str(error) or f"no answer within {_REVIEW_S:g} s"
                self.problem = f"the rights in the worker could not be reviewed: {reason}"
            if not self.problem:
                return
            await self._clock.sleep(jittered(backoff_s(attempt, *_REVIEW_AGAIN_S)))

    async def _review(self) -> str:
        from kubeocean.install.access_reviews import granted
        from kubeocean.install.fleet import applier_permissions

        needed = list(applier_permissions())
        allowed = set(await granted(self._member, needed))
        remedy = f"run kubeocean fleet join {self._name} --agentless"
        if missing := [str(each) for each in needed if each not in allowed]:
            return f"the credential of the binding may not {', '.join(missing)}; {remedy}"
        try:
            await self._member.request(
                "GET", f"/apis/{APPLIED_WORKS.group}/{APPLIED_WORKS.version}"
            )
        except NotFound:
            return f"the worker has no CustomResourceDefinition of AppliedWork; {remedy}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """Parts of the `MemberAgent` that a syncer runs for its binding.

    - `hub`: client of the computing cluster; `member`: client of the worker.
    - `certificate_authority`: returns the worker's certificate authority, as PEM.
    - `leasing`: source of the properties about leasing.
    """

    name: str
    hub: Client
    member: Client
    extensions: Extensions
    leasing: LeasingSource | None = None
    certificate_authority: Callable[[], str] = lambda: ""
    instance: str = ""
    domain: Domain = DEFAULT
    metrics: Metrics

    def agent(self, rights: WorkerRights, clock: Clock) -> MemberAgent:
        """Return a new MemberAgent, which applies Works once the credential's rights suffice."""
        from kubeocean.fleet.agent.agent import MemberAgent
        from kubeocean.fleet.agent.collector import Collector
        from kubeocean.fleet.agent.nodes import NodeProperties
        from kubeocean.fleet.applier import WorkApplier

        built_in = NodeProperties(
            self.member,
            extensions=self.extensions,
            certificate_authority=self.certificate_authority(),
            leasing=self.leasing,
            clock=clock,
            metrics=self.metrics,
        )

        def new_applier() -> WorkApplier:
            return WorkApplier(
                self.hub,
                self.member,
                namespace=member_namespace(self.name),
                trackers=self.extensions.tracker,
                health_checks=self.extensions.health_checks({}),
                domain=self.domain,
                clock=clock,
                metrics=self.metrics,
            )

        return MemberAgent(
            self.hub,
            self.member,
            self.name,
            Collector(built_in, clock=clock),
            new_applier=new_applier,
            join_problem=lambda: rights.problem,
            instance=self.instance,
            clock=clock,
            metrics=self.metrics,
        )


class AgentlessMember:
    """Runs a MemberAgent for one binding; `bindings` is the syncer's cache of that binding."""

    name = "agentless-member"

    def __init__(
        self,
        parts: MemberParts,
        bindings: Informer[ClusterBinding],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._parts, self._bindings = parts, bindings
        self._clock = clock or RealClock()
        self._key = Key("", parts.name)
        self._changed = asyncio.Event()
        self._user = ""  # the name of this process's user in the computing cluster
        bindings.on_change(lambda old, new: self._changed.set())

    async def run(self) -> None:
        """Run the MemberAgent while the binding is a member, until cancelled."""
        await self._bindings.synced()
        failures = 0
        while True:
            while not self._plays:
                self._changed.clear()
                await self._changed.wait()
            began = self._clock.monotonic()
            try:
                await self._play()
                failures = 0
            except Exception as error:  # no failure of the agent may end the syncer
                lasted_s = self._clock.monotonic() - began
                failures = 1 if lasted_s > _LONGEST_S else failures + 1
                delay_s = jittered(backoff_s(failures, _FIRST_S, _LONGEST_S))
                _log.error(
                    "Failed to run member agent of binding",
                    error=str(error),
                    retry_in_s=delay_s,
                    exc_info=None if isinstance(error, ApiError) else error,
                )
                await self._clock.sleep(delay_s)

    async def _play(self) -> None:
        rights = WorkerRights(self._parts.member, self._parts.name, clock=self._clock)
        agent = self._parts.agent(rights, self._clock)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run()) for each in (rights, agent)]
            while self._plays:
                self._changed.clear()
                await self._record_identity()
                await self._changed.wait()
            for task in tasks:
                task.cancel()
        _log.info("Stopped member agent of binding", member=self._parts.name)

    async def _record_identity(self) -> None:
        """Annotate the binding with the syncer's user name, so that the hub can grant it rights."""
        hub, binding = self._parts.hub, self._bindings.get(self._key)
        if not self._user:
            body: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            review = await hub.request_json("POST", _IDENTITY, body=body, idempotent=True)
            self._user = str(review["status"]["userInfo"]["username"])
        annotation = self._parts.domain.fleet_identity
        if binding is None or binding.annotations.get(annotation) == self._user:
            return
        metadata = {"uid": binding.uid, "annotations": {annotation: self._user}}
        patch = MergePatch({"metadata": metadata})
        self._bindings.wrote(await hub.patch(CLUSTER_BINDINGS, binding.name, patch))

    @property
    def _plays(self) -> bool:
        return is_member(self._bindings.get(self._key), self._parts.domain)
