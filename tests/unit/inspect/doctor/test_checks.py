"""Tests of the checks of doctor."""

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

from kubeocean.api.bindings import ClusterBinding, PodPrivileges
from kubeocean.api.crds import binding_definition
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids
from kubeocean.api.policies import ResourceLeasingPolicy
from kubeocean.inspect.doctor.diagnosis import Diagnosis, diagnose, document, page
from kubeocean.inspect.doctor.left_over import left_over, left_over_policies
from kubeocean.inspect.doctor.permissions import covers
from kubeocean.inspect.findings import Severity
from kubeocean.inspect.snapshot import (
    ADMINISTRATOR,
    NotRead,
    ServerSnapshot,
    Snapshot,
    WorkerSnapshot,
    WorkerState,
    known,
)
from kubeocean.install.permissions import Permission
from kubeocean.runtime.access import Access
from kubeocean.runtime.kinds import Deployment, Lease, Node
from kubeocean.runtime.objects import Json, Untyped, decode_object

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DENIED = dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostPath", "privileged"), "Deny")
VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.4"}
DEFINITION = "clusterbindings.cloud.tencent.com"
UNREAD = NotRead("part", "forbidden")


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


def a_server(**more: object) -> ServerSnapshot:
    parts = {"version": VERSION, "skew": timedelta(), "definitions": {DEFINITION: a_definition()}}
    return ServerSnapshot(**(parts | more))


