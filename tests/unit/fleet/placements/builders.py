"""Objects of placements for tests, with short arguments."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding, ResourceBindingSpec, ResourceBindingStatus
from kubeocean.api.fleet.placements import Placement, PlacementSpec, PlacementStatus
from kubeocean.api.fleet.policies import PlacementPolicy
from kubeocean.api.fleet.snapshots import ClusterDecision, PolicySnapshot
from kubeocean.api.fleet.strategies import (
    ApplyStrategy,
    ApplyStrategyType,
    RollingUpdate,
    RolloutStrategy,
)
from kubeocean.api.fleet.works import WorkStatus
from kubeocean.fleet.snapshots.documents import (
    SelectedContent,
    policy_document,
    resource_document,
    selected_content,
)
from kubeocean.fleet.works.views import CachedWork
from kubeocean.runtime.objects import Condition, Json, Meta, OwnerReference, Untyped

UID = "placement-uid"
NOW = "2026-01-01T00:00:00Z"
REPORT_DIFF = ApplyStrategy(type=ApplyStrategyType.REPORT_DIFF)


def a_placement(
    *,
    namespace: str = "",
    generation: int = 1,
    policy: PlacementPolicy | None = None,
    limit: int = 10,
    status: PlacementStatus | None = None,
    rolling: RollingUpdate | None = None,
    strategy: RolloutStrategy | None = None,
    **spec: Any,
) -> Placement:
    return Placement(
        metadata=Meta(name="app", namespace=namespace, uid=UID, generation=generation),
        spec=PlacementSpec(
            policy=policy or PlacementPolicy(),
            strategy=strategy or RolloutStrategy(rolling_update=rolling),
            revision_history_limit=limit,
            **spec,
        ),
        status=status or PlacementStatus(),
    )


def stored(body: Json, type_: Any, **metadata: Any) -> Any:
    """Return a document as a server would store it and a cache decode it."""
    meta = {"uid": f"uid-{body['metadata']['name']}", "generation": 1, "resourceVersion": "7"}
    body = body | {"metadata": body["metadata"] | meta | metadata}
    return msgspec.json.decode(msgspec.json.encode(body), type=type_)


def a_policy_snapshot(placement: Placement, index: int = 0, **metadata: Any) -> PolicySnapshot:
    snapshot: PolicySnapshot = stored(policy_document(placement, index), PolicySnapshot, **metadata)
    return snapshot


def scheduled(
    snapshot: PolicySnapshot,
    *selected: str,
    rejected: tuple[str, ...] = (),
    status: str = "True",
    observed: int = 1,
) -> PolicySnapshot:
    """Return a policy snapshot that the scheduler has decided on."""
    decisions = (
        *(ClusterDecision(name, selected=True, reason=f"picked {name}") for name in selected),
        *(ClusterDecision(name, reason=f"refused {name}") for name in rejected),
    )
    condition = Condition("Scheduled", status, "x", "decided", observed_generation=1)
    return msgspec.structs.replace(
        snapshot,
        status=msgspec.structs.replace(
            snapshot.status,
            observed_crp_generation=observed,
            conditions=(condition,),
            target_clusters=decisions,
        ),
    )


def content(*texts: str) -> SelectedContent:
    return selected_content(
        [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"c{number}", "namespace": "ns"},
                "data": {"text": text},
            }
            for number, text in enumerate(texts)
        ]
    )


def a_group(
    placement: Placement, index: int, selected: SelectedContent, *, latest: bool = True
) -> list[Untyped]:
    """Return the metadata of the resource snapshots of one index."""
    snapshots = []
    for part in range(len(selected.parts)):
        body = resource_document(placement, index, selected, part)
        if part == 0:
            body["metadata"]["labels"][names.LABEL_LATEST_SNAPSHOT] = str(latest).lower()
        snapshots.append(stored(body, Untyped, creationTimestamp=NOW))
    return snapshots


def a_binding(
    cluster: str,
    *,
    state: str = "Bound",
    snapshot: str = "app-0-snapshot",
    policy: str = "app-0",
    deleting: bool = False,
    generation: int = 1,
    conditions: tuple[Condition, ...] = (),
    namespace: str = "",
    strategy: ApplyStrategy | None = None,
    **status: Any,
) -> Binding:
    return Binding(
        metadata=Meta(
            name=f"app-{cluster}-00000000",
            namespace=namespace,
            uid=f"uid-{cluster}",
            generation=generation,
            labels={names.LABEL_PARENT_PLACEMENT: "app"},
            deletion_timestamp=NOW if deleting else None,
        ),
        spec=ResourceBindingSpec(
            state=state,
            target_cluster=cluster,
            resource_snapshot_name=snapshot,
            scheduling_policy_snapshot_name=policy,
            apply_strategy=strategy or ApplyStrategy(),
        ),
        status=ResourceBindingStatus(conditions=conditions, **status),
    )


def condition(
    type_: str, status: str = "True", reason: str = "r", *, generation: int = 1, since: str = NOW
) -> Condition:
    return Condition(type_, status, reason, "", since, generation)


def steps(*types: str, last: str = "True", generation: int = 1) -> tuple[Condition, ...]:
    """Return conditions that are True, but for the last one's status."""
    return tuple(
        condition(type_, last if type_ == types[-1] else "True", generation=generation)
        for type_ in types
    )


APPLIED = ("RolloutStarted", "Overridden", "WorkSynchronized", "Applied", "Available")


def a_work(name: str = "app-work", *, generation: int = 1, status: WorkStatus | None = None) -> Any:
    return CachedWork(
        metadata=Meta(
            name=name,
            namespace="fleet-member-a",
            uid=f"uid-{name}",
            generation=generation,
            labels={
                names.LABEL_PARENT_PLACEMENT: "app",
                names.LABEL_PARENT_BINDING: "app-a-00000000",
            },
        ),
        status=status or WorkStatus(),
    )


def owned_by(uid: str) -> tuple[OwnerReference, ...]:
    return (OwnerReference(uid=uid),)
