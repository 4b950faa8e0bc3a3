"""Health checks: expressions of users that decide whether an applied object is available.

The annotation `kubeocean.io/available-when` of a manifest holds the expression of one object. The
file of `--health-checks` holds the expressions of kinds, for objects without the annotation. Both
come before the trackers of `availability`, for every kind. `expressions` describes the language.

The annotation of the manifest counts, not that of the object in the member, which others can edit.
An expression that is invalid for an object makes that object's availability Failed, and no other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from kubeocean.api.fleet.conditions import Availability
from kubeocean.api.fleet.names import ANNOTATION_AVAILABLE_WHEN
from kubeocean.errors import ConfigError
from kubeocean.fleet.applier.availability import annotated_expression
from kubeocean.fleet.applier.expression_process import ExpressionProcess
from kubeocean.fleet.applier.expressions import LONGEST, ExpressionProblem
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.documents import parse_yaml
from kubeocean.runtime.objects import Json

__all__ = [
    "GroupKind",
    "HealthCheck",
    "HealthChecks",
    "Observation",
    "observation",
    "read_health_checks",
]

FLAG: Final = "--health-checks"
_SHOWN_CHARS: Final = 200  # of an expression, in a message

GroupKind: TypeAlias = tuple[str, str]


class HealthCheck(NamedTuple):
    """The expression for an object, and the name of the annotation or flag that holds it."""

    expression: str
    source: str


class Observation(NamedTuple):
    """Availability of an object; an empty message means the default message of the availability.

    `lasts` is False if the availability may change while the object stays as it is.
    """

    availability: Availability
    message: str = ""
    lasts: bool = True


class HealthChecks:
    """Finds and evaluates the health checks of objects; `by_kind` are those of kinds."""

    def __init__(
        self, by_kind: Mapping[GroupKind, str] | None = None, *, clock: Clock | None = None
    ) -> None:
        self._by_kind = dict(by_kind or {})
        self._process = ExpressionProcess(clock=clock)

    def check_of(self, manifest: Json) -> HealthCheck | None:
        """Return the health check of a manifest's object; None if it has none."""
        if (expression := annotated_expression(manifest)) is not None:
            return HealthCheck(expression, f"the annotation {ANNOTATION_AVAILABLE_WHEN}")
        group, _, _ = str(manifest.get("apiVersion", "")).rpartition("/")
        by_kind = self._by_kind.get((group, str(manifest.get("kind", ""))))
        return None if by_kind is None else HealthCheck(by_kind, f"{FLAG} of the member's agent")

    async def observe(self, check: HealthCheck, live: Json) -> Observation:
        """Return the availability of an object in the member by its health check."""
        return observation(check, await self._process.evaluate(check.expression, live))

    async def close(self) -> None:
        """End the process that evaluates expressions."""
        await self._process.close()


def observation(check: HealthCheck, value: bool | ExpressionProblem) -> Observation:
    """Return the availability of an object for which the expression has this value."""
    shown = " ".join(check.expression.split())
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[: _SHOWN_CHARS - 1]}…"
    if value is True:
        return Observation(Availability.AVAILABLE, f"the object is available: {shown} is true")
    if value is False:
        message = f"the object is not available yet: {shown} is false"
        return Observation(Availability.NOT_YET, message)
    if value.is_missing:
        message = f"the object is not available yet: {value.message}, which {shown} reads"
        return Observation(Availability.NOT_YET, message)
    remedy = "" if value.is_passing else f"; correct {check.source}"
    message = f"the health check {shown} could not be evaluated: {value.message}{remedy}"
    return Observation(Availability.FAILED, message, lasts=not value.is_passing)


def read_health_checks(content: bytes, source: str) -> dict[GroupKind, str]:
    """Parse the file of `--health-checks`: a YAML mapping from KIND.GROUP to an expression.

    Kinds of Kubernetes' core group have no group: `ConfigMap`. An invalid expression is no error
    here: it shows in the conditions of the objects of its kind.

    :raises ConfigError: the file is not such a mapping.
    """
    document: Any = parse_yaml(content, source=source)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError("must be a mapping from KIND.GROUP to an expression", source=source)
    checks: dict[GroupKind, str] = {}
    for name, expression in document.items():
        kind, dot, group = str(name).partition(".")
        if not kind[:1].isupper() or not kind.isalnum() or bool(dot) != bool(group):
            message = "must be KIND or KIND.GROUP, such as Deployment.apps"
            raise ConfigError(message, source=source, value=str(name))
        if not isinstance(expression, str) or len(expression) > LONGEST:
            message = f"must be an expression, a text of at most {LONGEST} characters"
            raise ConfigError(message, source=source, field=str(name))
        checks[group, kind] = expression
    return checks
