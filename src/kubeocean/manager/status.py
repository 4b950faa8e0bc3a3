"""Computes and writes the status of a ClusterBinding.

`status_of` is pure. `Ready` names the first obstacle in the order of the set-up: the binding
itself, the worker, its namespace and permissions, proxier, syncer.

The manager writes `Ready`, `Permitted`, `SyncerReady`, `ProxierReady`, `WorkerTrustedFully`,
`CredentialValid`, phase, last sync time, observed generation and the expiry of the credential.
`Connected` has one writer at a time: the leading syncer, because the condition is about its
connection, or the manager while none leads. A condition with the right status is not rewritten by
the other writer.

Each write has the resourceVersion of the binding that it was computed from; equal statuses are not
written. Events are emitted after the write of a change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kubeocean.api import conditions as api_conditions
from kubeocean.api.bindings import (
    CLUSTER_BINDINGS,
    BindingPhase,
    BindingStatus,
    ClusterBinding,
    problems,
)
from kubeocean.api.conditions import BindingEvent, ConditionTemplate
from kubeocean.api.validation import Problem, blocking, describe
from kubeocean.errors import NotFound
from kubeocean.install.join import join_command
from kubeocean.manager.rollout_state import ComponentState, RolloutResult
from kubeocean.manager.worker_probe import Cause, ProbeResult
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.events import EventRecorder, EventType, StatusEvent, reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Condition, Json, find_condition, set_condition

__all__ = [
    "BindingObservation",
    "StatusWriter",
    "cluster_id_prefixes",
    "contradicts",
    "oldest_claimant",
    "problems_of_binding",
    "rolled_out",
    "status_events",
    "status_of",
    "with_conditions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingObservation:
    """The observations from which a binding's status is computed.

    - `wrong`: problems of the binding itself, or "".
    - `probe`, `rollout`: None until the first one has finished.
    - `leads`: whether a syncer leads.
    """

    binding: ClusterBinding
    wrong: str = ""
    probe: ProbeResult | None = None
    rollout: RolloutResult | None = None
    leads: bool = False


def oldest_claimant(binding: ClusterBinding, others: Iterable[ClusterBinding]) -> ClusterBinding:
    """Return the binding that owns its clusterID: the oldest of all bindings with that clusterID.

    Timestamps are in seconds: of two equally old bindings the one that is rolled out owns the
    clusterID, because the other could not adopt its objects.
    """
    claiming = [each for each in others if each.spec.cluster_id == binding.spec.cluster_id]
    return min((binding, *claiming), key=_seniority)


def _seniority(binding: ClusterBinding) -> tuple[str, bool, str]:
    return binding.metadata.creation_timestamp or "", not rolled_out(binding), binding.name


def cluster_id_prefixes(cluster_id: str) -> tuple[str, ...]:
    """Return the clusterIDs whose virtual nodes can have the same names as this one's.

    These are the clusterID itself, and its prefixes that end before a dash.
    """
    parts = cluster_id.split("-")
    return tuple("-".join(parts[:count]) for count in range(1, len(parts) + 1))


def _overlapped(binding: ClusterBinding, others: Iterable[ClusterBinding]) -> ClusterBinding | None:
    """Return an older binding whose virtual nodes can have the same names, if any.

    None if this binding is rolled out already.
    """
    if rolled_out(binding):
        return None
    cluster_id = binding.spec.cluster_id
    overlapping = (
        each
        for each in others
        if each.spec.cluster_id != cluster_id
        and (
            cluster_id in cluster_id_prefixes(each.spec.cluster_id)
            or each.spec.cluster_id in cluster_id_prefixes(cluster_id)
        )
    )
    older = (each for each in overlapping if _seniority(each) < _seniority(binding))
    return min(older, key=_seniority, default=None)


def problems_of_binding(binding: ClusterBinding, others: Collection[ClusterBinding]) -> str:
    """Describe the problems of a binding, including a clusterID that `others` use; "" if none."""
    invalid = list(blocking(problems(binding.spec)))
    holder = oldest_claimant(binding, others)
    if holder.name != binding.name:
        message = f"must be unique; binding {holder.name} has it already"
        invalid.append(Problem("spec.clusterID", binding.spec.cluster_id, message))
    elif (older := _overlapped(binding, others)) is not None:
        theirs = f"'{older.spec.cluster_id}' of binding {older.name}"
        message = f"must not allow the same names of virtual nodes as {theirs}, which is older"
        invalid.append(Problem("spec.clusterID", binding.spec.cluster_id, message))
    return describe(invalid)


def rolled_out(binding: ClusterBinding) -> bool:
    """Whether this implementation has rolled out the binding.

    The earlier implementation wrote no observedGeneration.
    """
    condition = find_condition(binding.status.conditions, api_conditions.SYNCER_READY)
    return condition is not None and condition.observed_generation > 0


def contradicts(binding: ClusterBinding, probe: ProbeResult) -> bool:
    """Whether the condition Connected contradicts the result of the probe."""
    connected = find_condition(binding.status.conditions, api_conditions.CONNECTED)
    return connected is not None and connected.status != _connection(probe, 0).status


def _connection(probe: ProbeResult, generation: int) -> Condition:
    if probe.answers:
        return api_conditions.CONNECTION_PASSED.condition(generation=generation)
    return api_conditions.CONNECTION_FAILED.condition(generation=generation, error=probe.error)


def _connected(observation: BindingObservation) -> Condition | None:
    """Return the condition Connected if the manager has to write it, else None."""
    if observation.probe is None:
        return None
    before = find_condition(observation.binding.status.conditions, api_conditions.CONNECTED)
    after = _connection(observation.probe, observation.binding.metadata.generation)
    if before is None:
        return after
    ours = after.reason == before.reason == api_conditions.CONNECTION_FAILED.reason
    return None if observation.leads or (before.status == after.status and not ours) else after


def status_of(observation: BindingObservation, *, now: str) -> BindingStatus:
    """Return the status that a binding should have; fields of other writers stay unchanged."""
    before, generation = observation.binding.status, observation.binding.metadata.generation
    conditions = before.conditions
    for condition in _conditions(observation):
        conditions = set_condition(conditions, condition, now=now)
    phase, ready = _ready(observation, conditions or ())
    became_ready = phase is BindingPhase.READY and before.phase != phase
    observed = observation.wrong or observation.probe is not None
    return msgspec.structs.replace(
        before,
        phase=str(phase),
        conditions=set_condition(conditions, ready, now=now),
        last_sync_time=now if became_ready else before.last_sync_time,
        observed_generation=generation if observed else before.observed_generation,
        credential_expiration_time=_expiry(observation),
        secret_namespaces=(
            observation.rollout.secret_namespaces
            if observation.rollout is not None
            else before.secret_namespaces
        ),
    )


def _expiry(observation: BindingObservation) -> str | None:
    """Return when the credential expires; until a probe has observed that, the present value."""
    probe = observation.probe
    if probe is None or probe.credential is None:
        return observation.binding.status.credential_expiration_time
    return text_of(probe.credential.ends)


def _conditions(observation: BindingObservation) -> Iterator[Condition]:
    generation, probe = observation.binding.metadata.generation, observation.probe
    if observation.wrong:
        return
    yield from _trust(observation.binding)
    yield from _credential(observation)
    if (connected := _connected(observation)) is not None:
        yield connected
    if probe is not None and probe.missing:
        missing = "; ".join(probe.missing)
        yield api_conditions.PERMISSIONS_MISSING.condition(generation=generation, missing=missing)
    elif probe is not None and probe.fit:
        without = f"; add-ons without permissions: {', '.join(probe.without)}"
        notes = without if probe.without else ""
        yield api_conditions.PERMISSIONS_GRANTED.condition(generation=generation, notes=notes)
    if observation.rollout is not None:
        yield _component(observation.rollout.syncer, generation, _SYNCER)
        yield _component(observation.rollout.proxier, generation, _PROXIER)


def _trust(binding: ClusterBinding) -> Iterator[Condition]:
    """Yield the condition WorkerTrustedFully, if it is or was true."""
    generation = binding.metadata.generation
    if binding.spec.trusts_fully:
        yield api_conditions.WORKER_TRUSTED_FULLY.condition(generation=generation)
    elif find_condition(binding.status.conditions, api_conditions.WORKER_TRUSTED) is not None:
        yield api_conditions.WORKER_TRUSTED_LIKE_A_KUBELET.condition(generation=generation)


def _credential(observation: BindingObservation) -> Iterator[Condition]:
    """Yield the condition CredentialValid, if the expiry of the credential is or was known."""
    binding, probe = observation.binding, observation.probe
    report = probe.credential if probe is not None else None
    if report is None:
        return
    generation = binding.metadata.generation
    if report.ends is None:
        if find_condition(binding.status.conditions, api_conditions.CREDENTIAL_VALID) is not None:
            yield api_conditions.CREDENTIAL_UNKNOWN.condition(generation=generation)
        return
    if report.error:
        template = api_conditions.CREDENTIAL_NOT_RENEWED
    elif report.renews:
        template = api_conditions.CREDENTIAL_RENEWED
    else:
        template = (
            api_conditions.CREDENTIAL_EXPIRES if report.due else api_conditions.CREDENTIAL_KEPT
        )
    reference = binding.spec.secret_ref
    yield template.condition(
        generation=generation,
        ends=text_of(report.ends),
        error=report.error,
        command=join_command(binding, "--renew"),
        secret=f"{reference.namespace}/{reference.name}",
    )


class _ComponentConditions(NamedTuple):
    created: ConditionTemplate
    updating: ConditionTemplate
    not_ready: ConditionTemplate
    not_set_up: ConditionTemplate


_SYNCER = _ComponentConditions(
    api_conditions.SYNCER_CREATED,
    api_conditions.SYNCER_UPDATING,
    api_conditions.SYNCER_NOT_READY,
    api_conditions.SYNCER_NOT_SET_UP,
)
_PROXIER = _ComponentConditions(
    api_conditions.PROXIER_CREATED,
    api_conditions.PROXIER_UPDATING,
    api_conditions.PROXIER_NOT_READY,
    api_conditions.PROXIER_NOT_SET_UP,
)


def _component(side: ComponentState, generation: int, verdicts: _ComponentConditions) -> Condition:
    verdict = verdicts.updating if side.ready else verdicts.not_ready
    if side.is_ready:
        verdict = verdicts.created
    elif side.failed:
        verdict = verdicts.not_set_up
    return verdict.condition(generation=generation, reason=side.reason)


def _ready(
    observation: BindingObservation, conditions: Iterable[Condition]
) -> tuple[BindingPhase, Condition]:
    generation, probe = observation.binding.metadata.generation, observation.probe
    failed, pending = BindingPhase.FAILED, BindingPhase.PENDING
    if observation.wrong:
        return failed, api_conditions.BINDING_INVALID.condition(
            generation=generation, problems=observation.wrong
        )
    if probe is None:
        return _unchanged(observation)
    if (error := _disconnected(probe, conditions)) is not None:
        return failed, api_conditions.BINDING_DISCONNECTED.condition(
            generation=generation, error=error
        )
    if probe.cause is Cause.NAMESPACE:
        unprepared = api_conditions.BINDING_UNPREPARED.condition(
            generation=generation, error=probe.error
        )
        return failed, unprepared
    if probe.cause is Cause.RIGHTS:
        return failed, api_conditions.BINDING_FORBIDDEN.condition(
            generation=generation, missing=probe.error
        )
    if observation.rollout is None:
        return pending, api_conditions.BINDING_INITIALIZING.condition(
            generation=generation, waits=""
        )
    return _rollout_state(observation, observation.rollout)


def _unchanged(observation: BindingObservation) -> tuple[BindingPhase, Condition]:
    """Return the present phase and Ready condition, or Pending if the binding has none yet."""
    before = find_condition(observation.binding.status.conditions, api_conditions.READY)
    if before is not None and observation.binding.status.phase in tuple(BindingPhase):
        return BindingPhase(observation.binding.status.phase), before
    generation = observation.binding.metadata.generation
    return BindingPhase.PENDING, api_conditions.BINDING_INITIALIZING.condition(
        generation=generation, waits=""
    )


def _disconnected(probe: ProbeResult, conditions: Iterable[Condition]) -> str | None:
    """Return why the worker is not connected, from the probe or from the syncer's condition."""
    if not probe.answers:
        return probe.error
    connected = find_condition(conditions, api_conditions.CONNECTED)
    return connected.message if connected is not None and connected.status != "True" else None


