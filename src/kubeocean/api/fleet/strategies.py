"""Strategies of placements: how changes reach the picked clusters, and how objects are written."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from kubeocean.api.fleet.schema import V1BETA1, IntOrString, Part, field
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Json

__all__ = [
    "ApplyStrategy",
    "ApplyStrategyType",
    "ComparisonOption",
    "DeletePropagationPolicy",
    "DeleteStrategy",
    "ReportBackDestination",
    "ReportBackStrategy",
    "ReportBackType",
    "RollingUpdate",
    "RolloutStrategy",
    "RolloutStrategyType",
    "ServerSideApplyConfig",
    "WhenToApply",
    "WhenToTakeOver",
]


class RolloutStrategyType(StrEnum):
    """Which controller rolls changes out: the hub's rollout controller, or an external one."""

    ROLLING_UPDATE = "RollingUpdate"
    EXTERNAL = "External"


class ApplyStrategyType(StrEnum):
    """Types of apply: client-side apply, server-side apply, or only a report of differences."""

    CLIENT_SIDE_APPLY = "ClientSideApply"
    SERVER_SIDE_APPLY = "ServerSideApply"
    REPORT_DIFF = "ReportDiff"


class ComparisonOption(StrEnum):
    """Which fields count when an object is compared with its manifest."""

    PARTIAL = "PartialComparison"
    FULL = "FullComparison"


class WhenToApply(StrEnum):
    """Whether an object that was changed in the member is overwritten."""

    ALWAYS = "Always"
    IF_NOT_DRIFTED = "IfNotDrifted"


class WhenToTakeOver(StrEnum):
    """Whether an object that existed in the member before the placement is taken over."""

    ALWAYS = "Always"
    IF_NO_DIFF = "IfNoDiff"
    NEVER = "Never"


class DeletePropagationPolicy(StrEnum):
    """Effects of deleting a placement on the objects that it placed."""

    DELETE = "Delete"
    ABANDON = "Abandon"


class ReportBackType(StrEnum):
    """Whether the status of placed objects is reported to the hub."""

    DISABLED = "Disabled"
    MIRROR = "Mirror"


class ReportBackDestination(StrEnum):
    """Where the status of placed objects is reported."""

    ORIGINAL_RESOURCE = "OriginalResource"
    WORK_API = "WorkAPI"


class RollingUpdate(Part, frozen=True):
    """Limits of a rolling update."""

    max_unavailable: Annotated[
        IntOrString,
        field(
            "Clusters that may be unavailable at a time, as a number or a percentage.",
            defaulted=True,
            pattern="^((100|[0-9]{1,2})%|[0-9]+)$",
        ),
    ] = "25%"
    max_surge: Annotated[
        IntOrString,
        field(
            "Clusters that may be placed on beyond the wanted number, as a number or a percentage.",
            defaulted=True,
            pattern="^((100|[0-9]{1,2})%|[0-9]+)$",
        ),
    ] = "25%"
    unavailable_period_seconds: Annotated[
        int,
        field(
            "Seconds until an object whose availability cannot be observed counts as available.",
            defaulted=True,
            minimum=0,
        ),
    ] = 60


class ServerSideApplyConfig(Part, frozen=True):
    """Options of server-side apply."""

    force: Annotated[bool, field("Take over fields that others manage.")] = False


class ApplyStrategy(Part, frozen=True):
    """How objects are written in member clusters."""

    type: Annotated[
        str,
        field(
            "How objects are written; ReportDiff writes nothing and reports differences.",
            defaulted=True,
            enum=ApplyStrategyType,
        ),
    ] = ApplyStrategyType.CLIENT_SIDE_APPLY
    comparison_option: Annotated[
        str,
        field(
            "Whether only fields of the manifest are compared, or all fields.",
            defaulted=True,
            enum=ComparisonOption,
        ),
    ] = ComparisonOption.PARTIAL
    when_to_apply: Annotated[
        str,
        field(
            "Whether an object that was changed in the member is overwritten.",
            defaulted=True,
            enum=WhenToApply,
        ),
    ] = WhenToApply.ALWAYS
    when_to_take_over: Annotated[
        str,
        field(
            "Whether an object that existed in the member before is taken over.",
            defaulted=True,
            enum=WhenToTakeOver,
        ),
    ] = WhenToTakeOver.ALWAYS
    allow_co_ownership: Annotated[bool, field("Also write objects that others own as well.")] = (
        False
    )
    server_side_apply_config: Annotated[
        ServerSideApplyConfig | None, field("Options for the type ServerSideApply.")
    ] = None

    @property
    def forces_conflicts(self) -> bool:
        """Whether a server-side apply takes over fields of other field managers."""
        return self.server_side_apply_config is not None and self.server_side_apply_config.force


class DeleteStrategy(Part, frozen=True):
    """Rule for placed objects when their placement is deleted."""

    propagation_policy: Annotated[
        str,
        field(
            "Delete removes placed objects from members, Abandon leaves them there.",
            defaulted=True,
            enum=DeletePropagationPolicy,
        ),
    ] = DeletePropagationPolicy.DELETE


class ReportBackStrategy(Part, frozen=True):
    """Whether and where the status of placed objects is reported."""

    RULES: ClassVar[tuple[Json, ...]] = (
        rule(
            "self.type != 'Mirror' || has(self.destination)",
            "when reportBackStrategy.type is 'Mirror', a destination must be specified",
        ),
    )

    type: Annotated[
        str,
        field(
            "Whether the status of placed objects is reported to the hub.",
            required=True,
            defaulted=True,
            enum=ReportBackType,
        ),
    ] = ReportBackType.DISABLED
    destination: Annotated[
        str,
        field(
            "Where the status is reported: on the hub's object, if one cluster holds it, or in"
            " the Work.",
            enum=ReportBackDestination,
        ),
    ] = ""

    @property
    def is_for_originals(self) -> bool:
        """Whether statuses are written onto the hub's own objects."""
        return (
            self.type == ReportBackType.MIRROR
            and self.destination == ReportBackDestination.ORIGINAL_RESOURCE
        )


class RolloutStrategy(Part, frozen=True):
    """Rollout strategy of a placement: how changes reach the picked clusters."""

    type: Annotated[
        str,
        field(
            "RollingUpdate rolls changes out at once, External leaves that to staged update runs.",
            defaulted=True,
            enum=RolloutStrategyType,
        ),
    ] = RolloutStrategyType.ROLLING_UPDATE
    rolling_update: Annotated[RollingUpdate | None, field("Limits for the type RollingUpdate.")] = (
        None
    )
    apply_strategy: Annotated[
        ApplyStrategy, field("How objects are written in member clusters.")
    ] = ApplyStrategy()
    delete_strategy: Annotated[
        DeleteStrategy,
        field("Whether placed objects are deleted together with the placement.", only=(V1BETA1,)),
    ] = DeleteStrategy()
    report_back_strategy: Annotated[
        ReportBackStrategy,
        field("Whether and where the status of placed objects is reported.", only=(V1BETA1,)),
    ] = ReportBackStrategy()
