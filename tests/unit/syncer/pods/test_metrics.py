"""Metrics of pods: how far each cluster is behind the other."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key
from kubeocean.syncer.pods.metrics import PodMetrics
from kubeocean.syncer.pods.record import PodRecord

KEY = Key("team", "web")


async def test_each_change_is_measured_once() -> None:
    clock, metrics, record = VirtualClock(), Metrics(), PodRecord(KEY)
    pods = PodMetrics("east", clock, metrics)
    pods.bound(record)
    await clock.advance(0.5)
    pods.bound(record)  # the first time counts
    pods.created(record)
    pods.created(record)
    pods.changed(record)
    pods.reported(record, written=False)  # the change needed no patch of the virtual pod
    pods.reported(record, written=True)
    pods.changed(record)
    pods.reported(record, written=True)
    text = metrics.render().decode()
    label = '{cluster_binding="east"}'
    assert f"kubeocean_pod_create_lag_seconds_count{label} 1.0" in text
    assert f"kubeocean_pod_create_lag_seconds_sum{label} 0.5" in text
    assert f"kubeocean_pod_status_lag_seconds_count{label} 1.0" in text


async def test_a_pod_that_runs_already_is_not_measured() -> None:
    metrics, record = Metrics(), PodRecord(KEY)
    pods = PodMetrics("east", VirtualClock(), metrics)
    pods.bound(record)
    pods.exists(record)
    pods.created(record)
    pods.created(PodRecord(KEY))  # of a virtual pod that was deleted, and made again
    pods.reported(PodRecord(KEY), written=True)
    text = metrics.render().decode()
    assert 'kubeocean_pod_create_lag_seconds_count{cluster_binding="east"} 0.0' in text
    assert 'kubeocean_pod_status_lag_seconds_count{cluster_binding="east"} 0.0' in text


async def test_pods_of_other_shards_are_not_measured() -> None:
    class Nothing:
        def owns(self, key: str) -> bool:
            return False

        def turn(self, key: str) -> AbstractAsyncContextManager[None]:
            raise AssertionError(key)

    metrics, record = Metrics(), PodRecord(KEY)
    pods = PodMetrics("east", VirtualClock(), metrics)
    pods.share(Nothing())
    pods.bound(record)
    pods.changed(record)
    assert (record.bound_at_s, record.changed_at_s) == (None, None)