def _rollout_state(
    observation: BindingObservation, rollout: RolloutResult
) -> tuple[BindingPhase, Condition]:
    generation = observation.binding.metadata.generation
    components = (
        (rollout.proxier, api_conditions.BINDING_PROXIER_FAILED),
        (rollout.syncer, api_conditions.BINDING_SYNCER_FAILED),
    )
    for side, verdict in components:
        if side.failed:
            error = verdict.condition(generation=generation, error=side.reason)
            return BindingPhase.FAILED, error
    for side, verdict in components:
        if side.ready:
            continue
        if observation.binding.status.last_sync_time:  # the binding was ready before
            error = verdict.condition(generation=generation, error=side.reason)
            return BindingPhase.FAILED, error
        waits = api_conditions.BINDING_INITIALIZING.condition(
            generation=generation, waits=f"; {side.reason}"
        )
        return BindingPhase.PENDING, waits
    return BindingPhase.READY, api_conditions.BINDING_READY.condition(generation=generation)


def status_events(before: BindingStatus, after: BindingStatus) -> Iterator[StatusEvent]:
    """Yield the events to emit after a changed status was written."""
    if not before.phase:
        message = f"The manager has validated the binding; it is {after.phase}"
        yield StatusEvent("Normal", BindingEvent.STATUS_UPDATED, message)
    if before.observed_generation != after.observed_generation:
        message = f"Reconciled generation {after.observed_generation} of the binding"
        yield StatusEvent("Normal", BindingEvent.RECONCILING, message)
    credential = find_condition(after.conditions, api_conditions.CREDENTIAL_VALID)
    earlier = find_condition(before.conditions, api_conditions.CREDENTIAL_VALID)
    reported = (
        earlier is not None and credential is not None and earlier.reason == credential.reason
    )
    if credential is not None and credential.status == "False" and not reported:
        yield StatusEvent("Warning", credential.reason, credential.message)
    reported_before = before.secret_namespaces.refused or ()
    if refused := [
        each for each in after.secret_namespaces.refused or () if each not in reported_before
    ]:
        first, more = refused[0], len(refused) - 1
        others = f" (and {more} more namespaces, see status.secretNamespaces)" if more else ""
        message = f"The syncer may not read Secrets in namespace {first.namespace}: {first.reason}"
        yield StatusEvent("Warning", BindingEvent.SECRETS_REFUSED, message + others)
    old = find_condition(before.conditions, api_conditions.READY)
    new = find_condition(after.conditions, api_conditions.READY)
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return
    if new.status == "True":
        yield StatusEvent("Normal", BindingEvent.READY, new.message)
    elif new.reason != api_conditions.BINDING_INITIALIZING.reason:
        yield StatusEvent("Warning", new.reason, new.message)


