"""The table of replicated kinds: which sources a pod refers to, and how much it depends on them."""

from __future__ import annotations

import pytest

from kubeocean.install.computing_objects import computing_admission
from kubeocean.install.leave import LEFT_KINDS
from kubeocean.install.roles import AddOn, syncer_rights, worker_rights
from kubeocean.install.values import Values
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.pods.referenced_objects import references
from kubeocean.syncer.replication.copy_forge import PodReference, ReplicatedKind
from kubeocean.syncer.replication.kinds.table import KIND_NAMES, REPLICATED_KINDS, references_of

POD: Json = {
    "metadata": {"name": "p", "namespace": "team"},
    "spec": {
        "imagePullSecrets": [{"name": "pull"}, {"name": "both"}],
        "containers": [
            {"name": "c", "envFrom": [{"configMapRef": {"name": "env", "optional": True}}]}
        ],
        "volumes": [
            {"name": "a", "configMap": {"name": "files"}},
            {"name": "b", "secret": {"secretName": "both"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "d", "ephemeral": {"volumeClaimTemplate": {}}},
        ],
    },
}


def test_a_pod_refers_to_sources_of_every_kind_that_its_spec_names() -> None:
    assert references_of(references(POD), "team") == {
        ("ConfigMap", Key("team", "env")),
        ("ConfigMap", Key("team", "files")),
        ("Secret", Key("team", "pull")),
        ("Secret", Key("team", "both")),
        ("PersistentVolumeClaim", Key("team", "data")),
        ("PersistentVolumeClaim", Key("team", "p-d")),
    }


def test_a_pod_starts_without_optional_sources_and_without_pull_secrets() -> None:
    refs = references(POD)
    by_kind = {kind.name: set(kind.pod_references(refs)) for kind, _ in REPLICATED_KINDS}
    assert by_kind == {
        "ConfigMap": {PodReference("env", optional=True), PodReference("files")},
        "Secret": {PodReference("both"), PodReference("pull", optional=True, best_effort=True)},
        "PersistentVolumeClaim": {PodReference("data"), PodReference("p-d")},
        "PersistentVolume": set(),
    }


def test_every_kind_is_in_the_table_once() -> None:
    assert len(set(KIND_NAMES)) == len(REPLICATED_KINDS)


@pytest.mark.parametrize("kind", [kind for kind, _ in REPLICATED_KINDS], ids=lambda k: k.name)
def test_syncers_may_read_and_mark_sources_and_write_copies_of_every_kind(
    kind: ReplicatedKind,
) -> None:
    """The rights are written in `install.roles`; a kind of the table must not be missing there."""
    mount = "mount"
    worker = worker_rights(mount, AddOn)
    in_mount = worker.within[mount] if kind.copies.namespaced else ()
    for resource, verbs, rules in (
        (kind.sources, ("get", "list", "watch", "patch"), syncer_rights().everywhere),
        (
            kind.copies,
            ("get", "list", "watch", "create", "patch", "delete"),
            (*worker.everywhere, *in_mount),
        ),
    ):
        granted = {
            verb
            for rule in rules
            if rule.group == resource.group and resource.plural in rule.resources and not rule.names
            for verb in rule.verbs
        }
        assert granted >= set(verbs), f"install.roles lacks rights to {resource.plural}"


def test_leave_reports_left_over_copies_of_every_kind() -> None:
    """`install.leave` has a list of its own, because it cannot import the table."""
    reported = {resource.plural for resource in LEFT_KINDS}
    missing = {kind.copies.plural for kind, _ in REPLICATED_KINDS} - reported
    assert not missing, f"install.leave does not look for {sorted(missing)}"


def test_admission_protects_the_content_of_sources_of_every_kind() -> None:
    """A syncer may patch sources, to mark them only."""
    rules = [
        rule
        for body in computing_admission(Values())
        if body["kind"] == "ValidatingAdmissionPolicy"
        and body["metadata"]["name"].endswith(("-sources", "-specs"))
        for rule in body["spec"]["matchConstraints"]["resourceRules"]
    ]
    protected = {resource for rule in rules for resource in rule["resources"]}
    missing = {kind.sources.plural for kind, _ in REPLICATED_KINDS} - protected
    assert not missing, f"data/computing/admission.yaml does not protect {sorted(missing)}"