def a_service(ip: str = "10.0.0.1") -> Json:
    return {"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}}


def a_node(binding: str = "b") -> Node:
    ready = {"type": "Ready", "status": "True"}
    labels = {"kubeocean.io/cluster-binding": binding}
    meta = {"name": "v", "uid": "v-uid", "labels": labels}
    body = {"metadata": meta, "status": {"conditions": [ready]}}
    return msgspec.convert(body, Node)


def a_snapshot(**more: object) -> Snapshot:
    parts = {
        "at": NOW,
        "server": a_server(),
        "bindings": (a_binding(),),
        "nodes": (a_node(),),
        "heartbeats": {"v": a_lease("v")},
        "elections": {
            name: a_lease(name) for name in ("kubeocean-manager-leader", "kubeocean-syncer-b")
        },
        "deployments": {},
        "program_pods": (),
        "accounts": {},
        "services": {
            "default/kubernetes-intranet": a_service(),
            "kube-system/kube-dns-intranet": a_service(),
        },
    }
    snapshot = Snapshot(**(parts | more))
    return snapshot if "left_over" in more else replace(snapshot, left_over=left_over(snapshot))


def a_policy(**spec: object) -> ResourceLeasingPolicy:
    body = {"metadata": {"name": "p"}, "spec": {"cluster": "b", **spec}}
    return msgspec.convert(body, ResourceLeasingPolicy)


def a_worker(**more: object) -> WorkerSnapshot:
    parts = {
        "binding": a_binding(),
        "ids": Ids("b", "w1", "c"),
        "state": WorkerState.ANSWERED,
        "access": Access("https://w"),
        "server": ServerSnapshot(version=VERSION, skew=timedelta()),
        "missing": (),
        "excess": (),
        "exposed": False,
        "unenforced": (),
        "namespace": True,
        "pod_security": "baseline",
        "policies": (a_policy(),),
        "tls": {},
        "differences": (),
    }
    worker = WorkerSnapshot(**(parts | more))
    if "left_over" in more:
        return worker
    held = left_over_policies(
        known(worker.policies, ()), known(a_snapshot().bindings, ()), Ids("b", "w1", "c"), DEFAULT
    )
    return replace(worker, left_over=held)


def diagnosed(snapshot: Snapshot, *workers: WorkerSnapshot) -> Diagnosis:
    return diagnose(replace(snapshot, workers={each.name: each for each in workers}))


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
    diagnosis = diagnosed(a_snapshot(), a_worker())
    assert diagnosis.findings == ()
    assert diagnosis.healthy(strict=True)
    assert list(page(diagnosis)) == ["23 of 23 checks made: nothing is wrong"]


def older_definition() -> Mapping[str, Json]:
    definition = a_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["podPrivileges"]
    return {DEFINITION: definition}


def marked(finalizer: str) -> Mapping[str, tuple[Untyped, ...]]:
    meta = {"name": "c", "namespace": "team", "uid": "c-uid", "finalizers": [finalizer]}
    return {"ConfigMap": (msgspec.convert({"metadata": meta}, Untyped),)}


def a_deployment(*args: str) -> Deployment:
    container = {"name": "c", "args": list(args)}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    status = {"updatedReplicas": 1, "availableReplicas": 1}
    body = {"metadata": {}, "spec": spec, "status": status}
    return decode_object(Deployment, msgspec.json.encode(body), keep_raw=True)


def deployed(*args: str) -> dict[str, Deployment]:
    return {"kubeocean-syncer-w1": a_deployment(*args)}


NO_SERVICES = {"default/kubernetes-intranet": None}
OLD = a_lease("v", "2026-11-16T10:00:00Z")


def our_pod(waiting: str = "", *, scheduled: str = "True", **last: object) -> Json:
    """Return a pod of a syncer that is not ready since an hour."""
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


def rights(**lacks: tuple[str, ...] | None) -> Snapshot:
    return a_snapshot(accounts={f"kubeocean-{name}": each for name, each in lacks.items()})


@pytest.mark.parametrize(
    ("snapshot", "check", "text"),
    [
        (rights(manager=(), syncer=("get pods",)), "accounts", "it may not get pods"),
        (rights(proxier=None), "accounts", "it does not exist"),
        (
            a_snapshot(program_pods=(our_pod("CrashLoopBackOff", **ENDED),)),
            "pods",
            "exit code 1, 4 restarts",
        ),
        (a_snapshot(program_pods=(our_pod(**ENDED),)), "pods", "its program keeps ending"),
        (
            a_snapshot(program_pods=(our_pod(scheduled="False"),)),
            "pods",
            "takes it: 0/3 nodes are available",
        ),
        (
            a_snapshot(program_pods=(our_pod("ErrImagePull"),)),
            "pods",
            "it cannot start: ErrImagePull m",
        ),
        (a_snapshot(program_pods=(our_pod(),)), "pods", "it has not been ready for 3600 s"),
        (
            a_snapshot(
                server=a_server(definitions={DEFINITION: None}), elections={}, bindings=(), nodes=()
            ),
            "definitions",
            "Kubeocean is not installed here",
        ),
        (
            a_snapshot(server=a_server(definitions={DEFINITION: None})),
            "definitions",
            "not installed",
        ),
        (
            a_snapshot(server=a_server(definitions=older_definition())),
            "definitions",
            "it lacks spec.podPrivileges",
        ),
        (
            a_snapshot(
                server=a_server(version={"major": "1", "minor": "27", "gitVersion": "v1.27.1"})
            ),
            "version",
            "v1.27.1 is older than 1.28",
        ),
        (
            a_snapshot(
                server=a_server(skew=timedelta(seconds=90)), elections=UNREAD, heartbeats=UNREAD
            ),
            "clock",
            "90 s ahead of",
        ),
        (
            a_snapshot(elections={"kubeocean-syncer-b": a_lease("s")}),
            "manager",
            "none has ever led",
        ),
        (
            a_snapshot(elections={"kubeocean-manager-leader": a_lease("m")}, nodes=()),
            "syncer",
            "no syncer leads",
        ),
        (a_snapshot(heartbeats={"v": OLD}), "nodes", "no heartbeat since 2026-11-16T10:00:00Z"),
        (a_snapshot(nodes=(a_node("gone"),)), "nodes", "binding gone does not exist"),
        (a_snapshot(marked=marked("kubeocean.io/finalizer-x")), "finalizers", "does not exist"),
        (a_snapshot(services=NO_SERVICES, deployments=deployed()), "services", "does not exist"),
    ],
)
def test_faults_of_the_computing_cluster(snapshot: Snapshot, check: str, text: str) -> None:
    diagnosis = diagnosed(snapshot)
    (finding,) = diagnosis.findings
    assert (finding.check, finding.severity) == (check, Severity.ERROR)
    assert text in finding.message
    assert finding.remedy
    assert not diagnosis.healthy(strict=False)


def test_the_remedy_for_a_missing_manager_is_to_install_it() -> None:
    led = {"kubeocean-syncer-b": a_lease("s")}
    (none,) = diagnosed(a_snapshot(elections=led)).findings
    assert none.remedy == "kubeocean install"
    one = {"kubeocean-manager": deployed()["kubeocean-syncer-w1"]}
    (idle,) = diagnosed(a_snapshot(elections=led, deployments=one)).findings
    assert idle.remedy == "see the pods of Deployment kubeocean-system/kubeocean-manager"
    (away,) = diagnosed(
        a_snapshot(elections=led, deployments=one, management="another-cluster")
    ).findings
    assert away.remedy == f"{idle.remedy} in the management cluster"


def test_a_role_covers_the_permissions_of_its_rules_in_its_namespace() -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    named = rule | {"resources": ["*"], "resourceNames": ["one"]}
    rules = {"": (named,), "team": (rule,)}
    assert covers(rules, Permission("get", "", "pods", "team"))
    assert covers(rules, Permission("get", "", "secrets", "team", "one"))
    assert not covers(rules, Permission("get", "", "pods"))
    assert not covers(rules, Permission("list", "", "pods", "team"))
    assert not covers(rules, Permission("get", "apps", "pods", "team"))


def test_pods_of_other_bindings_and_terminating_pods_are_no_findings() -> None:
    leaving = our_pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-11-16T11:59:59Z"
    assert diagnosed(a_snapshot(program_pods=(leaving,))).findings == ()
    other = our_pod()
    other["metadata"]["labels"] = {"kubeocean.io/cluster-binding": "c"}
    assert diagnosed(a_snapshot(program_pods=(other,), only="b")).findings == ()


def test_finalizers_of_existing_bindings_and_addresses_in_flags_are_no_findings() -> None:
    flagged = deployed("--kubernetes-service-address=10.9.9.9", "--dns-service-address=10.9.9.9")
    snapshot = a_snapshot(
        services=NO_SERVICES, deployments=flagged, marked=marked("kubeocean.io/finalizer-w1")
    )
    assert diagnosed(snapshot).findings == ()


def test_a_secret_with_a_finalizer_that_its_syncer_does_not_see_is_found() -> None:
    (held,) = marked("kubeocean.io/finalizer-w1")["ConfigMap"]
    snapshot = a_snapshot(marked={"Secret": (held,)}, accounts={"kubeocean-syncer-w1": ()})
    (finding,) = diagnosed(snapshot).findings
    assert (finding.severity, finding.subject) == (Severity.WARNING, "Secret team/c")
    assert "whose syncer reads no Secrets of the namespace" in finding.message
    for state in ("requested", "granted"):
        status = {"phase": "Ready", "secretNamespaces": {state: ["team"]}}
        reads = a_binding(status=status)
        assert diagnosed(replace(snapshot, bindings=(reads,))).findings == ()
    # The shared account reads Secrets of all namespaces.
    assert diagnosed(replace(snapshot, accounts={"kubeocean-syncer": ()})).findings == ()


def test_a_syncer_with_another_election_is_known_by_the_heartbeats_of_its_nodes() -> None:
    snapshot = a_snapshot(elections={"kubeocean-manager-leader": a_lease("m")})
    assert diagnosed(snapshot).findings == ()


def test_bindings_that_were_not_asked_for_are_not_checked() -> None:
    other = a_binding(metadata={"name": "c"}, status={})
    snapshot = a_snapshot(bindings=(a_binding(), other), only="b")
    assert diagnosed(snapshot).findings == ()


EXPIRED = Access("https://w", certificate=certificate(NOW - timedelta(days=1)))
ENDING = Access("https://w", ca=certificate(NOW + timedelta(days=3)))


@pytest.mark.parametrize(
    ("worker", "check", "text"),
    [
        (a_worker(binding=a_binding(spec={})), "binding", "spec.clusterID"),
        (a_worker(binding=a_binding(status={"phase": "Failed"})), "binding", "it is Failed"),
        (
            a_worker(access=None, state=WorkerState.UNUSABLE, message="is missing"),
            "secret",
            "is missing",
        ),
        (a_worker(state=WorkerState.REFUSED, message="refused"), "worker", "refused"),
        (a_worker(missing=("list pods",)), "rights", "may not list pods"),
        (a_worker(excess=("get secrets",)), "excess rights", "may get secrets"),
        (a_worker(namespace=False), "mount namespace", "namespace m does not exist"),
        (a_worker(policies=(a_policy(timeZone="X"),)), "policies", "spec.timeZone"),
        (a_worker(access=EXPIRED), "client certificate", "it expired at 2026-11-15"),
        (
            a_worker(access=Access("https://w", insecure=True)),
            "TLS",
            "its kubeconfig has insecure-skip-tls-verify",
        ),
        (
            a_worker(tls={"n/s": certificate(NOW - timedelta(days=1))}),
            "proxier certificate",
            "it expired",
        ),
    ],
)
def test_faults_of_a_binding(worker: WorkerSnapshot, check: str, text: str) -> None:
    diagnosis = diagnosed(a_snapshot(), worker)
    finding = next(each for each in diagnosis.findings if each.check == check)
    assert (finding.severity, text in finding.message) == (Severity.ERROR, True), finding.message
    assert finding.remedy
    assert not diagnosis.healthy(strict=False)


@pytest.mark.parametrize(
    ("wish", "excess", "found"),
    [
        ("member", ("get secrets",), False),
        ("left", ("get secrets",), True),
        ("member", (ADMINISTRATOR,), True),
    ],
)
def test_a_member_without_an_agent_may_apply_objects_of_any_kind(
    wish: str, excess: tuple[str, ...], found: bool
) -> None:
    binding = a_binding(metadata={"name": "b", "annotations": {"kubeocean.io/fleet": wish}})
    diagnosis = diagnosed(a_snapshot(), a_worker(binding=binding, excess=excess))
    assert any(each.check == "excess rights" for each in diagnosis.findings) is found


@pytest.mark.parametrize(
    ("worker", "check", "text"),
    [
        (a_worker(access=ENDING), "CA", "in 3 days"),
        (
            a_worker(policies=(a_policy(), a_policy(cluster="who"))),
            "policies",
            "no binding 'who' here",
        ),
        (a_worker(policies=()), "policies", "nothing is lent"),
        (a_worker(exposed=True), "kubelets", "sends the binding's own token to kubelets"),
        (a_worker(unenforced=("admission policy",)), "enforcement", "any priority class"),
        (a_worker(unenforced=("PodSecurity",)), "enforcement", "privileged pods"),
        (a_worker(unenforced=("egress NetworkPolicy",)), "enforcement", "kubeocean-syncer-egress"),
    ],
)
def test_warnings_count_only_with_strict(worker: WorkerSnapshot, check: str, text: str) -> None:
    diagnosis = diagnosed(a_snapshot(), worker)
    (finding,) = diagnosis.findings
    assert (finding.check, finding.severity) == (check, Severity.WARNING)
    assert text in finding.message
    assert diagnosis.healthy(strict=False)
    assert not diagnosis.healthy(strict=True)


def test_a_token_is_not_exposed_where_the_proxier_serves_no_metrics() -> None:
    proxier = a_deployment("proxier", "--metrics-enabled=false")
    snapshot = a_snapshot(deployments={"kubeocean-proxier-w1": proxier})
    checks = [each.check for each in diagnosed(snapshot, a_worker(exposed=True)).findings]
    assert "kubelets" not in checks


def with_privileges(**parts: object) -> WorkerSnapshot:
    """Return a worker whose binding denies none but privileged pods."""
    spec = msgspec.structs.replace(
        a_binding().spec, pod_privileges=PodPrivileges(privileged="Deny")
    )
    return a_worker(binding=msgspec.structs.replace(a_binding(), spec=spec), **parts)


@pytest.mark.parametrize("level", ["", "privileged"])
def test_privileges_that_pods_may_use_are_a_warning(level: str) -> None:
    (finding,) = diagnosed(a_snapshot(), with_privileges(pod_security=level)).findings
    assert (finding.check, finding.severity) == ("privileges", Severity.WARNING)
    assert "hostNetwork, hostPID, hostIPC, hostPath on" in finding.message
    assert "PodSecurity of namespace m of the worker does not refuse them" in finding.message


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_privileges_that_the_mount_namespace_refuses_are_no_finding(level: str) -> None:
    diagnosis = diagnosed(a_snapshot(), with_privileges(pod_security=level))
    assert (diagnosis.findings, diagnosis.not_made) == ((), ())
    ignored = with_privileges(pod_security=level, unenforced=("PodSecurity",))
    checks = [each.check for each in diagnosed(a_snapshot(), ignored).findings]
    assert checks == ["enforcement", "privileges"]


def test_privileges_are_not_judged_if_the_mount_namespace_was_not_read() -> None:
    diagnosis = diagnosed(a_snapshot(), with_privileges(pod_security=UNREAD))
    assert (diagnosis.findings, diagnosis.not_made) == ((), ("privileges of b",))
    assert diagnosed(a_snapshot(), a_worker(pod_security=UNREAD)).not_made == ()  # all are denied


def test_a_policy_of_another_computing_cluster_is_not_checked() -> None:
    claimed = {"kubeocean.io/computing-cluster-id": "another"}
    theirs = msgspec.convert(
        {"metadata": {"name": "q", "annotations": claimed}, "spec": {"cluster": "far"}},
        ResourceLeasingPolicy,
    )
    worker = a_worker(policies=(a_policy(), theirs))
    assert diagnosed(a_snapshot(), worker).findings == ()


def test_a_policy_held_by_a_binding_that_does_not_exist_is_an_error() -> None:
    annotations = {"kubeocean.io/computing-cluster-id": "c", "kubeocean.io/cluster-binding": "gone"}
    finalizers = ["policy.kubeocean.io/finalizer"]
    meta = {"name": "q", "uid": "q-uid", "annotations": annotations, "finalizers": finalizers}
    held = msgspec.convert({"metadata": meta, "spec": {"cluster": "gone"}}, ResourceLeasingPolicy)
    findings = diagnosed(a_snapshot(), a_worker(policies=(a_policy(), held))).findings
    assert {(each.check, each.severity) for each in findings} == {
        ("finalizers", Severity.ERROR),
        ("policies", Severity.WARNING),
    }
    for confirmed, not_made in ((frozenset[str](), ()), (UNREAD, ("policies of b",))):
        worker = a_worker(policies=(a_policy(), held), left_over=confirmed)
        diagnosis = diagnosed(a_snapshot(), worker)
        assert {each.check for each in diagnosis.findings} == {"policies"}
        assert diagnosis.not_made == not_made


@pytest.mark.parametrize(
    ("snapshot", "check"),
    [
        ({"nodes": (a_node("gone"),)}, "nodes"),
        ({"marked": marked("kubeocean.io/finalizer-x")}, "finalizers"),
    ],
)
def test_objects_that_only_one_read_calls_left_over_are_no_findings(
    snapshot: Json, check: str
) -> None:
    once = diagnosed(a_snapshot(**snapshot, left_over=frozenset[str]()))
    assert (once.findings, once.not_made) == ((), ())
    unread = diagnosed(a_snapshot(**snapshot, left_over=UNREAD))
    assert (unread.findings, check in unread.not_made) == ((), True)
    unbound = diagnosed(a_snapshot(**snapshot, bindings=UNREAD))
    assert (unbound.findings, check in unbound.not_made) == ((), True)


@pytest.mark.parametrize(
    ("snapshot", "not_made"),
    [
        (a_snapshot(bindings=UNREAD), ["syncer", "services", "nodes", "finalizers"]),
        (a_snapshot(nodes=UNREAD), ["nodes"]),
        (a_snapshot(heartbeats=UNREAD), ["nodes"]),
        (a_snapshot(elections=UNREAD), ["manager", "syncer"]),
        (a_snapshot(deployments=UNREAD), ["manager", "syncer"]),
        (a_snapshot(program_pods=UNREAD), ["pods"]),
        (a_snapshot(accounts=UNREAD), ["accounts"]),
        (a_snapshot(services=UNREAD), ["services"]),
        (a_snapshot(marked={"Secret": UNREAD}), ["finalizers"]),
        (a_snapshot(server=ServerSnapshot()), ["definitions", "version", "clock"]),
    ],
)
def test_no_check_is_made_of_a_part_that_was_not_read(
    snapshot: Snapshot, not_made: list[str]
) -> None:
    diagnosis = diagnosed(snapshot)
    assert diagnosis.findings == ()
    assert list(diagnosis.not_made) == not_made
    assert diagnosis.healthy(strict=False) is None
    assert document(diagnosis)["healthy"] is None
    *skipped, last = page(diagnosis)
    assert skipped == [f"not made {name}" for name in not_made]
    assert last.startswith(f"{10 - len(not_made)} of 10 checks made: no findings, but not every")


@pytest.mark.parametrize(
    ("worker", "not_made"),
    [
        (
            a_worker(access=None, state=WorkerState.NOT_ALLOWED),
            ["secret of b", "worker of b", "credential of b"],
        ),
        (a_worker(server=ServerSnapshot()), ["worker cluster of b"]),
        (a_worker(namespace=UNREAD), ["mount namespace of b"]),
        (a_worker(missing=UNREAD), ["rights of b"]),
        (a_worker(excess=UNREAD), ["rights of b"]),
        (a_worker(exposed=UNREAD), ["kubelets of b"]),
        (a_worker(unenforced=UNREAD), ["enforcement of b"]),
        (a_worker(tls=UNREAD), ["proxier certificate of b"]),
        (a_worker(policies=UNREAD), ["policies of b"]),
        (a_worker(differences=UNREAD), ["orphans of b"]),
    ],
)
def test_no_check_is_made_of_a_part_of_a_worker_that_was_not_read(
    worker: WorkerSnapshot, not_made: list[str]
) -> None:
    diagnosis = diagnosed(a_snapshot(), worker)
    assert list(diagnosis.not_made) == not_made
    assert diagnosis.findings == ()
    assert diagnosis.healthy(strict=False) is None


def test_an_error_counts_although_not_everything_was_read() -> None:
    held = marked("kubeocean.io/finalizer-x") | {"Secret": UNREAD}
    diagnosis = diagnosed(a_snapshot(marked=held, unread=(NotRead("Secrets", "forbidden"),)))
    assert [each.check for each in diagnosis.findings] == ["finalizers"]
    assert diagnosis.not_made == ("finalizers",)
    assert diagnosis.healthy(strict=False) is False


def test_health_is_unknown_after_a_read_that_failed() -> None:
    diagnosis = diagnosed(
        a_snapshot(unread=(NotRead("Pods of b", "its credential may not list them"),)), a_worker()
    )
    assert diagnosis.not_made == ()
    assert diagnosis.healthy(strict=False) is None


def test_the_document_holds_the_findings_of_the_page() -> None:
    diagnosis = replace(diagnosed(a_snapshot(), a_worker(namespace=False)), unread=("nodes: no",))
    printed = document(diagnosis)
    assert (printed["healthy"], printed["errors"], printed["warnings"]) == (False, 1, 0)
    assert printed["findings"][0]["check"] == "mount namespace"
    shown = "\n".join(page(diagnosis))
    assert "not read nodes: no" in shown
    assert shown.startswith("error    mount namespace: binding b: namespace m does not exist")
