"""Objects of the demo: policies, a sample workload, and addresses of the clusters. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.api.policies import PolicySpec, TimeWindow
from kubeocean.install.lease_options import limits
from kubeocean.local.real_nodes.config import MACHINE_ADDRESS
from kubeocean.local.real_nodes.images import BUSYBOX
from kubeocean.runtime.objects import Json, Key

__all__ = ["SAMPLE", "landmarks", "lease", "next_break", "sample", "with_break"]

SAMPLE: Final = Key("default", "sample")
_EACH: Final = 2  # pods for each worker
_MOST: Final = 20
_SAYS: Final = 'while :; do echo "$(date) $HOSTNAME is at work"; sleep 5; done'
_LENT: Final = "cpu=50%,memory=50%"
_BREAK: Final = timedelta(minutes=2)
_NOTICE: Final = timedelta(seconds=45)  # before the break begins: time to read the printed commands
_GRACE_S: Final = 20


def lease(worker: str) -> PolicySpec:
    """Return the spec of a policy that lends half of the unused capacity at all times."""
    return PolicySpec(worker, resource_limits=limits(_LENT))


def next_break(now: datetime) -> tuple[datetime, datetime]:
    """Return when the demo's next break begins (the window closes) and ends (it opens again)."""
    closes = (now + _NOTICE).astimezone(UTC).replace(second=0, microsecond=0)
    closes += timedelta(minutes=1)
    return closes, closes + _BREAK


def with_break(worker: str, closes: datetime, opens: datetime) -> PolicySpec:
    """Return the spec of a policy as `lease`, with a daily break in which pods are evicted."""
    last = closes - timedelta(minutes=1)  # a window includes its last minute
    return PolicySpec(
        worker,
        resource_limits=limits(_LENT),
        time_windows=(TimeWindow(f"{opens:%H:%M}", f"{last:%H:%M}"),),
        force_reclaim=True,
        graceful_reclaim_period_seconds=_GRACE_S,
        time_zone="UTC",
    )


def landmarks(server_port: int) -> list[Json]:
    """Return Services whose addresses pods in workers use for the computing cluster's servers.

    The Services are for the API server and DNS. Their address leads pods of real nodes to the
    loopback of this machine. There is no DNS server.
    """
    return [
        _service(group.SERVER_SERVICE, "https", server_port, "TCP"),
        _service(group.DNS_SERVICE, "dns", 53, "UDP"),
    ]


def _service(key: Key, name: str, port: int, protocol: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {
            "type": "LoadBalancer",
            "ports": [{"name": name, "port": port, "protocol": protocol}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": MACHINE_ADDRESS}]}},
    }


def sample(workers: int, domain: Domain = DEFAULT) -> Json:
    """Return the sample Deployment, which is spread over all workers, and over their nodes."""
    labels = {group.APP_NAME: SAMPLE.name}
    selector = {"matchLabels": labels}
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            # Reclaimed nodes of a worker do not count, so that pods can move.
            "nodeTaintsPolicy": "Honor",
            "labelSelector": selector,
        }
        for key in (domain.cluster_binding, group.LABEL_HOSTNAME)
    ]
    pod = {
        "nodeSelector": {group.LABEL_NODE_TYPE: group.NODE_TYPE_VIRTUAL},
        "tolerations": [{"key": domain.taint_vnode, "operator": "Exists"}],
        "topologySpreadConstraints": spread,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "sample",
                "image": BUSYBOX,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", _SAYS],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            }
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": SAMPLE.name, "namespace": SAMPLE.namespace, "labels": labels},
        "spec": {
            "replicas": min(_EACH * workers, _MOST),
            "selector": selector,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
