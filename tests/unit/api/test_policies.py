"""Policies: decoding of objects as API servers send them, and problems of their specs."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.policies import (
    RESOURCE_LEASING_POLICIES,
    PolicyPhase,
    PolicySpec,
    ResourceLeasingPolicy,
    ResourceLimit,
    TimeWindow,
    problems,
)
from kubeocean.api.validation import blocking
from kubeocean.runtime.objects import Json, decode_object

SENT = b"""{
  "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy",
  "metadata": {"name": "nights", "generation": 3, "uid": "u1"},
  "spec": {
    "cluster": "worker-1",
    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "a", "operator": "In"}]}]},
    "timeWindows": [{"start": "18:00", "end": "08:00", "days": ["Friday"]},
                    {"start": "0", "end": "1"}],
    "resourceLimits": [{"resource": "cpu", "quantity": 4, "percent": 50},
                       {"resource": "memory", "quantity": "8Gi"}],
    "forceReclaim": true, "gracefulReclaimPeriodSeconds": 30, "timeZone": "Europe/Berlin",
    "forceReclaimDeadlineSeconds": 0, "maxEvictionsPerMinute": 6, "coolDownSeconds": 60,
    "somethingElse": {"we": "do not know"}
  },
  "status": {
    "phase": "Active", "activeTimeWindow": true, "lastAppliedTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "Valid", "status": "True", "reason": "ValidationPassed"}],
    "reclaim": {"evicted": 2, "lastEvictions": [{"namespace": "a", "name": "b", "node": "c"}]}
  }
}"""


def test_a_policy_is_read_as_a_server_sends_it() -> None:
    policy = decode_object(ResourceLeasingPolicy, SENT, keep_raw=False)
    spec, status = policy.spec, policy.status
    assert (policy.name, spec.cluster) == ("nights", "worker-1")
    assert spec.node_selector == msgspec.json.decode(SENT)["spec"]["nodeSelector"]
    assert spec.time_windows == (TimeWindow("18:00", "08:00", ("Friday",)), TimeWindow("0", "1"))
    assert spec.resource_limits == (
        ResourceLimit("cpu", 4, 50),
        ResourceLimit("memory", "8Gi"),
    )
    assert (spec.force_reclaim, spec.graceful_reclaim_period_seconds) == (True, 30)
    assert (spec.time_zone, spec.force_reclaim_deadline_seconds) == ("Europe/Berlin", 0)
    assert (spec.max_evictions_per_minute, spec.cool_down_seconds) == (6, 60)
    assert (status.phase, status.active_time_window) == (PolicyPhase.ACTIVE, True)
    assert status.reclaim is not None
    assert status.reclaim.evicted == 2
    assert status.reclaim.last_evictions is not None
    assert status.reclaim.last_evictions[0].node == "c"


def test_a_policy_needs_nothing_but_a_name() -> None:
    policy = decode_object(ResourceLeasingPolicy, b'{"metadata": {"name": "x"}}', keep_raw=False)
    assert policy.spec == PolicySpec()
    assert policy.status.phase == ""
    assert policy.status.reclaim is None


def test_an_empty_status_counts_nothing() -> None:
    sent = b'{"metadata": {"name": "n"}, "status": {"reclaim": {"nodes": [{}]}}}'
    status = decode_object(ResourceLeasingPolicy, sent, keep_raw=False).status
    assert (status.observed_generation, status.leased_nodes) == (0, 0)
    reclaim = status.reclaim
    assert reclaim is not None
    counts = (reclaim.pending_nodes, reclaim.pending, reclaim.evicted, reclaim.blocked)
    assert counts == (0, 0, 0, 0)
    assert reclaim.nodes is not None
    assert reclaim.nodes[0].pending == 0


def test_a_policy_belongs_to_no_namespace() -> None:
    path = RESOURCE_LEASING_POLICIES.path(name="x")
    assert path == "/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies/x"


def spec(**fields: object) -> PolicySpec:
    return PolicySpec(**({"cluster": "worker-1"} | fields))


def window(start: str = "00:00", end: str = "23:59", *days: str) -> PolicySpec:
    return spec(time_windows=(TimeWindow(start, end, days),))


def limit(**fields: object) -> PolicySpec:
    limited = ResourceLimit(**({"resource": "cpu"} | fields))
    return spec(resource_limits=(limited,))


def selector(*expressions: Json, kind: str = "matchExpressions") -> PolicySpec:
    return spec(node_selector={"nodeSelectorTerms": [{kind: list(expressions)}]})


@pytest.mark.parametrize(
    "good",
    [
        spec(),
        spec(node_selector={"nodeSelectorTerms": []}),
        spec(node_selector={"nodeSelectorTerms": [{}]}),
        selector({"key": "pool", "operator": "In", "values": ["idle"]}),
        spec(time_windows=()),
        window("00:00", "23:59"),
        window("18:00", "08:00", "Friday"),
        window("09:00", "09:01", "monday", "SUNDAY", "Wednesday"),
        limit(percent=1),
        limit(percent=100, quantity="500m"),
        limit(quantity=2),
        limit(quantity="1e3"),
        spec(time_zone="Asia/Shanghai"),
        spec(time_zone="UTC"),
        spec(force_reclaim=True, graceful_reclaim_period_seconds=3600),
        spec(force_reclaim_deadline_seconds=0, max_evictions_per_minute=1, cool_down_seconds=1),
    ],
)
def test_nothing_is_wrong_with_a_good_policy(good: PolicySpec) -> None:
    assert problems(good) == ()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spec(cluster=""), "spec.cluster: must name a ClusterBinding (got '')"),
        *(
            (
                window(time, "10:00"),
                "spec.timeWindows[0].start: must be a time of day as HH:MM, from 00:00 to 23:59"
                f" (got {time!r})",
            )
            for time in ("", "9:00", "24:00", "12:60", "12-00", "12:00:00", "noon", "٠٩:٠٠")
        ),
        (
            window("10:00", "1"),
            "spec.timeWindows[0].end: must be a time of day as HH:MM, from 00:00 to 23:59"
            " (got '1')",
        ),
        *(
            (
                window("10:00", "11:00", "Monday", day),
                "spec.timeWindows[0].days[1]: must be a day of the week in English, such as Monday"
                f" (got {day!r})",
            )
            for day in ("", "Mon", "Montag", "monday ", "1")
        ),
        (
            limit(percent=101),
            "spec.resourceLimits[0].percent: must be between 1 and 100 (got 101)",
        ),
        (
            limit(quantity="5x"),
            "spec.resourceLimits[0].quantity: must be a quantity such as 500m, 2 or 1.5Gi"
            " (got '5x')",
        ),
        (
            limit(quantity=-1),
            "spec.resourceLimits[0].quantity: must be zero or more (got -1)",
        ),
        (
            spec(time_zone="Europa/Berlin"),
            "spec.timeZone: must be an IANA time zone such as Europe/Berlin, Asia/Shanghai or UTC"
            " (got 'Europa/Berlin')",
        ),
        (
            spec(force_reclaim_deadline_seconds=-1),
            "spec.forceReclaimDeadlineSeconds: must be at least 0 (got -1)",
        ),
        (
            spec(max_evictions_per_minute=0),
            "spec.maxEvictionsPerMinute: must be at least 1 (got 0)",
        ),
        (spec(cool_down_seconds=-5), "spec.coolDownSeconds: must be at least 0 (got -5)"),
        (
            selector({"key": "pool", "operator": "Exists", "values": ["x"]}),
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values:"
            " Exists takes no values (got ['x'])",
        ),
        (
            selector({"key": "spec.x", "operator": "In", "values": ["x"]}, kind="matchFields"),
            "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].key:"
            " must be metadata.name (got 'spec.x')",
        ),
    ],
)
def test_what_is_wrong_is_said(bad: PolicySpec, message: str) -> None:
    actual = problems(bad)
    assert [str(each) for each in actual] == [message]
    assert blocking(actual) == actual


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            limit(percent=0),
            "spec.resourceLimits[0].percent: must be between 1 and 100; nothing of this"
            " resource is lent (got 0)",
        ),
        (
            limit(percent=-5),
            "spec.resourceLimits[0].percent: must be between 1 and 100; nothing of this"
            " resource is lent (got -5)",
        ),
        (
            limit(quantity="0"),
            "spec.resourceLimits[0].quantity: nothing of this resource is lent (got '0')",
        ),
        (
            limit(resource="", percent=5),
            "spec.resourceLimits[0].resource: must name a resource such as cpu (got '')",
        ),
        (
            limit(),
            "spec.resourceLimits[0].resource: has neither a quantity nor a percent: nothing of this"
            " resource is lent (got 'cpu')",
        ),
        (
            spec(resource_limits=(ResourceLimit("cpu", 1), ResourceLimit("cpu", percent=5))),
            "spec.resourceLimits[1].resource: has an earlier limit in the list, too: both apply,"
            " one after the other (got 'cpu')",
        ),
        (
            spec(time_windows=(TimeWindow("20:00", "20:00"),)),
            "spec.timeWindows[0].end: is the minute of the start as well: this window is one minute"
            " long (got '20:00')",
        ),
        (
            spec(graceful_reclaim_period_seconds=30),
            "spec.gracefulReclaimPeriodSeconds: has no effect without spec.forceReclaim: pods stay"
            " until they end (got 30)",
        ),
        (
            spec(graceful_reclaim_period_seconds=-1),
            "spec.gracefulReclaimPeriodSeconds: must be zero or more; taken for 0 (got -1)",
        ),
    ],
)
def test_what_earlier_versions_ran_with_does_not_block(odd: PolicySpec, message: str) -> None:
    actual = problems(odd)
    assert [str(each) for each in actual] == [message]
    assert blocking(actual) == ()


def test_all_problems_are_found_in_the_order_of_the_fields() -> None:
    bad = PolicySpec(
        time_windows=(TimeWindow("10:00", "11:00"), TimeWindow("x", "y", ("z",))),
        resource_limits=(ResourceLimit(percent=1), ResourceLimit("cpu", "x", 200)),
        time_zone="x",
    )
    assert [each.field for each in problems(bad)] == [
        "spec.cluster",
        "spec.timeWindows[1].start",
        "spec.timeWindows[1].end",
        "spec.timeWindows[1].days[0]",
        "spec.resourceLimits[0].resource",
        "spec.resourceLimits[1].quantity",
        "spec.resourceLimits[1].percent",
        "spec.timeZone",
    ]
