"""Rules for MemberClusters that the schema cannot express. Pure.

A member's namespace is `fleet-member-NAME`, which is too long for a Namespace if NAME has more than
50 characters. Creating such a MemberCluster is refused; an existing MemberCluster with such a name
can be changed and deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubeocean.api.fleet.clusters import (
    LONGEST_NAME,
    ClusterTaint,
    DeleteValidationMode,
    MemberCluster,
)
from kubeocean.api.fleet.names import MEMBER_NAMESPACE_PREFIX
from kubeocean.fleet.admission.go_names import label_value_problems, qualified_name_problems
from kubeocean.fleet.admission.reviews import (
    ALLOWED,
    Decision,
    Operation,
    Request,
    aggregate,
    denied,
)

__all__ = ["LONGEST_MEMBER_NAME", "decide_member", "needs_service_exports"]

LONGEST_MEMBER_NAME: Final = LONGEST_NAME - len(MEMBER_NAMESPACE_PREFIX)


def needs_service_exports(request: Request) -> bool:
    """Whether the decision on a MemberCluster depends on the Services that the member exports.

    :raises BadReview: the object in the request cannot be read.
    """
    if request.operation is not Operation.DELETE:
        return False
    options = request.old(MemberCluster).spec.delete_options
    return options is None or options.validation_mode != DeleteValidationMode.SKIP


def decide_member(request: Request, service_exports: Sequence[str] = ()) -> Decision:
    """Allow or deny the creation, update or deletion of a MemberCluster.

    :param service_exports: services, as NAMESPACE/NAME, that the member exports; only looked up
        where networking agents are used and `needs_service_exports` is true.
    :raises BadReview: the object in the request cannot be read.
    """
    if request.operation is Operation.DELETE:
        if not service_exports:
            return ALLOWED
        return denied(
            f"Please delete serviceExport {service_exports[0]} in the member cluster before"
            " leaving, request is denied"
        )
    member = request.decoded(MemberCluster)
    problems = []
    if request.operation is Operation.CREATE and len(member.name) > LONGEST_MEMBER_NAME:
        problems.append(
            f"metadata.name max length is {LONGEST_MEMBER_NAME}: the namespace of the member would"
            f" be {MEMBER_NAMESPACE_PREFIX}{member.name}, which is longer than {LONGEST_NAME}"
            " characters; choose a shorter name"
        )
    is_changed = (
        request.operation is Operation.CREATE
        or request.old(MemberCluster).spec.taints != member.spec.taints
    )
    if is_changed:
        problems += _taints_problems(member.spec.taints)
    return denied(aggregate(problems)) if problems else ALLOWED


def _taints_problems(taints: Sequence[ClusterTaint]) -> list[str]:
    problems: list[str] = []
    seen: set[ClusterTaint] = set()
    for taint in taints:
        text = f"{{Key:{taint.key} Value:{taint.value} Effect:{taint.effect}}}"
        problems += [
            f"invalid taint key {text}: {problem}" for problem in qualified_name_problems(taint.key)
        ]
        problems += [
            f"invalid taint value {text}: {problem}"
            for problem in label_value_problems(taint.value)
        ]
        if taint in seen:
            problems.append(f"taint {text} already exists, taints must be unique")
        seen.add(taint)
    return problems
