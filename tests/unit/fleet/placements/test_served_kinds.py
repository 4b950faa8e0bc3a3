"""Kinds of the hub while its discovery is complete, and while it is not."""

from __future__ import annotations

from kubeocean.fleet.selection.kinds import ServedKinds
from kubeocean.runtime.objects import GroupVersionKind, Resource, Untyped


def a_resource(plural: str, kind: str, group: str = "", version: str = "v1") -> Resource[Untyped]:
    return Resource(group, version, plural, kind, True, Untyped)


PODS = a_resource("pods", "Pod")
THINGS = a_resource("things", "Thing", "example.com")
OLD_THINGS = a_resource("things", "Thing", "example.com", "v1alpha1")
THING = GroupVersionKind("example.com", "v1", "Thing")
DEFINITIONS = {"things.example.com"}
SERVICES = {"v1.", "v1.example.com", "v1alpha1.example.com"}
ALL = ServedKinds().updated([PODS, THINGS, OLD_THINGS], DEFINITIONS, SERVICES)


def test_the_first_version_is_preferred() -> None:
    assert THING in ALL.preferred
    assert len(ALL.resources) == 3
    assert len(ALL.preferred) == 2
    assert ALL.namespaced[THING]


def test_a_kind_that_discovery_omits_for_a_moment_stays() -> None:
    incomplete = ALL.updated([PODS], DEFINITIONS, SERVICES)
    assert incomplete == ALL
    assert ALL.updated([], DEFINITIONS, SERVICES) == ALL


def test_a_kind_whose_definition_is_deleted_goes() -> None:
    left = ALL.updated([PODS], set(), SERVICES)
    assert THING not in left.resources
    assert len(left.resources) == 1


def test_a_kind_whose_service_is_deleted_goes() -> None:
    assert ALL.updated([PODS], DEFINITIONS, {"v1."}).resources.keys() == {
        GroupVersionKind("", "v1", "Pod")
    }


def test_definitions_without_a_kind_are_named() -> None:
    assert ALL.undiscovered([*DEFINITIONS, "gadgets.example.com"]) == ["gadgets.example.com"]
    assert ALL.undiscovered(DEFINITIONS) == []


GADGET = GroupVersionKind("example.com", "v1", "Gadget")
REPORT = GroupVersionKind("reports.example.org", "v1", "Report")


def test_a_kind_that_was_selected_and_is_not_discovered_is_unread() -> None:
    started = ServedKinds().updated([PODS], DEFINITIONS, SERVICES)
    pod = GroupVersionKind("", "v1", "Pod")
    assert started.unread([pod, THING], DEFINITIONS, SERVICES) == [THING]
    assert started.unread([THING], set(), {"v1."}) == []


def test_a_kind_whose_definition_is_gone_is_absent_and_not_unread() -> None:
    assert ALL.unread([GADGET], DEFINITIONS, SERVICES) == []
    assert ALL.unread([GADGET], {*DEFINITIONS, "gadgets.example.com"}, SERVICES) == [GADGET]


def test_kinds_of_an_aggregated_server_that_does_not_answer_are_unread() -> None:
    services = {*SERVICES, "v1.reports.example.org"}
    assert ALL.unread([REPORT], DEFINITIONS, services) == [REPORT]
    assert ALL.unread([REPORT], DEFINITIONS, SERVICES) == []
    summaries = a_resource("summaries", "Summary", "reports.example.org")
    answers = ServedKinds().updated([PODS, THINGS, summaries], DEFINITIONS, services)
    assert answers.unread([REPORT], DEFINITIONS, services) == []
