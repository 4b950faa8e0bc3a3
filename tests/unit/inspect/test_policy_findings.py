"""Tests of findings about policies, and of the commands that show them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeocean.api import conditions
from kubeocean.api.conditions import ConditionTemplate
from kubeocean.api.ownership import Ids
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.inspect.doctor.diagnosis import diagnose
from kubeocean.inspect.explain.binding import explain_binding
from kubeocean.inspect.explain.report import ExplanationRule
from kubeocean.inspect.explain.snapshots import BindingDetails
from kubeocean.inspect.findings import Severity
from kubeocean.inspect.policy_findings import policy_findings, policy_warnings
from kubeocean.inspect.snapshot import Snapshot, WorkerState
from kubeocean.inspect.status.build import installation_view
from support.explain_objects import bound
from support.objects import NOW, a_binding, a_node, a_policy, a_worker, condition

LIMITS = [{"resource": "cpuu", "percent": 50}]
TYPO = conditions.LIMITS_UNKNOWN, {"unknown": "cpuu", "withheld": "cpu"}
OVERLAP = conditions.POLICY_OVERLAPS, {"overlaps": "2 nodes of policy day"}


def reported(
    template: ConditionTemplate, facts: dict[str, str], cluster: str = "berlin", **more: object
) -> ResourceLeasingPolicy:
    """Return a policy with a condition on its generation 2."""
    message = template.sentence.format_map(facts)
    written = condition(template.type, template.status, template.reason, message)
    status = {"conditions": [written | {"observedGeneration": 2}]}
    return a_policy(cluster=cluster, status=status, **({"metadata": {"generation": 2}} | more))


@pytest.mark.parametrize(
    ("policy", "message", "remedy"),
    [
        (reported(*TYPO), "no node that the policy selects has cpuu", "the name in policy night"),
        (reported(*OVERLAP), "2 nodes of policy day", "a nodeSelector in policy night"),
        (
            a_policy(gracefulReclaimPeriodSeconds=60),
            "no effect without spec.forceReclaim",
            "correct these fields in policy night",
        ),
    ],
)
def test_a_probable_mistake_is_a_warning_with_a_remedy(
    policy: ResourceLeasingPolicy, message: str, remedy: str
) -> None:
    (finding,) = policy_warnings(policy)
    assert (finding.severity, finding.subject) == (Severity.WARNING, "policy night")
    assert message in finding.message
    assert remedy in finding.remedy


def test_a_condition_that_is_false_or_of_an_earlier_spec_is_no_finding() -> None:
    assert list(policy_findings(reported(conditions.LIMITS_KNOWN, {}), "p")) == []
    edited = reported(*TYPO, metadata={"generation": 3})
    deleted = reported(*TYPO, metadata={"generation": 2, "deletionTimestamp": "2026-11-16"})
    assert list(policy_findings(edited, "p")) == list(policy_findings(deleted, "p")) == []


def test_an_invalid_policy_is_an_error_and_no_warning() -> None:
    invalid = a_policy(timeZone="Nowhere")
    (finding,) = policy_findings(invalid, "p")
    assert (finding.severity, "spec.timeZone" in finding.message) == (Severity.ERROR, True)
    assert list(policy_warnings(invalid)) == []


def test_status_doctor_and_explain_show_a_misspelled_limit() -> None:
    policy = reported(*TYPO, resourceLimits=LIMITS)
    worker = replace(
        a_worker("berlin", WorkerState.ANSWERED, "", policy),
        ids=Ids("berlin", "berlin", "c"),
        left_over=frozenset(),
    )
    snapshot = Snapshot(
        at=NOW, bindings=(a_binding(),), nodes=(a_node(),), usage={}, workers={"berlin": worker}
    )
    health = installation_view(snapshot).health
    (note,) = map(str, health.notes)
    assert note.startswith("berlin: policy night: spec.resourceLimits: no node")
    assert "cpuu" in note and note.endswith("; correct the name in policy night")
    assert health.healthy

    (finding,) = [each for each in diagnose(snapshot).findings if each.check == "policies"]
    assert (finding.severity, finding.subject) == (
        Severity.WARNING,
        "policy night of worker berlin",
    )
    assert finding.remedy == "correct the name in policy night"

    binding = bound(reported(*TYPO, "b", resourceLimits=LIMITS))
    explanation = explain_binding(BindingDetails(binding=binding))
    assert explanation.rule is ExplanationRule.WORKS
    assert "policy night: spec.resourceLimits: no node" in explanation.reasons[0]
    assert explanation.remedies == ("correct the name in policy night",)


def test_status_of_a_binding_that_is_deleted_has_no_notes_about_its_policies() -> None:
    leaving = a_binding(metadata={"name": "berlin", "deletionTimestamp": "2026-11-16T11:00:00Z"})
    worker = replace(a_worker("berlin", WorkerState.ANSWERED, "", reported(*TYPO)), binding=leaving)
    snapshot = Snapshot(at=NOW, bindings=(leaving,), nodes=(), usage={}, workers={"berlin": worker})
    notes = installation_view(snapshot).health.notes
    assert not any("cpuu" in str(each) for each in notes)
