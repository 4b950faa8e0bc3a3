"""Objects for the Prometheus operator and Grafana: metrics Service, alerts and a dashboard."""

from __future__ import annotations

from typing import Final

import msgspec

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.install.object_parts import labels, named
from kubeocean.install.values import Values
from kubeocean.runtime.objects import Json

__all__ = ["alert_rules", "dashboard", "monitoring"]

_OPERATOR: Final = "monitoring.coreos.com/v1"
_SOURCE: Final[Json] = {"type": "prometheus", "uid": "${source}"}
_SELECTOR: Final = 'clusterbinding=~"$binding"'
_REQUESTS: Final = "rate(rest_client_requests_total[5m])"
_WIDTH: Final = 24
# Certificates are self-signed unless an administrator provides some; Prometheus authenticates with
# its token, and needs the ClusterRole of `computing_objects.metrics_reader`.
_ENDPOINT: Final[Json] = {
    "port": "metrics",
    "interval": "30s",
    "scheme": "https",
    "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
    "tlsConfig": {"insecureSkipVerify": True},
}


def monitoring(values: Values) -> list[Json]:
    """Return a Service for all metrics ports, its ServiceMonitor, the alerts and the dashboard."""
    domain, namespace = values.domain, values.namespace
    ours = labels(domain)
    metrics = ours | {domain.component: "metrics"}
    name = f"{domain.product}-metrics"
    dashboard_json = msgspec.json.format(msgspec.json.encode(dashboard()), indent=1).decode()
    return [
        named(
            "Service",
            "v1",
            name,
            namespace=namespace,
            labels=metrics,
            spec={
                "clusterIP": "None",
                "publishNotReadyAddresses": True,  # standbys have metrics as well
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
                "endpoints": [_ENDPOINT],
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
            data={"kubeocean.json": dashboard_json + "\n"},
        ),
    ]


def alert_rules(domain: Domain) -> Json:
    """Return the alerts as a group of Prometheus rules."""
    return {
        "groups": [
            {
                "name": domain.product,
                "rules": [*_availability(domain), *_failures(), *_consistency()],
            }
        ]
    }


def _availability(domain: Domain) -> list[Json]:
    return [
        _alert(
            "KubeoceanManagerLeaderless",
            f'sum(leader_election_master_status{{name="{domain.manager}-leader"}}) < 1'
            f' or absent(leader_election_master_status{{name="{domain.manager}-leader"}})',
            minutes=5,
            summary="No manager leads",
            description="Bindings are neither checked nor rolled out. Lent nodes keep working.",
        ),
        _alert(
            "KubeoceanSyncerLeaderless",
            # Without pods a syncer has no series, but the manager has one for each binding.
            f'sum by (name) (leader_election_master_status{{name=~"{domain.syncer}-.+"}}) < 1'
            " or sum by (name) (label_replace("
            "group by (clusterbinding) (kubeocean_manager_sync_total)"
            " unless group by (clusterbinding) (kubeocean_syncer_vnode_total),"
            f' "name", "{domain.syncer}-$1", "clusterbinding", "(.+)"))',
            minutes=2,
            severity="critical",
            summary="No syncer leads {{ $labels.name }}",
            description="The virtual nodes become NotReady, and their pods are not reconciled.",
        ),
        _alert(
            "KubeoceanBindingFailed",
            'max(kubeocean_clusterbindings_total{status="Failed"}) > 0',
            minutes=5,
            summary="{{ $value }} bindings are Failed",
            description="See the conditions of `kubectl get clusterbindings`.",
        ),
    ]


def _failures() -> list[Json]:
    return [
        _alert(
            "KubeoceanHeartbeatsFail",
            "sum by (namespace, pod)"
            ' (rate(kubeocean_syncer_lease_renewals_total{result="failed"}[5m])) > 0',
            minutes=3,
            severity="critical",
            summary="{{ $labels.pod }} cannot renew the leases of virtual nodes",
            description="The nodes become NotReady 40 s after their last renewal.",
        ),
        _alert(
            "KubeoceanPodsNotCreated",
            "sum by (clusterbinding) (rate(kubeocean_syncer_create_pod_errors_total[10m]))"
            " > 0.5 * sum by (clusterbinding) (rate(kubeocean_syncer_create_pod_total[10m]))",
            minutes=10,
            summary="{{ $labels.clusterbinding }} refuses most pods",
            description="Events of the pods show why: most likely a quota or an admission policy.",
        ),
        _alert(
            "KubeoceanManagerErrors",
            "sum by (clusterbinding) (rate(kubeocean_manager_sync_errors_total[10m])) > 0",
            minutes=15,
            summary="{{ $labels.clusterbinding }} cannot be reconciled",
            description="The conditions and events of the ClusterBinding show which request fails.",
        ),
        _alert(
            "KubeoceanCredentialExpires",
            "max by (clusterbinding) (kubeocean_worker_credential_expiration_timestamp_seconds)"
            " - time() < 7 * 86400",
            minutes=60,
            summary="The credential of {{ $labels.clusterbinding }} expires within a week",
            description="The binding's condition CredentialValid shows why a renewal failed.",
        ),
    ]


def _consistency() -> list[Json]:
    return [
        _alert(
            "KubeoceanInconsistent",
            "max by (namespace, pod) (kubeocean_sweep_inconsistencies) > 0",
            minutes=60,
            summary="{{ $labels.pod }} finds {{ $value }} orphaned objects",
            description="`kubeocean repair` lists these objects, and deletes provable orphans.",
        ),
        _alert(
            "KubeoceanNodesLost",
            "kubeocean_syncer_vnode_total == 0 and kubeocean_syncer_vnode_total offset 2h > 0",
            minutes=30,
            severity="info",
            summary="{{ $labels.clusterbinding }} lends nothing any more",
            description="All time windows may be closed; if not, see the worker's policies.",
        ),
    ]


def _alert(
    name: str,
    expression: str,
    *,
    minutes: int,
    summary: str,
    description: str,
    severity: str = "warning",
) -> Json:
    return {
        "alert": name,
        "expr": expression,
        "for": f"{minutes}m",
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }


def dashboard() -> Json:
    """Return the Grafana dashboard as JSON."""
    rows = (
        (
            _number("Virtual nodes", f"sum(kubeocean_syncer_vnode_total{{{_SELECTOR}}})"),
            _number("Pods", f"sum(kubeocean_syncer_virtual_pod_total{{{_SELECTOR}}})"),
            _number("Failed bindings", 'max(kubeocean_clusterbindings_total{status="Failed"})'),
            _number("Orphaned objects", "max(kubeocean_sweep_inconsistencies)"),
        ),
        (_capacity("CPU (millicores)", "cpu"), _capacity("Memory (MiB)", "memory")),
        (
            _graph("Pods by phase", _by("kubeocean_syncer_virtual_pod_total", "phase")),
            _graph(
                "Pods created per second",
                {
                    "created": _rate("kubeocean_syncer_create_pod_total"),
                    "refused": _rate("kubeocean_syncer_create_pod_errors_total"),
                },
            ),
        ),
        (
            _graph(
                "Requests per second",
                {"{{code}} {{method}}": f"sum by (code, method) ({_REQUESTS})"},
            ),
            _graph(
                "Lease renewals per second",
                {"{{result}}": "sum by (result) (rate(kubeocean_syncer_lease_renewals_total[5m]))"},
            ),
        ),
    )
    return {
        "uid": "kubeocean",
        "title": "Kubeocean",
        "tags": ["kubeocean"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_source(), _binding()]},
        "panels": _placed(rows),
    }


