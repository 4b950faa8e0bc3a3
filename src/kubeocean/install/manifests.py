"""Renders the files under `deploy/`: charts, kustomize manifests, alerts and the dashboard.

`scripts/manifests` writes the files; a test compares them with `render`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from kubeocean.api.group import DEFAULT
from kubeocean.install.charts import computing_chart, hub_chart, member_chart, worker_chart
from kubeocean.install.computing_objects import alert_rules, computing_objects, dashboard
from kubeocean.install.fleet import (
    HubConnection,
    hub_objects,
    hub_workload,
    member_deployment,
    member_objects,
)
from kubeocean.install.templates import text
from kubeocean.install.values import Values, WorkerValues
from kubeocean.install.worker_objects import worker_objects
from kubeocean.runtime.objects import Json

__all__ = ["SAMPLE_CONNECTION", "render", "write"]

# Values in kustomize/fleet-member; an overlay has to replace both.
SAMPLE_CONNECTION: Final = HubConnection("member", "https://hub.example:6443")
_NOTE: Final = "# Made by scripts/manifests; do not edit.\n"


def render() -> dict[str, str]:
    """Return the content of all files, by their path in `deploy/`."""
    files = {f"charts/kubeocean/{name}": body for name, body in computing_chart().items()}
    files |= {f"charts/kubeocean-worker/{name}": body for name, body in worker_chart().items()}
    files |= {f"charts/kubeocean-fleet-hub/{name}": body for name, body in hub_chart().items()}
    files |= {
        f"charts/kubeocean-fleet-member/{name}": body for name, body in member_chart().items()
    }
    files |= _kustomize("computing", computing_objects(Values()))
    files |= _kustomize("worker", worker_objects(WorkerValues()))
    files |= _kustomize("fleet-hub", [*hub_objects(), *hub_workload(Values())])
    member = member_deployment(Values(), SAMPLE_CONNECTION)
    files |= _kustomize("fleet-member", [*member_objects(), member])
    rules = yaml.safe_dump(alert_rules(DEFAULT), sort_keys=False, width=1000)
    return files | {
        "monitoring/alerts.yaml": _NOTE + rules,
        "monitoring/dashboard.json": dashboard(indent=2),
    }


def _kustomize(cluster: str, objects: list[Json]) -> dict[str, str]:
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["objects.yaml"],
    }
    return {
        f"kustomize/{cluster}/kustomization.yaml": _NOTE
        + yaml.safe_dump(kustomization, sort_keys=False),
        f"kustomize/{cluster}/objects.yaml": _NOTE + "---\n".join(text(each) for each in objects),
    }


def write(directory: Path) -> None:
    """Write all files of `render()` into `directory`."""
    for name, content in render().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
