"""Labels and annotations of a virtual pod."""

from __future__ import annotations

from kubeocean.api.group import DEFAULT as D
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.metadata import Expected
from kubeocean.syncer.forge.podshown import is_copied, metadata, users_own

MAPPING = {
    D.physical_pod_namespace: "mount",
    D.physical_pod_name: "web-1",
    D.physical_pod_uid: "p1",
}
MARK = {D.managed_by: D.product}


def vpod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Json:
    meta = {"name": "web", "namespace": "team", "labels": labels, "annotations": annotations}
    return {"metadata": meta}


def ppod(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    *,
    above: Expected | None = None,
) -> Json:
    ours = {D.virtual_pod_uid: "u1", D.expected_metadata: (above or Expected()).encode()}
    meta = {
        "name": "web-1",
        "namespace": "mount",
        "uid": "p1",
        "labels": (labels or {}) | MARK | {D.workload_type: "pod", D.cluster_binding: "b"},
        "annotations": (annotations or {}) | ours,
    }
    return {"metadata": meta}


def applied(pod: Json, patch: Json) -> Json:
    meta: Json = dict(pod["metadata"])
    for name in ("labels", "annotations"):
        texts = (meta.get(name) or {}) | patch.get(name, {})
        meta[name] = {k: v for k, v in texts.items() if v is not None}
    return {"metadata": meta}


def test_the_first_write_says_where_it_runs() -> None:
    pod = vpod({"app": "web"}, {"note": "x"})
    patch = metadata(pod, ppod({"app": "web"}, above=Expected({"app": "web"})), D)
    assert patch == {"labels": MARK, "annotations": MAPPING}
    then = applied(pod, patch)
    assert metadata(then, ppod({"app": "web"}, above=Expected({"app": "web"})), D) == {}
    assert users_own(then, D)["metadata"]["labels"] == {"app": "web"}


def test_what_the_worker_adds_is_shown_and_followed() -> None:
    pod = vpod({"app": "web"})
    one = ppod({"mesh": "on"}, {"cni/ip": "1"})
    shown = applied(pod, metadata(pod, one, D))
    assert shown["metadata"]["labels"] == {"app": "web", "mesh": "on"} | MARK
    assert shown["metadata"]["annotations"]["cni/ip"] == "1"
    assert metadata(shown, one, D) == {}
    two = ppod({}, {"cni/ip": "2"})
    changed = applied(shown, metadata(shown, two, D))
    assert changed["metadata"]["labels"] == {"app": "web"} | MARK
    assert changed["metadata"]["annotations"]["cni/ip"] == "2"
    gone = applied(changed, metadata(changed, ppod(), D))
    assert gone["metadata"]["annotations"] == MAPPING


def test_what_is_shown_is_not_taken_for_the_users() -> None:
    pod = vpod({"app": "web"}, {"note": "x"})
    shown = applied(pod, metadata(pod, ppod({"mesh": "on"}, {"cni/ip": "1"}), D))
    own = users_own(shown, D)["metadata"]
    assert own["labels"] == {"app": "web"}
    assert own["annotations"] == {"note": "x"} | MAPPING
    assert users_own(vpod(), D)["metadata"]["labels"] == {}


def test_what_a_user_puts_there_is_never_lost() -> None:
    pod = vpod({"app": "web"})
    below = ppod({"mesh": "on"})
    shown = applied(pod, metadata(pod, below, D))
    shown["metadata"]["labels"] |= {"new": "1", "mesh": "mine"}
    then = applied(shown, metadata(shown, below, D))
    assert then["metadata"]["labels"] == {"app": "web", "new": "1", "mesh": "mine"} | MARK
    assert users_own(then, D)["metadata"]["labels"] == {"app": "web", "new": "1", "mesh": "mine"}


def test_what_came_from_above_is_not_shown_even_if_it_was_changed_below() -> None:
    pod = vpod({"app": "web"})
    below = ppod({"app": "changed"}, above=Expected({"app": "web", "old": "1"}))
    below["metadata"]["labels"]["old"] = "1"
    assert metadata(pod, below, D) == {"labels": MARK, "annotations": MAPPING}


def managed(*entries: Json) -> Json:
    return {"metadata": {"name": "web", "managedFields": list(entries)}}


def test_a_record_that_came_with_a_manifest_is_known() -> None:
    fields: Json = {"f:metadata": {"f:annotations": {f"f:{D.physical_pod_uid}": {}}}}
    users = {"manager": "kubectl", "fieldsV1": fields}
    ours = {"manager": "kubeocean", "subresource": "status", "fieldsV1": fields}
    scheduler = {"manager": "kube-scheduler", "subresource": "status", "fieldsV1": {"f:status": {}}}
    assert is_copied(managed(users), D)
    assert is_copied(managed(users, scheduler), D)
    assert not is_copied(managed(users, ours), D)
    assert not is_copied({"metadata": {}}, D)  # somebody cleared it: who knows
