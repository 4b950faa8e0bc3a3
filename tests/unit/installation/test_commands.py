"""The commands about installation, as far as no cluster is asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from kubeocean.api.binding import BindingSpec, BindingStatus, ClusterBinding
from kubeocean.api.policy import PolicyStatus
from kubeocean.cli.install import install
from kubeocean.cli.join import join
from kubeocean.cli.leave import leave
from kubeocean.cli.uninstall import uninstall
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.leaving import waits_for
from kubeocean.installation.parts import title
from kubeocean.installation.settling import bound, rollout, trouble
from kubeocean.installation.tokens import read_token
from kubeocean.installation.values import Values
from kubeocean.runtime.kinds import Node, NodeStatus
from kubeocean.runtime.objects import Condition, Meta

app = typer.Typer()
for command in (install, join, leave, uninstall):
    app.command()(command)


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_a_dry_run_prints_all_objects_and_asks_no_cluster() -> None:
    code, out, _ = run("install", "--dry-run", "--kubeconfig", "/nowhere")
    assert code == 0
    assert list(yaml.safe_load_all(out)) == computing_objects(Values())


def test_a_dry_run_says_in_which_cluster_each_object_is_made() -> None:
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
    ("words", "said"),
    [
        (("install", "--size", "huge"), "--size: must be one of small, medium, large (got 'huge')"),
        (("install", "--replicas", "0"), "replicas: must be at least 1 (got 0)"),
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
def test_what_was_said_wrongly_is_named(words: tuple[str, ...], said: str) -> None:
    code, out, err = run(*words, "--dry-run")
    assert (code, out) == (2, "")
    assert said in err


def test_a_worker_must_be_reached_somehow() -> None:
    code, _, err = run("join", "berlin")
    assert code == 2
    assert "--kubeconfig: must name the kubeconfig of the worker" in err


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
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


def test_a_binding_says_why_it_is_not_ready() -> None:
    failed = binding("Failed", Condition("Ready", "False", "R", "no such Secret"))
    state = bound(failed, [], {}, lends=True)
    assert (state.done, state.said) == (False, "the binding is Failed: no such Secret")
    assert bound(binding(), [], {}, lends=True).said == "the binding is new"


def test_nodes_are_waited_for_if_something_is_lent() -> None:
    ready = binding("Ready")
    assert not bound(ready, [], {}, lends=True).done
    half = bound(ready, [node("True"), node("False")], {}, lends=True)
    assert (half.done, half.said) == (False, "1 of 2 virtual nodes are Ready")
    assert bound(ready, [node("True")], {}, lends=True).done


def test_who_lends_nothing_is_told_so() -> None:
    nothing = bound(binding("Ready"), [], {}, lends=False)
    assert (nothing.done, "lends nothing yet: give --lease" in nothing.said) == (True, True)
    something = bound(binding("Ready"), [], {"b": PolicyStatus(), "a": PolicyStatus()}, lends=False)
    assert (something.done, "policies a, b of the worker" in something.said) == (True, True)


def test_nobody_waits_for_a_window_to_open() -> None:
    closed = PolicyStatus(phase="Inactive", next_transition_time="2026-01-01T20:00:00Z")
    state = bound(binding("Ready"), [], {"berlin": closed}, lends=True)
    assert state.done
    assert "closed until 2026-01-01T20:00:00Z" in state.said


def test_a_rollout_is_done_when_its_new_pods_are_available() -> None:
    body = {"metadata": {"generation": 2}, "spec": {"replicas": 2}}
    assert not rollout(body).done
    old = {"observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": 2}
    assert not rollout(body | {"status": old}).done
    assert rollout(body | {"status": old | {"observedGeneration": 2}}).done


def test_pods_say_why_they_do_not_run() -> None:
    nowhere = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no nodes",
    }
    image = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    soon = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    pod = {"metadata": {"name": "m"}}
    for status, said in (
        ({"conditions": [nowhere]}, "pod m runs nowhere: Unschedulable: no nodes"),
        ({"containerStatuses": [soon, image]}, "pod m waits: ImagePullBackOff: no such image"),
        ({"containerStatuses": [soon]}, ""),
        ({}, ""),
    ):
        assert trouble({}, [pod | {"status": status}]) == said
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    said = trouble({"status": {"conditions": [failed]}}, [])
    assert said == "no pod could be made: exceeded quota"


def test_a_binding_that_goes_says_what_it_waits_for() -> None:
    drains = Condition("Drained", "False", "R", "3 pods are left")
    assert waits_for(binding("Ready", drains)) == "3 pods are left"
    assert waits_for(binding("Ready", finalizers=("a/b",))) == "finalizers a/b"


@pytest.mark.parametrize("token", ["", "a.b", "a.!!.c", "a.e30.c", "a.bm90IGpzb24.c"])
def test_what_is_no_token_tells_nothing(token: str) -> None:
    assert read_token(token) is None
