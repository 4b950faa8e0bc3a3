"""Alerts: what somebody should look at, as rules for Prometheus.

Each says what is wrong with what, how long it has been so, and where to look.
"""

from __future__ import annotations

from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Json

__all__ = ["alert_rules"]


def alert_rules(domain: Domain) -> Json:
    """One group of rules, as Prometheus reads it from a file."""
    return {"groups": [{"name": domain.product, "rules": [*_alive(domain), *_working(), *_true()]}]}


def _alive(domain: Domain) -> list[Json]:
    """Somebody is at work."""
    return [
        _alert(
            "KubeoceanManagerLeaderless",
            f'sum(leader_election_master_status{{name="{domain.manager}-leader"}}) < 1'
            f' or absent(leader_election_master_status{{name="{domain.manager}-leader"}})',
            minutes=5,
            summary="No manager leads",
            description="Bindings are neither checked nor rolled out. Lent nodes go on.",
        ),
        _alert(
            "KubeoceanSyncerLeaderless",
            f'sum by (name) (leader_election_master_status{{name=~"{domain.syncer}-.+"}}) < 1',
            minutes=2,
            severity="critical",
            summary="No syncer leads {{ $labels.name }}",
            description="Its virtual nodes become NotReady, and their pods are not looked after.",
        ),
        _alert(
            "KubeoceanBindingFailed",
            'max(kubeocean_clusterbindings_total{status="Failed"}) > 0',
            minutes=5,
            summary="{{ $value }} bindings are Failed",
            description="See the conditions of `kubectl get clusterbindings`.",
        ),
    ]


def _working() -> list[Json]:
    """What is done succeeds."""
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
            description="Events of the pods say why; a quota or an admission policy, most likely.",
        ),
        _alert(
            "KubeoceanManagerErrors",
            "sum by (clusterbinding) (rate(kubeocean_manager_sync_errors_total[10m])) > 0",
            minutes=15,
            summary="{{ $labels.clusterbinding }} cannot be brought to what it should be",
            description="Its conditions and events say what is refused.",
        ),
    ]


def _true() -> list[Json]:
    """What is shown is so."""
    return [
        _alert(
            "KubeoceanInconsistent",
            "max by (namespace, pod) (kubeocean_sweep_inconsistencies) > 0",
            minutes=60,
            summary="{{ $labels.pod }} finds {{ $value }} objects that should not be there",
            description="`kubeocean repair` lists them, and removes what is provably left over.",
        ),
        _alert(
            "KubeoceanNodesLost",
            "kubeocean_syncer_vnode_total == 0 and kubeocean_syncer_vnode_total offset 30m > 0",
            minutes=30,
            severity="info",
            summary="{{ $labels.clusterbinding }} lends nothing any more",
            description="All windows may be closed; else see the worker's policies.",
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
