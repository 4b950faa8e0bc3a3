"""Manifests: everything that is checked in under `deploy/`, as files.

`scripts/manifests` writes them; a test compares them with what this gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import yaml

from kubeocean.api.group import DEFAULT
from kubeocean.installation.alerts import alert_rules
from kubeocean.installation.charts import computing_chart, worker_chart
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.dashboards import dashboard
from kubeocean.installation.templates import text
from kubeocean.installation.values import Values, WorkerValues
from kubeocean.installation.workerside import worker_objects
from kubeocean.runtime.objects import Json

__all__ = ["render", "write"]

_NOTE: Final = "# Made by scripts/manifests; do not edit.\n"


def render() -> dict[str, str]:
    """All files, by their path below `deploy/`."""
    files = {f"charts/kubeocean/{name}": body for name, body in computing_chart().items()}
    files |= {f"charts/kubeocean-worker/{name}": body for name, body in worker_chart().items()}
    files |= _kustomize("computing", computing_objects(Values()))
    files |= _kustomize("worker", worker_objects(WorkerValues()))
    rules = yaml.safe_dump(alert_rules(DEFAULT), sort_keys=False, width=1000)
    shown = msgspec.json.format(msgspec.json.encode(dashboard()), indent=2).decode()
    return files | {
        "monitoring/alerts.yaml": _NOTE + rules,
        "monitoring/dashboard.json": f"{shown}\n",
    }


def _kustomize(side: str, objects: list[Json]) -> dict[str, str]:
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["objects.yaml"],
    }
    return {
        f"kustomize/{side}/kustomization.yaml": _NOTE + yaml.safe_dump(listed, sort_keys=False),
        f"kustomize/{side}/objects.yaml": _NOTE + "---\n".join(text(each) for each in objects),
    }


def write(directory: Path) -> None:
    """Put all files where they are checked in."""
    for name, content in render().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
