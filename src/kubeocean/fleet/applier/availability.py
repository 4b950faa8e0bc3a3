"""Availability: whether an applied object works, as its status reports.

A kind whose availability can be computed has a tracker, a function of the object as the member
returned it. An object of another kind is not trackable: its Work counts it as available at once, a
rollout only after unavailablePeriodSeconds.

KubeFleet tracks Deployments, StatefulSets, DaemonSets, Services, CustomResourceDefinitions and
PodDisruptionBudgets, and takes kinds that only hold data as available at once (`TRACKERS`).
`EXTENSIONS` are Kubeocean's: Jobs, CronJobs, PersistentVolumeClaims, and custom resources that
report a condition. They change the status of placements, so one flag switches all of them off: an
applier looks up trackers with `kubefleet_tracker` or `extended_tracker`. If a user gives an
expression for the object or its kind (`health_checks`), the expression replaces the tracker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from kubeocean.api.fleet.conditions import Availability
from kubeocean.api.fleet.names import ANNOTATION_AVAILABLE_WHEN
from kubeocean.runtime.objects import Json

__all__ = [
    "EXTENSIONS",
    "TRACKERS",
    "Tracker",
    "TrackerOf",
    "annotated_expression",
    "availability_of",
    "extended_tracker",
    "follows_status",
    "kubefleet_tracker",
    "track_conditions",
]


Tracker: TypeAlias = Callable[[Json], Availability]
TrackerOf: TypeAlias = Callable[[str, str], Tracker | None]  # for a group and a kind


def kubefleet_tracker(group: str, kind: str) -> Tracker | None:
    """Return the tracker of a kind; None if KubeFleet does not track the kind."""
    return TRACKERS.get((group, kind))


def extended_tracker(group: str, kind: str) -> Tracker | None:
    """Return the tracker of a kind that KubeFleet tracks or that Kubeocean adds; else None."""
    return TRACKERS.get((group, kind)) or EXTENSIONS.get((group, kind)) or _custom_tracker(group)


def follows_status(group: str, kind: str, tracker_of: TrackerOf) -> bool:
    """Whether the availability of a kind's objects may change with their status alone."""
    return tracker_of(group, kind) not in (None, _at_once)


def availability_of(obj: Json, tracker_of: TrackerOf) -> Availability:
    """Return the availability of an applied object by the tracker of its kind.

    An object whose fields are not of the types that its kind has is FAILED.
    """
    group, _, _ = str(obj.get("apiVersion", "")).rpartition("/")
    tracker = tracker_of(group, str(obj.get("kind", "")))
    if tracker is None:
        return Availability.NOT_TRACKABLE
    try:
        return tracker(obj)
    except (AttributeError, TypeError, ValueError):
        return Availability.FAILED


def annotated_expression(manifest: Json) -> str | None:
    """Return the expression in the annotation of a manifest; None without the annotation."""
    metadata = manifest.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(ANNOTATION_AVAILABLE_WHEN) if isinstance(annotations, dict) else None
    return None if value is None else str(value)


def _when(condition: bool) -> Availability:
    return Availability.AVAILABLE if condition else Availability.NOT_YET


def _spec(obj: Json) -> Json:
    return obj.get("spec") or {}


def _status(obj: Json) -> Json:
    return obj.get("status") or {}


def _count(part: Mapping[str, Any], name: str) -> int:
    return int(part.get(name) or 0)


def _is_observed(obj: Json) -> bool:
    """Whether the object's controller has observed its present generation."""
    return _count(_status(obj), "observedGeneration") == _count(obj["metadata"], "generation")


def _conditions(obj: Json) -> Iterator[Json]:
    for condition in _status(obj).get("conditions") or ():
        if isinstance(condition, dict):
            yield condition


def _condition(obj: Json, type_: str) -> Json:
    return next((each for each in _conditions(obj) if each.get("type") == type_), {})


def _is_true(obj: Json, type_: str) -> bool:
    return _condition(obj, type_).get("status") == "True"


def _replicas(obj: Json) -> int:
    replicas = _spec(obj).get("replicas")
    return 1 if replicas is None else int(replicas)


def _deployment(obj: Json) -> Availability:
    status, replicas = _status(obj), _replicas(obj)
    return _when(
        _is_observed(obj)
        and _count(status, "availableReplicas") == replicas
        and _count(status, "updatedReplicas") == replicas
        and _count(status, "unavailableReplicas") == 0
    )


def _stateful_set(obj: Json) -> Availability:
    status = _status(obj)
    return _when(
        _is_observed(obj)
        and _count(status, "availableReplicas") == _replicas(obj)
        and _count(status, "currentReplicas") == _count(status, "updatedReplicas")
        and status.get("currentRevision") == status.get("updateRevision")
    )


