"""Tests of install, join and leave without a cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from kubeocean.api.bindings import BindingSpec, BindingStatus, ClusterBinding
from kubeocean.api.policies import PolicyStatus
from kubeocean.cli.install import install
from kubeocean.cli.join import join
from kubeocean.cli.leave import leave
from kubeocean.cli.uninstall import uninstall
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.credentials import read_token
from kubeocean.install.leave import waits_for
from kubeocean.install.object_parts import title
from kubeocean.install.values import Values
from kubeocean.install.wait import bound, rollout, trouble
from kubeocean.runtime.kinds import Node, NodeStatus
from kubeocean.runtime.objects import Condition, Meta

app = typer.Typer()
for command in (install, join, leave, uninstall):
    app.command()(command)


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_a_dry_run_prints_all_objects_without_connecting_to_a_cluster() -> None:
    code, out, _ = run("install", "--dry-run", "--kubeconfig", "/nowhere")
    assert code == 0
    assert list(yaml.safe_load_all(out)) == computing_objects(Values())


def test_the_production_preset_has_three_managers_near_the_control_plane() -> None:
    _, out, _ = run("install", "--preset=production", "--proxier-replicas=4", "--dry-run")
    values = Values(component_replicas={"manager": 3, "proxier": 4}, near_control_plane=True)
    assert list(yaml.safe_load_all(out)) == computing_objects(values)
    (manager,) = [each for each in yaml.safe_load_all(out) if each["kind"] == "Deployment"]
    assert manager["spec"]["replicas"] == 3
    pod = manager["spec"]["template"]["spec"]
    assert pod["tolerations"][0]["key"] == "node-role.kubernetes.io/control-plane"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    assert preferred in pod["affinity"]["nodeAffinity"]


def test_a_dry_run_names_the_cluster_of_each_object() -> None:
    _, out, _ = run("join", "berlin", "--lease", "cpu=50%", "--dry-run")
    pages = [page.splitlines() for page in out.split("---\n")]
    where = {title(yaml.safe_load("\n".join(page))): page[0].removeprefix("# ") for page in pages}
    assert where["ResourceLeasingPolicy berlin"] == "worker"
    assert where["Secret kubeocean-system/berlin-kubeconfig"] == "computing cluster"
    assert where["ClusterBinding berlin"] == "computing cluster"
    assert set(where.values()) == {"worker", "computing cluster"}


def test_a_dry_run_is_a_list_in_json() -> None:
    code, out, _ = run("join", "berlin", "--lease", "cpu=50%", "--dry-run", "-o", "json")
    assert code == 0
    items = json.loads(out)["items"]
    assert items[-1]["kind"] == "ClusterBinding"
    lease = next(each for each in items if each["kind"] == "ResourceLeasingPolicy")
    assert lease["spec"]["resourceLimits"] == [{"resource": "cpu", "percent": 50}]


def test_a_dry_run_shows_no_credential() -> None:
    _, out, _ = run("join", "berlin", "--dry-run", "-o", "json")
    secrets = [each for each in json.loads(out)["items"] if each["kind"] == "Secret"]
    assert [each.get("data", {}) for each in secrets] == [{}, {}]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("install", "--size", "huge"), "--size: must be one of small, medium, large (got 'huge')"),
        (("install", "--replicas", "0"), "replicas: must be at least 1 (got 0)"),
        (("install", "--syncer-replicas", "0"), "replicas: must be at least 1 (got 0)"),
        (("install", "--preset", "huge"), "--preset: must be default or production (got 'huge')"),
        (("join", "berlin", "--lease", "cpu"), "--lease: must be name=50%"),
        (("join", "berlin", "--between", "night"), "--between: must be HH:MM-HH:MM"),
        (("join", "berlin", "--lease", "all", "--zone", "Mars"), "--zone: must be an IANA"),
        (("join", "berlin", "--lease", "cpu=lots"), "--lease: cpu: must be a quantity"),
        (("join", "berlin", "--between", "20:00-20:00"), "--between: begins when it ends"),
        (("join", "berlin", "--timeout", "soon"), "--timeout"),
        (("join", "berlin", "--zone", "UTC"), "--zone: needs --lease or --between"),
        (("join", "berlin", "--add-on", "root"), "--add-on: must be none, all"),
        (("join", "berlin", "--quota", "pods"), "--quota: must be name=quantity"),
        (("join", "berlin", "--cluster-id", "A B"), "--cluster-id"),
        (("join", "berlin", "--server", "worker:6443"), "--server: must be a URL such as https"),
        (("join", "berlin", "--server", "http://w"), "--server: must be a URL such as https"),
    ],
)
def test_an_error_names_the_option_and_its_value(words: tuple[str, ...], text: str) -> None:
    code, out, err = run(*words, "--dry-run")
    assert (code, out) == (2, "")
    assert text in err


def test_join_needs_the_kubeconfig_of_the_worker() -> None:
    code, _, err = run("join", "berlin")
    assert code == 2
    assert "--kubeconfig: must name the kubeconfig of the worker" in err


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    code, _, err = run("uninstall", "--kubeconfig", os.fspath(tmp_path / "none"))
    assert code == 2
    assert "none: there is no such file" in err


# How far it is


def binding(
    phase: str = "", *conditions: Condition, finalizers: tuple[str, ...] = ()
) -> ClusterBinding:
    return ClusterBinding(
        metadata=Meta(name="berlin", finalizers=finalizers),
        spec=BindingSpec(),
        status=BindingStatus(phase=phase, conditions=conditions),
    )


def node(status: str) -> Node:
    return Node(
        metadata=Meta(name="n"), status=NodeStatus(conditions=(Condition("Ready", status),))
    )


def test_the_state_of_a_binding_says_why_it_is_not_ready() -> None:
    failed = binding("Failed", Condition("Ready", "False", "R", "no such Secret"))
    state = bound(failed, [], {}, lends=True)
    assert (state.done, state.message) == (False, "the binding is Failed: no such Secret")
    assert bound(binding(), [], {}, lends=True).message == "the binding is new"


def test_a_binding_that_lends_waits_for_its_nodes() -> None:
    ready = binding("Ready")
    assert not bound(ready, [], {}, lends=True).done
    half = bound(ready, [node("True"), node("False")], {}, lends=True)
    assert (half.done, half.message) == (False, "1 of 2 virtual nodes are Ready")
    assert bound(ready, [node("True")], {}, lends=True).done


def test_a_binding_that_lends_nothing_is_done() -> None:
    nothing = bound(binding("Ready"), [], {}, lends=False)
    assert (nothing.done, "lends nothing yet: give --lease" in nothing.message) == (True, True)
    something = bound(binding("Ready"), [], {"b": PolicyStatus(), "a": PolicyStatus()}, lends=False)
    assert (something.done, "policies a, b of the worker" in something.message) == (True, True)


def test_a_closed_window_ends_the_wait() -> None:
    closed = PolicyStatus(phase="Inactive", next_transition_time="2026-01-01T20:00:00Z")
    state = bound(binding("Ready"), [], {"berlin": closed}, lends=True)
    assert state.done
    assert "closed until 2026-01-01T20:00:00Z" in state.message


def test_a_rollout_is_done_when_all_updated_replicas_are_available() -> None:
    body = {"metadata": {"generation": 2}, "spec": {"replicas": 2}}
    assert not rollout(body).done
    old = {"observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": 2}
    assert not rollout(body | {"status": old}).done
    assert rollout(body | {"status": old | {"observedGeneration": 2, "replicas": 2}}).done


def test_a_rollout_is_not_done_while_old_pods_are_the_available_ones() -> None:
    body = {"metadata": {"generation": 2}, "spec": {"replicas": 1}}
    status = {"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 1, "replicas": 2}
    state = rollout(body | {"status": status})
    assert (state.done, state.message) == (False, "1 of 1 replicas available, 1 old one remains")
    stuck = {
        "type": "Progressing",
        "status": "False",
        "reason": "ProgressDeadlineExceeded",
        "message": "timed out",
    }
    assert trouble(body | {"status": {"conditions": [stuck]}}, []) == (
        "the rollout does not progress: ProgressDeadlineExceeded: timed out"
    )


def test_trouble_names_why_pods_do_not_run() -> None:
    nowhere = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no nodes",
    }
    image = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    soon = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    pod = {"metadata": {"name": "m"}}
    for status, message in (
        ({"conditions": [nowhere]}, "pod m is not scheduled: Unschedulable: no nodes"),
        ({"containerStatuses": [soon, image]}, "pod m waits: ImagePullBackOff: no such image"),
        ({"containerStatuses": [soon]}, ""),
        ({}, ""),
    ):
        assert trouble({}, [pod | {"status": status}]) == message
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    message = trouble({"status": {"conditions": [failed]}}, [])
    assert message == "no pod could be created: exceeded quota"


def test_a_binding_that_is_being_deleted_names_what_it_waits_for() -> None:
    drains = Condition("Drained", "False", "R", "3 pods are left")
    assert waits_for(binding("Ready", drains)) == "3 pods are left"
    assert waits_for(binding("Ready", finalizers=("a/b",))) == "finalizers a/b"


@pytest.mark.parametrize("token", ["", "a.b", "a.!!.c", "a.e30.c", "a.bm90IGpzb24.c"])
def test_a_text_that_is_no_token_has_no_claims(token: str) -> None:
    assert read_token(token) is None
