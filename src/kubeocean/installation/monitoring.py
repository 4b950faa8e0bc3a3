"""Monitoring: what the Prometheus operator and a Grafana beside it collect."""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.api import group
from kubeocean.installation.alerts import alert_rules
from kubeocean.installation.dashboards import dashboard
from kubeocean.installation.parts import labels, named
from kubeocean.installation.values import Values
from kubeocean.runtime.objects import Json

__all__ = ["monitoring"]

_OPERATOR: Final = "monitoring.coreos.com/v1"


def monitoring(values: Values) -> list[Json]:
    """A Service over all our pods, who reads it, the alerts and the dashboard."""
    domain, namespace = values.domain, values.namespace
    ours = labels(domain)
    metrics = ours | {domain.component: "metrics"}
    name = f"{domain.product}-metrics"
    shown = msgspec.json.format(msgspec.json.encode(dashboard()), indent=1).decode()
    return [
        named(
            "Service",
            "v1",
            name,
            namespace=namespace,
            labels=metrics,
            spec={
                "clusterIP": "None",
                "publishNotReadyAddresses": True,  # who does not lead yet has metrics as well
                "selector": ours,
                "ports": [{"name": "metrics", "port": group.METRICS_PORT, "targetPort": "metrics"}],
            },
        ),
        named(
            "ServiceMonitor",
            _OPERATOR,
            name,
            namespace=namespace,
            labels=ours,
            spec={
                "selector": {"matchLabels": metrics},
                "podTargetLabels": [group.APP_COMPONENT, group.APP_INSTANCE],
                "endpoints": [{"port": "metrics", "interval": "30s"}],
            },
        ),
        named(
            "PrometheusRule",
            _OPERATOR,
            domain.product,
            namespace=namespace,
            labels=ours,
            spec=alert_rules(domain),
        ),
        named(
            "ConfigMap",
            "v1",
            f"{domain.product}-dashboard",
            namespace=namespace,
            labels=ours | {group.LABEL_DASHBOARD: "1"},
            data={"kubeocean.json": shown + "\n"},
        ),
    ]
