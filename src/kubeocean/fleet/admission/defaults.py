"""Defaults of ClusterResourcePlacements that depend on other fields, and so are not in the schema.

Controllers assume the same values in memory for a placement that was stored without defaults. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kubeocean.api.fleet.policies import PlacementType, TolerationOperator, UnsatisfiableAction
from kubeocean.api.fleet.strategies import (
    ApplyStrategyType,
    ComparisonOption,
    RolloutStrategyType,
    WhenToApply,
    WhenToTakeOver,
)
from kubeocean.fleet.admission.reviews import ALLOWED, Decision, Request
from kubeocean.runtime.objects import Json

__all__ = ["decide_defaults", "defaulted_spec"]

_APPLY: Final = {
    "type": str(ApplyStrategyType.CLIENT_SIDE_APPLY),
    "comparisonOption": str(ComparisonOption.PARTIAL),
    "whenToApply": str(WhenToApply.ALWAYS),
    "whenToTakeOver": str(WhenToTakeOver.ALWAYS),
}
_ROLLING: Final = {"maxUnavailable": "25%", "maxSurge": "25%", "unavailablePeriodSeconds": 60}
_HISTORY: Final = 10
_SPREAD: Final = {"maxSkew": 1, "whenUnsatisfiable": str(UnsatisfiableAction.DO_NOT_SCHEDULE)}
_TOLERATION: Final = {"operator": str(TolerationOperator.EQUAL)}


def decide_defaults(request: Request) -> Decision:
    """Return a patch that adds the defaults which a ClusterResourcePlacement lacks.

    :raises BadReview: the object in the request cannot be read.
    """
    document = request.document()
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and metadata.get("deletionTimestamp"):
        return ALLOWED
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return ALLOWED  # the schema refuses such an object
    return Decision(True, patch=tuple(_additions(spec, defaulted_spec(spec), "/spec")))


def defaulted_spec(spec: Json) -> Json:
    """Return the spec of a ClusterResourcePlacement with all defaults.

    Fields of unexpected types stay as they are: the schema refuses them.
    """
    policy: Any = spec.get("policy")
    policy = {"placementType": str(PlacementType.PICK_ALL)} if policy is None else policy
    if isinstance(policy, dict):
        policy = _with_items(policy, "topologySpreadConstraints", _SPREAD)
        policy = _with_items(policy, "tolerations", _TOLERATION)
    strategy: Any = spec.get("strategy")
    strategy = {} if strategy is None else strategy
    if isinstance(strategy, dict):
        strategy = _defaulted_strategy(strategy)
    history = {"revisionHistoryLimit": _HISTORY}
    return {**_filled(spec, history), "policy": policy, "strategy": strategy}


def _defaulted_strategy(strategy: Json) -> Json:
    strategy = _filled(strategy, {"type": str(RolloutStrategyType.ROLLING_UPDATE)})
    if strategy["type"] == RolloutStrategyType.ROLLING_UPDATE:
        strategy["rollingUpdate"] = _filled(strategy.get("rollingUpdate"), _ROLLING)
    apply = _filled(strategy.get("applyStrategy"), _APPLY)
    if isinstance(apply, dict) and apply["type"] == ApplyStrategyType.SERVER_SIDE_APPLY:
        apply = _filled(apply, {"serverSideApplyConfig": {"force": False}})
    return strategy | {"applyStrategy": apply}


def _with_items(policy: Json, field: str, defaults: Json) -> Json:
    items = policy.get(field)
    if not isinstance(items, list) or not items:
        return policy
    return policy | {field: [_filled(item, defaults) for item in items]}


def _filled(value: Any, defaults: Json) -> Any:
    """Return a mapping with the `defaults` that `value` lacks; `value` itself if not a mapping."""
    if value is None:
        return dict(defaults)
    if not isinstance(value, dict):
        return value
    present = {key: each for key, each in value.items() if each is not None or key not in defaults}
    return {**defaults, **present}


def _additions(old: Any, new: Any, path: str) -> Iterator[Json]:
    """Yield the operations of JSON Patch that turn `old` into `new`, which only has more fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in new.items():
            pointer = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if old.get(key) is None and value is not None:
                yield {"op": "add", "path": pointer, "value": value}
            else:
                yield from _additions(old.get(key), value, pointer)
    elif isinstance(old, list) and isinstance(new, list):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _additions(before, after, f"{path}/{index}")