def _daemon_set(obj: Json) -> Availability:
    status = _status(obj)
    scheduled, updated = "currentNumberScheduled", "updatedNumberScheduled"
    return _when(
        _is_observed(obj)
        and _count(status, "numberAvailable") == _count(status, "desiredNumberScheduled")
        and _count(status, scheduled) == _count(status, updated)
    )


def _service(obj: Json) -> Availability:
    spec = _spec(obj)
    match spec.get("type") or "ClusterIP":
        case "ClusterIP" | "NodePort":
            addresses = spec.get("clusterIPs") or [spec.get("clusterIP")]
            return _when(bool(addresses[0]))  # a headless Service has the text None
        case "LoadBalancer":
            ingress = (_status(obj).get("loadBalancer") or {}).get("ingress") or [{}]
            return _when(bool(ingress[0].get("ip") or ingress[0].get("hostname")))
        case _:
            return Availability.NOT_TRACKABLE


def _definition(obj: Json) -> Availability:
    return _when(_is_true(obj, "Established") and _is_true(obj, "NamesAccepted"))


def _disruption_budget(obj: Json) -> Availability:
    """Return the availability of a PodDisruptionBudget.

    Its condition has to agree with the number of disruptions that are allowed now.
    """
    condition = _condition(obj, "DisruptionAllowed")
    if _count(_status(obj), "disruptionsAllowed") > 0:
        expected = ("True", "SufficientPods")
    else:
        expected = ("False", "InsufficientPods")
    current = condition.get("status"), condition.get("reason")
    return _when(_is_observed(obj) and current == expected)


def _at_once(obj: Json) -> Availability:
    return Availability.AVAILABLE


TRACKERS: Final[Mapping[tuple[str, str], Tracker]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("", "Service"): _service,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
    ("policy", "PodDisruptionBudget"): _disruption_budget,
    ("", "Namespace"): _at_once,
    ("", "Secret"): _at_once,
    ("", "ConfigMap"): _at_once,
    ("rbac.authorization.k8s.io", "Role"): _at_once,
    ("rbac.authorization.k8s.io", "ClusterRole"): _at_once,
    ("rbac.authorization.k8s.io", "RoleBinding"): _at_once,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _at_once,
    ("", "ServiceAccount"): _at_once,
    ("networking.k8s.io", "NetworkPolicy"): _at_once,
    ("storage.k8s.io", "CSIDriver"): _at_once,
    ("storage.k8s.io", "CSINode"): _at_once,
    ("storage.k8s.io", "StorageClass"): _at_once,
    ("storage.k8s.io", "CSIStorageCapacity"): _at_once,
    ("apps", "ControllerRevision"): _at_once,
    ("networking.k8s.io", "IngressClass"): _at_once,
    ("", "LimitRange"): _at_once,
    ("", "ResourceQuota"): _at_once,
    ("scheduling.k8s.io", "PriorityClass"): _at_once,
}


# --- extensions


def _job(obj: Json) -> Availability:
    """Return the availability of a Job: available once complete; not trackable if suspended."""
    if _spec(obj).get("suspend"):
        return Availability.NOT_TRACKABLE
    return _when(_is_true(obj, "Complete"))


def _cron_job(obj: Json) -> Availability:
    suspended = _spec(obj).get("suspend")
    return Availability.NOT_TRACKABLE if suspended else Availability.AVAILABLE


def _volume_claim(obj: Json) -> Availability:
    """Return the availability of a PersistentVolumeClaim.

    A pending claim is not trackable, because it may wait for its first pod.
    """
    match _status(obj).get("phase"):
        case "Bound":
            return Availability.AVAILABLE
        case "Lost":
            return Availability.NOT_YET
        case _:
            return Availability.NOT_TRACKABLE


def track_conditions(obj: Json) -> Availability:
    """Return the availability of a custom resource by its condition `Ready`, else `Available`.

    A condition of an earlier generation of the object does not count.
    """
    condition = _condition(obj, "Ready") or _condition(obj, "Available")
    if not condition:
        return Availability.NOT_TRACKABLE
    seen = condition.get("observedGeneration") or _status(obj).get("observedGeneration")
    stale = seen is not None and int(seen) < _count(obj["metadata"], "generation")
    return _when(condition.get("status") == "True" and not stale)


EXTENSIONS: Final[Mapping[tuple[str, str], Tracker]] = {
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    ("", "PersistentVolumeClaim"): _volume_claim,
}


def _custom_tracker(group: str) -> Tracker | None:
    """Return the tracker by conditions for a custom resource's group; None for Kubernetes' groups.

    Groups of Kubernetes' own kinds have no dot, or end with k8s.io.
    """
    return track_conditions if "." in group and not group.endswith(".k8s.io") else None