_WRITTEN_FIELDS = (
    "phase",
    "conditions",
    "lastSyncTime",
    "observedGeneration",
    "credentialExpirationTime",
)


class StatusWriter:
    """Writes the status and the finalizers of bindings, and emits their events."""

    def __init__(
        self, client: Client, bindings: Informer[ClusterBinding], events: EventRecorder
    ) -> None:
        self._client = client
        self._bindings = bindings
        self._events = events

    async def write(self, binding: ClusterBinding, status: BindingStatus) -> ClusterBinding:
        """Write the binding's status if it differs; return the binding as written."""
        if status == binding.status:
            return binding
        fields: Json = msgspec.to_builtins(status)
        body: Json = {
            "metadata": {"resourceVersion": binding.resource_version},
            "status": {name: fields[name] for name in _WRITTEN_FIELDS if name in fields},
        }
        if binding.status.credential_expiration_time and not status.credential_expiration_time:
            body["status"]["credentialExpirationTime"] = None
        if status.secret_namespaces != binding.status.secret_namespaces:
            namespaces: Json = msgspec.to_builtins(status.secret_namespaces)
            # The syncer writes the requested ones.
            granted = {name: namespaces.get(name) for name in ("granted", "refused")}
            body["status"]["secretNamespaces"] = granted
        written = await self._patch(binding, body, subresource="status")
        for event in status_events(binding.status, status):
            self.emit(binding, event.type, event.reason, event.message)
        return written

    async def finalize(self, binding: ClusterBinding, finalizers: Iterable[str]) -> ClusterBinding:
        """Replace the finalizers of the binding."""
        metadata = {"resourceVersion": binding.resource_version, "finalizers": list(finalizers)}
        return await self._patch(binding, {"metadata": metadata})

    def emit(self, binding: ClusterBinding, type_: EventType, reason: str, message: str) -> None:
        """Emit an event for the binding."""
        self._events.emit(reference(CLUSTER_BINDINGS, binding), type_, reason, message)

    async def _patch(
        self, binding: ClusterBinding, body: Json, *, subresource: str = ""
    ) -> ClusterBinding:
        try:
            written = await self._client.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch(body), subresource=subresource
            )
        except NotFound:
            return binding  # deleted meanwhile
        self._bindings.wrote(written)
        return written


def with_conditions(
    status: BindingStatus, conditions: Iterable[Condition], *, now: str
) -> BindingStatus:
    """Return a binding's status with these conditions set."""
    merged = status.conditions
    for condition in conditions:
        merged = set_condition(merged, condition, now=now)
    return msgspec.structs.replace(status, conditions=merged)
