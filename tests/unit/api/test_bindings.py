"""Bindings: decoding of objects as API servers send them, and problems of their specs."""

from __future__ import annotations

import pytest

from kubeocean.api.bindings import (
    CLUSTER_BINDINGS,
    BindingPhase,
    BindingSpec,
    ClusterBinding,
    PodPrivileges,
    SecretReference,
    problems,
)
from kubeocean.runtime.objects import decode_object

SENT = b"""{
  "metadata": {"name": "worker-1"},
  "spec": {
    "clusterID": "c1", "secretRef": {"name": "kubeconfig", "namespace": "kubeocean-system"},
    "mountNamespace": "kubeocean-worker", "serviceNamespaces": ["a", "b"],
    "nodeSelector": {"nodeSelectorTerms": []},
    "disableNodeDefaultTaint": true, "podPriorityClassName": "low",
    "runningDaemonsetByDefault": true, "directScheduling": true, "unknown": 1
  },
  "status": {"phase": "Ready", "lastSyncTime": "2026-01-01T00:00:00Z", "virtualNodes": 3}
}"""


def test_a_binding_is_read_as_a_server_sends_it() -> None:
    binding = decode_object(ClusterBinding, SENT, keep_raw=False)
    spec = binding.spec
    assert spec.cluster_id == "c1"
    assert spec.secret_ref == SecretReference("kubeconfig", "kubeocean-system")
    assert (spec.mount_namespace, spec.service_namespaces) == ("kubeocean-worker", ("a", "b"))
    assert spec.node_selector == {"nodeSelectorTerms": []}
    assert spec.disable_node_default_taint
    assert spec.pod_priority_class_name == "low"
    assert spec.running_daemonset_by_default
    assert spec.direct_scheduling
    assert (binding.status.phase, binding.status.virtual_nodes) == (BindingPhase.READY, 3)
    assert problems(spec) == ()


def test_a_binding_needs_nothing_but_a_name() -> None:
    binding = decode_object(ClusterBinding, b'{"metadata": {"name": "x"}}', keep_raw=False)
    assert binding.spec == BindingSpec()
    assert binding.status.conditions is None
    assert (binding.status.observed_generation, binding.status.virtual_nodes) == (0, 0)


def test_a_binding_belongs_to_no_namespace() -> None:
    assert CLUSTER_BINDINGS.path() == "/apis/cloud.tencent.com/v1beta1/clusterbindings"


POOL_A = {"key": "pool", "operator": "In", "values": ["pool a"]}


def spec(**fields: object) -> BindingSpec:
    good = {
        "cluster_id": "c1",
        "secret_ref": SecretReference("kubeconfig", "kubeocean-system"),
        "mount_namespace": "kubeocean-worker",
    }
    return BindingSpec(**(good | fields))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        *(
            (
                spec(cluster_id=id_),
                "spec.clusterID: must be at most 24 lowercase letters, digits and inner dashes"
                f" (got {id_!r})",
            )
            for id_ in ("", "-a", "a-", "A", "a.b", "a_b", "x" * 25)
        ),
        (
            spec(secret_ref=SecretReference("", "a")),
            "spec.secretRef.name: must name a Secret with a kubeconfig, and so be a lowercase DNS"
            " name (got '')",
        ),
        (
            spec(secret_ref=SecretReference("a", "B")),
            "spec.secretRef.namespace: must name the namespace of that Secret, and so be a"
            " lowercase DNS name (got 'B')",
        ),
        (
            spec(mount_namespace=""),
            "spec.mountNamespace: must name a namespace of the worker cluster, and so be a"
            " lowercase DNS name (got '')",
        ),
        (
            spec(service_namespaces=("a", "")),
            "spec.serviceNamespaces[1]: must name a namespace (got '')",
        ),
        (
            spec(pod_priority_class_name="Low"),
            "spec.podPriorityClassName: must name a PriorityClass of the worker cluster, and so be"
            " a lowercase DNS name (got 'Low')",
        ),
        (
            spec(node_selector={"nodeSelectorTerms": [{"matchLabels": {}}]}),
            "spec.nodeSelector.nodeSelectorTerms[0]: Object contains unknown field `matchLabels`"
            " (got {'matchLabels': {}})",
        ),
        (
            spec(node_selector={"nodeSelectorTerms": [{"matchExpressions": [POOL_A]}]}),
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values[0]: a label "
            "value must consist of letters, digits, '-', '_' or '.', and start and end with a"
            " letter or digit (got 'pool a')",
        ),
    ],
)
def test_what_is_wrong_is_said(bad: BindingSpec, message: str) -> None:
    assert [str(each) for each in problems(bad)] == [message]


def test_pods_may_all_that_is_not_denied() -> None:
    assert BindingSpec().pod_privileges.denied == ()
    sent = b'{"spec": {"podPrivileges": {"hostPID": "Deny", "privileged": "Allow"}}}'
    read = decode_object(ClusterBinding, sent, keep_raw=False).spec
    assert read.pod_privileges == PodPrivileges(host_pid="Deny")
    assert read.pod_privileges.denied == ("hostPID",)


def test_a_privilege_that_makes_no_sense_is_denied_and_said() -> None:
    odd = spec(pod_privileges=PodPrivileges(host_path="allow"))
    assert odd.pod_privileges.denied == ("hostPath",)
    (problem,) = problems(odd)
    assert not problem.blocks
    assert str(problem) == (
        "spec.podPrivileges.hostPath: must be Allow or Deny, and is taken for Deny (got 'allow')"
    )


def test_a_worker_is_trusted_like_a_kubelet_unless_the_binding_says_otherwise() -> None:
    assert not BindingSpec().trusts_fully
    sent = b'{"spec": {"workerTrust": "Full"}}'
    assert decode_object(ClusterBinding, sent, keep_raw=False).spec.trusts_fully
    assert not list(problems(spec(worker_trust="Full")))


def test_a_trust_that_is_unknown_is_that_of_a_kubelet() -> None:
    unknown = spec(worker_trust="full")
    assert not unknown.trusts_fully
    (problem,) = problems(unknown)
    assert not problem.blocks
    assert str(problem) == (
        "spec.workerTrust: must be Kubelet or Full, and is taken for Kubelet (got 'full')"
    )
