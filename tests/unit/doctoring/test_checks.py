"""What each check finds in facts that are made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubeocean.api.binding import ClusterBinding, PodPrivileges
from kubeocean.api.crds import binding_definition
from kubeocean.api.ownership import Ids
from kubeocean.api.policy import ResourceLeasingPolicy
from kubeocean.doctoring.accounts import covers
from kubeocean.doctoring.diagnosing import diagnose
from kubeocean.doctoring.facts import Computing, Server, Ward
from kubeocean.doctoring.findings import Severity, document, page
from kubeocean.installation.rights import Permission
from kubeocean.runtime.access import Access
from kubeocean.runtime.kinds import Lease, Node
from kubeocean.runtime.objects import Json, Untyped

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DENIED = dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostPath", "privileged"), "Deny")
VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.4"}
DEFINITION = "clusterbindings.cloud.tencent.com"


def a_lease(name: str, renewed: str = "2026-11-16T11:59:55Z") -> Lease:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": renewed}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Lease)


def a_binding(**more: object) -> ClusterBinding:
    spec = {
        "clusterID": "w1",
        "secretRef": {"name": "s", "namespace": "default"},
        "mountNamespace": "m",
        "podPrivileges": DENIED,
    }
    body = {"metadata": {"name": "b"}, "spec": spec, "status": {"phase": "Ready"}} | more
    return msgspec.convert(body, ClusterBinding)


def a_definition() -> Json:
    established = {"type": "Established", "status": "True"}
    return binding_definition() | {"status": {"conditions": [established]}}


def a_server(**more: object) -> Server:
    known = {"version": VERSION, "skew": timedelta(), "definitions": {DEFINITION: a_definition()}}
    return Server(**(known | more))


def a_service(ip: str = "10.0.0.1") -> Json:
    return {"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}}


def a_node(binding: str = "b") -> Node:
    ready = {"type": "Ready", "status": "True"}
    labels = {"kubeocean.io/cluster-binding": binding}
    body = {"metadata": {"name": "v", "labels": labels}, "status": {"conditions": [ready]}}
    return msgspec.convert(body, Node)


def above(**more: object) -> Computing:
    known = {
        "now": NOW,
        "server": a_server(),
        "bindings": (a_binding(),),
        "nodes": (a_node(),),
        "heartbeats": {"v": a_lease("v")},
        "elections": {
            name: a_lease(name) for name in ("kubeocean-manager-leader", "kubeocean-syncer-b")
        },
        "deployments": {},
        "services": {
            "default/kubernetes-intranet": a_service(),
            "kube-system/kube-dns-intranet": a_service(),
        },
    }
    return Computing(**(known | more))


def a_policy(**spec: object) -> ResourceLeasingPolicy:
    body = {"metadata": {"name": "p"}, "spec": {"cluster": "b", **spec}}
    return msgspec.convert(body, ResourceLeasingPolicy)


def a_ward(**more: object) -> Ward:
    known = {
        "binding": a_binding(),
        "ids": Ids("b", "w1", "c"),
        "access": Access("https://w"),
        "server": Server(version=VERSION),
        "namespace": True,
        "policies": (a_policy(),),
    }
    return Ward(**(known | more))


def certificate(ends: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(ends - timedelta(days=365))
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def test_a_healthy_installation_has_no_findings() -> None:
    diagnosis = diagnose(above(), [a_ward()])
    assert diagnosis.findings == ()
    assert diagnosis.healthy(strict=True)
    assert list(page(diagnosis)) == ["22 checks: nothing is wrong"]


def older_definition() -> Mapping[str, Json]:
    definition = a_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["podPrivileges"]
    return {DEFINITION: definition}


def marked(finalizer: str) -> tuple[tuple[str, Untyped], ...]:
    meta = {"name": "c", "namespace": "team", "finalizers": [finalizer]}
    return (("ConfigMap", msgspec.convert({"metadata": meta}, Untyped)),)


def deployed(*args: str) -> dict[str, Json]:
    container = {"name": "c", "args": list(args)}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    status = {"updatedReplicas": 1, "availableReplicas": 1}
    return {"kubeocean-syncer-w1": {"metadata": {}, "spec": spec, "status": status}}


NO_SERVICES = {"default/kubernetes-intranet": None}
OLD = a_lease("v", "2026-11-16T10:00:00Z")


def our_pod(waiting: str = "", *, scheduled: str = "True", **last: object) -> Json:
    """A pod of a syncer that is not ready since an hour."""
    since = {"lastTransitionTime": "2026-11-16T11:00:00Z"}
    state = {"waiting": {"reason": waiting, "message": "m"}} if waiting else {"running": {}}
    container = {
        "restartCount": 4 if last else 0,
        "state": state,
        "lastState": {"terminated": last} if last else {},
    }
    conditions = [
        {"type": "PodScheduled", "status": scheduled, "message": "0/3 nodes are available"},
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", **since},
    ]
    labels = {"kubeocean.io/cluster-binding": "b"}
    return {
        "metadata": {"name": "kubeocean-syncer-w1-x", "labels": labels},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [container]},
    }


ENDED = {"exitCode": 1, "finishedAt": "2026-11-16T11:59:00Z"}


def rights(**lacks: tuple[str, ...] | None) -> Computing:
    return above(accounts={f"kubeocean-{name}": each for name, each in lacks.items()})


@pytest.mark.parametrize(
    ("facts", "check", "said"),
    [
        (rights(manager=(), syncer=("get pods",)), "accounts", "it may not get pods"),
        (rights(proxier=None), "accounts", "it does not exist"),
        (above(pods=(our_pod("CrashLoopBackOff", **ENDED),)), "pods", "exit code 1, 4 restarts"),
        (above(pods=(our_pod(**ENDED),)), "pods", "its program keeps ending"),
        (above(pods=(our_pod(scheduled="False"),)), "pods", "takes it: 0/3 nodes are available"),
        (above(pods=(our_pod("ErrImagePull"),)), "pods", "it cannot start: ErrImagePull m"),
        (above(pods=(our_pod(),)), "pods", "it has not been ready for 3600 s"),
        (
            above(
                server=a_server(definitions={DEFINITION: None}), elections={}, bindings=(), nodes=()
            ),
            "definitions",
            "Kubeocean is not installed here",
        ),
        (above(server=a_server(definitions={DEFINITION: None})), "definitions", "not installed"),
        (
            above(server=a_server(definitions=older_definition())),
            "definitions",
            "does not know spec.podPrivileges",
        ),
        (
            above(server=a_server(version={"major": "1", "minor": "27", "gitVersion": "v1.27.1"})),
            "version",
            "v1.27.1 is older than 1.28",
        ),
        (
            above(server=a_server(skew=timedelta(seconds=90)), elections=None, heartbeats=None),
            "clock",
            "90 s ahead of",
        ),
        (above(elections={"kubeocean-syncer-b": a_lease("s")}), "manager", "none has ever led"),
        (
            above(elections={"kubeocean-manager-leader": a_lease("m")}, nodes=()),
            "syncer",
            "no syncer leads",
        ),
        (above(heartbeats={"v": OLD}), "nodes", "no heartbeat since 2026-11-16T10:00:00Z"),
        (above(nodes=(a_node("gone"),)), "nodes", "binding gone does not exist"),
        (above(marked=marked("kubeocean.io/finalizer-x")), "finalizers", "does not exist"),
        (above(services=NO_SERVICES, deployments=deployed()), "services", "does not exist"),
    ],
)
def test_faults_of_the_computing_cluster(facts: Computing, check: str, said: str) -> None:
    diagnosis = diagnose(facts, [])
    (found,) = diagnosis.findings
    assert (found.check, found.severity) == (check, Severity.ERROR)
    assert said in found.message
    assert found.remedy
    assert not diagnosis.healthy(strict=False)


def test_who_has_no_manager_at_all_is_told_to_install_it() -> None:
    led = {"kubeocean-syncer-b": a_lease("s")}
    (none,) = diagnose(above(elections=led), []).findings
    assert none.remedy == "kubeocean install"
    one = {"kubeocean-manager": deployed()["kubeocean-syncer-w1"]}
    (idle,) = diagnose(above(elections=led, deployments=one), []).findings
    assert "see the pods of Deployment kubeocean-system/kubeocean-manager" in idle.remedy


def test_a_role_covers_what_it_names_where_it_holds() -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    named = rule | {"resources": ["*"], "resourceNames": ["one"]}
    rules = {"": (named,), "team": (rule,)}
    assert covers(rules, Permission("get", "", "pods", "team"))
    assert covers(rules, Permission("get", "", "secrets", "team", "one"))
    assert not covers(rules, Permission("get", "", "pods"))
    assert not covers(rules, Permission("list", "", "pods", "team"))
    assert not covers(rules, Permission("get", "apps", "pods", "team"))


def test_pods_of_other_bindings_and_those_that_leave_are_not_told() -> None:
    leaving = our_pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-11-16T11:59:59Z"
    assert diagnose(above(pods=(leaving,)), []).findings == ()
    other = our_pod()
    other["metadata"]["labels"] = {"kubeocean.io/cluster-binding": "c"}
    assert diagnose(above(pods=(other,), only="b"), []).findings == ()


def test_marks_of_living_bindings_and_addresses_in_flags_are_well() -> None:
    flagged = deployed("--kubernetes-service-address=10.9.9.9", "--dns-service-address=10.9.9.9")
    facts = above(
        services=NO_SERVICES, deployments=flagged, marked=marked("kubeocean.io/finalizer-w1")
    )
    assert diagnose(facts, []).findings == ()


def test_a_syncer_that_is_elected_elsewhere_shows_in_its_heartbeats() -> None:
    facts = above(elections={"kubeocean-manager-leader": a_lease("m")})
    assert diagnose(facts, []).findings == ()


def test_other_bindings_are_nobodys_business() -> None:
    other = a_binding(metadata={"name": "c"}, status={})
    facts = above(bindings=(a_binding(), other), only="b")
    assert diagnose(facts, []).findings == ()


EXPIRED = Access("https://w", certificate=certificate(NOW - timedelta(days=1)))
ENDING = Access("https://w", ca=certificate(NOW + timedelta(days=3)))


@pytest.mark.parametrize(
    ("ward", "check", "said"),
    [
        (a_ward(binding=a_binding(spec={})), "binding", "spec.clusterID"),
        (a_ward(binding=a_binding(status={"phase": "Failed"})), "binding", "it is Failed"),
        (a_ward(access=None, problem="is missing"), "secret", "is missing"),
        (a_ward(problem="refused"), "worker", "refused"),
        (a_ward(missing=("list pods",)), "rights", "may not list pods"),
        (a_ward(excess=("get secrets",)), "excess rights", "may get secrets"),
        (a_ward(namespace=False), "mount namespace", "namespace m is not there"),
        (a_ward(policies=(a_policy(timeZone="X"),)), "policies", "spec.timeZone"),
        (a_ward(access=EXPIRED), "client certificate", "it ended at 2026-11-15"),
        (
            a_ward(tls={"n/s": certificate(NOW - timedelta(days=1))}),
            "proxier certificate",
            "it ended",
        ),
    ],
)
def test_faults_of_a_binding(ward: Ward, check: str, said: str) -> None:
    diagnosis = diagnose(above(), [ward])
    found = next(each for each in diagnosis.findings if each.check == check)
    assert (found.severity, said in found.message) == (Severity.ERROR, True), found.message
    assert found.remedy
    assert not diagnosis.healthy(strict=False)


@pytest.mark.parametrize(
    ("ward", "check", "said"),
    [
        (a_ward(access=ENDING), "CA", "in 3 days"),
        (
            a_ward(policies=(a_policy(), a_policy(cluster="who"))),
            "policies",
            "no binding 'who' here",
        ),
        (a_ward(policies=()), "policies", "nothing is lent"),
        (a_ward(exposed=True), "kubelets", "are shown its own token"),
    ],
)
def test_warnings_count_only_if_somebody_is_strict(ward: Ward, check: str, said: str) -> None:
    diagnosis = diagnose(above(), [ward])
    (found,) = diagnosis.findings
    assert (found.check, found.severity) == (check, Severity.WARNING)
    assert said in found.message
    assert diagnosis.healthy(strict=False)
    assert not diagnosis.healthy(strict=True)


def test_a_token_that_no_kubelet_is_asked_with_is_none_to_worry_about() -> None:
    container = {"args": ["proxier", "--metrics-enabled=false"]}
    spec = {"template": {"spec": {"containers": [container]}}}
    facts = above(deployments={"kubeocean-proxier-w1": {"metadata": {}, "spec": spec}})
    found = [each.check for each in diagnose(facts, [a_ward(exposed=True)]).findings]
    assert "kubelets" not in found


def test_privileges_that_pods_have_are_told() -> None:
    spec = msgspec.structs.replace(
        a_binding().spec, pod_privileges=PodPrivileges(privileged="Deny")
    )
    ward = a_ward(binding=msgspec.structs.replace(a_binding(), spec=spec))
    (found,) = diagnose(above(), [ward]).findings
    assert (found.check, found.severity) == ("privileges", Severity.WARNING)
    assert "hostNetwork, hostPID, hostIPC, hostPath" in found.message


def test_a_policy_of_another_computing_cluster_is_not_ours_to_judge() -> None:
    claimed = {"kubeocean.io/computing-cluster-id": "another"}
    theirs = msgspec.convert(
        {"metadata": {"name": "q", "annotations": claimed}, "spec": {"cluster": "far"}},
        ResourceLeasingPolicy,
    )
    ward = a_ward(policies=(a_policy(), theirs))
    assert diagnose(above(), [ward]).findings == ()


def test_a_policy_that_a_binding_held_which_is_gone_is_found() -> None:
    said = {"kubeocean.io/computing-cluster-id": "c", "kubeocean.io/cluster-binding": "gone"}
    meta = {"name": "q", "annotations": said, "finalizers": ["policy.kubeocean.io/finalizer"]}
    held = msgspec.convert({"metadata": meta, "spec": {"cluster": "gone"}}, ResourceLeasingPolicy)
    findings = diagnose(above(), [a_ward(policies=(a_policy(), held))]).findings
    assert {(each.check, each.severity) for each in findings} == {
        ("finalizers", Severity.ERROR),
        ("policies", Severity.WARNING),
    }


def test_a_document_holds_what_a_page_says() -> None:
    diagnosis = replace(diagnose(above(), [a_ward(namespace=False)]), unread=("nodes: no",))
    told = document(diagnosis)
    assert (told["healthy"], told["errors"], told["warnings"]) == (False, 1, 0)
    assert told["findings"][0]["check"] == "mount namespace"
    shown = "\n".join(page(diagnosis))
    assert "not read nodes: no" in shown
    assert shown.startswith("error    mount namespace: binding b: namespace m is not there")
