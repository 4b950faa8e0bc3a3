"""Metrics of a virtual node: CPU seconds that are counted once, and the summary of its pods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.proxier.metrics_text import PodName, PodSample
from kubeocean.proxier.node_metrics import UsageCounter, UsageCounters, node_metrics, summarize
from kubeocean.runtime.objects import Json


def cpu(uid: str, value: float, container: str = "", time_ms: int = 0) -> PodSample:
    return PodSample(PodName("team", uid, uid), container, value, time_ms)


def test_the_usage_of_a_deleted_pod_stays_with_its_node() -> None:
    counter = UsageCounter()
    assert counter.add([cpu("a", 2.0), cpu("b", 3.0)], 0.0) == 5.0
    assert counter.add([cpu("a", 2.5)], 15.0) == 5.5
    assert counter.add([cpu("a", 0.5)], 30.0) == 6.0  # the pod counts from the beginning again
    assert counter.add([], 45.0) == 6.0


@pytest.mark.parametrize("gap_s", [15.0, 300.0])
def test_a_pod_that_is_missing_in_a_scrape_is_not_counted_twice(gap_s: float) -> None:
    counter = UsageCounter()
    assert counter.add([cpu("a", 10_000.0)], 0.0) == 10_000.0
    assert counter.add([], gap_s) == 10_000.0
    assert counter.add([cpu("a", 10_001.0)], 2 * gap_s) == 10_001.0


def test_a_restarted_container_adds_what_it_used_since() -> None:
    counter = UsageCounter()
    assert counter.add([cpu("a", 1000.0, "web"), cpu("a", 1000.0, "log")], 0.0) == 2000.0
    assert counter.add([cpu("a", 1.0, "web"), cpu("a", 1010.0, "log")], 15.0) == 2011.0
    assert counter.add([cpu("a", 1020.0, "log")], 30.0) == 2021.0
    assert counter.add([cpu("a", 3.0, "web"), cpu("a", 1020.0, "log")], 45.0) == 2023.0


def test_a_change_between_pod_and_container_samples_counts_nothing_twice() -> None:
    counter = UsageCounter()
    assert counter.add([cpu("a", 2000.0)], 0.0) == 2000.0
    assert counter.add([cpu("a", 1200.0, "web"), cpu("a", 790.0, "log")], 15.0) == 2000.0
    assert counter.add([cpu("a", 1205.0, "web"), cpu("a", 790.0, "log")], 30.0) == 2005.0
    assert counter.add([cpu("a", 2006.0)], 45.0) == 2006.0


def test_the_answer_to_an_earlier_scrape_is_not_taken_for_a_restart() -> None:
    counter = UsageCounter()
    assert counter.add([cpu("a", 100.0, time_ms=2000)], 0.0) == 100.0
    assert counter.add([cpu("a", 99.0, time_ms=1000)], 0.1) == 100.0
    assert counter.add([cpu("a", 101.0, time_ms=3000)], 15.0) == 101.0


@given(
    st.lists(
        st.dictionaries(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"])),
            st.integers(0, 100),
            max_size=5,
        ),
        max_size=20,
    )
)
def test_the_usage_of_a_node_never_decreases(scrapes: list[dict[tuple[str, str], int]]) -> None:
    counter, last = UsageCounter(), 0.0
    for at, scrape in enumerate(scrapes):
        samples = [cpu(uid, float(value), name) for (uid, name), value in scrape.items()]
        total = counter.add(samples, 15.0 * at)
        assert total >= last
        last = total


def test_each_node_has_its_own_counter() -> None:
    counters = UsageCounters()
    counters.of("one").add([cpu("a", 4.0)], 0.0)
    assert counters.of("two").add([], 0.0) == 0.0
    assert counters.of("one").add([], 0.0) == 4.0


def test_metrics_of_a_node_have_the_time_of_its_latest_sample() -> None:
    page = node_metrics(1.5, 2.0, [1700000000001, 0, 1700000000009])
    assert "node_cpu_usage_seconds_total 1.5 1700000000009\n" in page
    assert "node_memory_working_set_bytes 2.0 1700000000009\n" in page
    assert "node_cpu_usage_seconds_total 0.0\n" in node_metrics(0.0, 0.0, [])


UID = "11111111-2222-3333-4444-555555555555"
OTHER_UID = "99999999-2222-3333-4444-555555555555"
PODS = {
    ("worker", "web-1"): PodName("team", "web", "u1"),
    ("worker", "db-2"): PodName("team", "db", "u2"),
}
KNOWN = {("worker", "web-1"): PodName("shop", "web", "u1", UID)}


def test_a_summary_has_own_pods_only_under_their_virtual_names() -> None:
    summary = {
        "node": {
            "nodeName": "n1",
            "cpu": {"time": "t", "usageNanoCores": 1000, "usageCoreNanoSeconds": 10_000},
            "memory": {"time": "t", "workingSetBytes": 999},
            "fs": {"usedBytes": 1},
        },
        "pods": [
            {
                "podRef": {"name": "web-1", "namespace": "worker", "uid": "p1"},
                "cpu": {"usageNanoCores": 5, "usageCoreNanoSeconds": 50},
                "memory": {"workingSetBytes": 7},
                "containers": [{"name": "a"}],
            },
            {"podRef": {"name": "secret", "namespace": "worker", "uid": "p2"}},
        ],
    }
    assert summarize(summary, "vnode-x", PODS) == {
        "node": {
            "nodeName": "vnode-x",
            "cpu": {"time": "t", "usageNanoCores": 5, "usageCoreNanoSeconds": 50},
            "memory": {"time": "t", "workingSetBytes": 7},
        },
        "pods": [
            {
                "podRef": {"name": "web", "namespace": "team", "uid": "u1"},
                "cpu": {"usageNanoCores": 5, "usageCoreNanoSeconds": 50},
                "memory": {"workingSetBytes": 7},
                "containers": [{"name": "a"}],
            }
        ],
    }


def test_a_malformed_summary_becomes_an_empty_one() -> None:
    odd = {"node": 3, "pods": [None, 4, {"podRef": "x"}]}
    assert summarize(odd, "v", PODS) == {"node": {"nodeName": "v"}, "pods": []}


def test_a_summary_of_another_pod_that_had_the_name_is_dropped() -> None:
    def pods(uid: str) -> list[Json]:
        pod: Json = {"podRef": {"namespace": "worker", "name": "web-1", "uid": uid}}
        return list(summarize({"node": {}, "pods": [pod]}, "v", KNOWN)["pods"])

    assert [pod["podRef"]["name"] for pod in pods(UID)] == ["web"]
    assert pods(OTHER_UID) == []