def _source() -> Json:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}


def _binding() -> Json:
    return {
        "name": "binding",
        "label": "Binding",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(kubeocean_syncer_vnode_total, clusterbinding)",
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _number(title: str, expression: str) -> Json:
    return {"type": "stat", "title": title, "targets": [_target("", expression)]}


def _graph(title: str, series: dict[str, str]) -> Json:
    targets = [_target(legend, expression) for legend, expression in series.items()]
    return {"type": "timeseries", "title": title, "targets": targets}


def _capacity(title: str, resource: str) -> Json:
    selector = f'{{{_SELECTOR}, resource="{resource}"}}'
    metrics = {
        "capacity of the workers": "cluster_origin_resource",
        "lent": "cluster_available_resource",
        "used by other pods": "cluster_physical_usage",
        "used by lent pods": "cluster_virtual_usage",
    }
    prefix = "kubeocean_syncer"
    return _graph(
        title, {legend: f"sum({prefix}_{name}{selector})" for legend, name in metrics.items()}
    )


def _by(metric: str, label: str) -> dict[str, str]:
    return {f"{{{{{label}}}}}": f"sum by ({label}) ({metric}{{{_SELECTOR}}})"}


def _rate(metric: str) -> str:
    return f"sum(rate({metric}{{{_SELECTOR}}}[5m]))"


def _target(legend: str, expression: str) -> Json:
    return {"datasource": _SOURCE, "expr": expression, "legendFormat": legend or "__auto"}


def _placed(rows: tuple[tuple[Json, ...], ...]) -> list[Json]:
    placed: list[Json] = []
    top = 0
    for row in rows:
        width, height = _WIDTH // len(row), 4 if row[0]["type"] == "stat" else 8
        for number, panel in enumerate(row):
            place = {"x": number * width, "y": top, "w": width, "h": height}
            placed.append({"id": len(placed) + 1, **panel, "datasource": _SOURCE, "gridPos": place})
        top += height
    return placed
