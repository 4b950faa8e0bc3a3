"""Dashboards: one page for Grafana; what is lent, what is used, and whether all is well."""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json

__all__ = ["dashboard"]

_SOURCE: Final[Json] = {"type": "prometheus", "uid": "${source}"}
_CHOSEN: Final = 'clusterbinding=~"$binding"'
_REQUESTS: Final = "rate(rest_client_requests_total[5m])"
_WIDTH: Final = 24


def dashboard() -> Json:
    """The page, as Grafana imports it."""
    rows = (
        (
            _number("Virtual nodes", f"sum(kubeocean_syncer_vnode_total{{{_CHOSEN}}})"),
            _number("Pods", f"sum(kubeocean_syncer_virtual_pod_total{{{_CHOSEN}}})"),
            _number("Failed bindings", 'max(kubeocean_clusterbindings_total{status="Failed"})'),
            _number("Left over", "max(kubeocean_sweep_inconsistencies)"),
        ),
        (_capacity("CPU (millicores)", "cpu"), _capacity("Memory (MiB)", "memory")),
        (
            _graph("Pods by phase", _by("kubeocean_syncer_virtual_pod_total", "phase")),
            _graph(
                "Pods made a second",
                {
                    "made": _rate("kubeocean_syncer_create_pod_total"),
                    "refused": _rate("kubeocean_syncer_create_pod_errors_total"),
                },
            ),
        ),
        (
            _graph(
                "Requests a second",
                {"{{code}} {{method}}": f"sum by (code, method) ({_REQUESTS})"},
            ),
            _graph(
                "Renewals a second",
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
    chosen = f'{{{_CHOSEN}, resource="{resource}"}}'
    shown = {
        "the workers have": "cluster_origin_resource",
        "is lent": "cluster_available_resource",
        "others use": "cluster_physical_usage",
        "our pods use": "cluster_virtual_usage",
    }
    prefix = "kubeocean_syncer"
    return _graph(
        title, {legend: f"sum({prefix}_{name}{chosen})" for legend, name in shown.items()}
    )


def _by(metric: str, label: str) -> dict[str, str]:
    return {f"{{{{{label}}}}}": f"sum by ({label}) ({metric}{{{_CHOSEN}}})"}


def _rate(metric: str) -> str:
    return f"sum(rate({metric}{{{_CHOSEN}}}[5m]))"


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
