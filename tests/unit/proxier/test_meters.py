"""What a virtual node has used never becomes less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.proxier.exposition import PodName
from kubeocean.proxier.meters import Meter, Meters
from kubeocean.proxier.pages import node_metrics


def pod(uid: str) -> PodName:
    return PodName("team", uid, uid)


def test_what_a_pod_used_stays_with_its_node() -> None:
    meter = Meter()
    assert meter.read([(pod("a"), 2.0), (pod("b"), 3.0)]) == 5.0
    assert meter.read([(pod("a"), 2.5)]) == 5.5
    assert meter.read([(pod("a"), 0.5)]) == 6.0  # it counts from the beginning again
    assert meter.read([]) == 6.0


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 100), max_size=3), max_size=20)
)
def test_a_count_never_goes_back(readings: list[dict[str, int]]) -> None:
    meter, last = Meter(), 0.0
    for reading in readings:
        now = meter.read((pod(uid), float(value)) for uid, value in reading.items())
        assert now >= last
        last = now


def test_each_node_has_its_own_count() -> None:
    meters = Meters()
    meters.of("one").read([(pod("a"), 4.0)])
    assert meters.of("two").read([]) == 0.0
    assert meters.of("one").read([]) == 4.0


def test_a_node_is_as_old_as_its_latest_pod() -> None:
    page = node_metrics(1.5, 2.0, ["1700000000001", "", "x", "1700000000009"])
    assert "node_cpu_usage_seconds_total 1.5 1700000000009\n" in page
    assert "node_memory_working_set_bytes 2.0 1700000000009\n" in page
    assert "node_cpu_usage_seconds_total 0.0\n" in node_metrics(0.0, 0.0, [])
