"""What a policy's status says of the nodes that it takes back."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from kubeocean.api.policy import SHOWN, Eviction, ReclaimStatus
from kubeocean.leasing.instants import ceil_second, instant_of, text_of
from kubeocean.leasing.plans import Phase
from kubeocean.leasing.report import News, NodeReport, counted, next_report, report_of
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.situation import Answer, Attempt, Move
from kubeocean.leasing.tolerations import Toleration
from kubeocean.runtime.objects import Condition
from unit.leasing.reclaimworld import START, World, after, guest

FORCE = Rules(force=True, grace_s=60, deadline_s=300)


def report(world: World, name: str = "v") -> NodeReport:
    """After the plan was followed, as nodes report it."""
    world.follow()
    assert world.cause is not None
    return report_of(name, world.cause, world.rules, world.follow())


def reasons(of: NodeReport) -> dict[str, tuple[str, str | None]]:
    return {pod.name: (pod.reason, pod.until) for pod in of.pods}


def news(*reports: NodeReport, **more: object) -> News:
    return News(reports=reports, **more)


def tell(
    given: News, before: ReclaimStatus | None = None, told: Condition | None = None, at: float = 0
) -> tuple[ReclaimStatus, Condition]:
    made = next_report(before, told, given, generation=3, now=after(at))
    assert made is not None
    return made


def eviction(name: str) -> Eviction:
    return Eviction("team", name, "v", text_of(START), "Due", "it had to")


def test_instants_are_whole_seconds_and_never_early() -> None:
    assert ceil_second(START) == START
    assert ceil_second(START + timedelta(milliseconds=1)) == after(1)
    assert instant_of(text_of(START)) == START
    assert (instant_of(None), instant_of(""), text_of(None)) == (None, None, None)


def test_a_pod_is_told_with_what_keeps_it_and_until_when() -> None:
    exists = (Toleration(operator="Exists"),)
    for_now = (Toleration(operator="Exists", toleration_seconds=30),)
    world = World(rules=FORCE).add(
        guest("due"),
        guest("staying", tolerations=exists),
        guest("later", tolerations=for_now),
        guest("over", finished=True),
    )
    seen = report(world)
    assert reasons(seen) == {
        "due": ("Grace", text_of(after(60))),
        "later": ("Grace", text_of(after(90))),
        "staying": ("Tolerates", None),
    }
    assert (seen.phase, seen.pending, seen.blocked) == (Phase.NOTICE, 2, 0)
    assert (seen.since, seen.evict_from, seen.deadline) == (START, after(60), after(360))
    assert seen.pods[-1].name == "staying"

    world.guarded = {"due"}
    world.now = after(61)
    seen = report(world)
    assert reasons(seen)["due"] == ("Budget", text_of(after(360)))
    assert reasons(seen)["later"] == ("ToleratesForNow", text_of(after(90)))
    assert seen.blocked == 1
    world.now = after(91)
    assert reasons(report(world))["later"] == ("Terminating", None)


def test_a_retry_of_what_a_budget_refused_changes_nothing() -> None:
    world = World(rules=FORCE, guarded={"p"}).add(guest("p"))
    world.follow()
    world.now = after(60)
    first = report(world)
    for seconds in range(61, 300, 7):
        world.now = after(seconds)
        assert report(world) == first


def test_what_was_accepted_and_does_not_show_yet_is_terminating() -> None:
    tried = Attempt(Move.EVICT, after(60), Answer.ACCEPTED)
    failed = Attempt(Move.EVICT, after(60), Answer.FAILED)
    world = World(rules=FORCE, now=START)
    world.follow()
    world.add(guest("gone", attempt=tried), guest("not", attempt=failed))
    world.now = after(60)
    seen = report_of("v", Cause.WINDOW_CLOSED, FORCE, world.follow())
    assert reasons(seen) == {"gone": ("Terminating", None), "not": ("Retry", None)}


def test_without_force_there_are_no_times() -> None:
    seen = report(World(rules=Rules(grace_s=60)).add(guest("p")))
    assert (seen.phase, seen.evict_from, seen.deadline) == (Phase.HELD, None, None)
    assert reasons(seen) == {"p": ("NotForced", None)}
    status, condition = tell(news(seen))
    assert (condition.status, condition.reason) == ("True", "NotForced")
    assert (status.eviction_time, status.deadline_time) == (None, None)


def test_nothing_is_said_before_anything_is_taken_back() -> None:
    assert next_report(None, None, News(lends=True), now=START) is None
    empty = report(World(rules=FORCE))
    assert not empty.going
    assert next_report(None, None, news(empty), now=START) is None


def test_a_reclaim_is_told_from_its_start_to_its_end() -> None:
    world = World(rules=FORCE, guarded={"kept"}).add(guest("kept"), guest("free"))
    status, condition = tell(news(report(world)))
    assert (status.cause, status.start_time) == ("WindowClosed", text_of(START))
    assert (status.eviction_time, status.deadline_time) == (text_of(after(60)), text_of(after(360)))
    assert (status.pending, status.pending_nodes, status.completion_time) == (2, 1, None)
    assert status.nodes is not None
    assert (status.nodes[0].name, status.nodes[0].phase) == ("v", "Notice")
    assert (condition.reason, condition.observed_generation) == ("GracePeriod", 3)
    assert condition.message == f"2 pods on 1 node may run until {text_of(after(60))}"

    world.now = after(60)
    evicting = report(world)
    status, condition = tell(news(evicting, evictions=(eviction("free"),)), status, condition, 60)
    assert (status.evicted, status.blocked, condition.reason) == (1, 1, "BlockedByBudget")
    assert condition.message == f"Disruption budgets hold back 1 pod until {text_of(after(360))}"
    again = tell(news(evicting), status, condition, 75)
    assert again == (status, condition)

    world.now = after(360)
    status, condition = tell(
        news(report(world), evictions=(eviction("kept"),)), status, condition, 360
    )
    assert (status.evicted, condition.reason) == (2, "DeadlinePassed")
    assert [each.name for each in status.last_evictions or ()] == ["kept", "free"]

    world.pass_until(after(400))
    status, condition = tell(news(report(world)), status, condition, 400)
    assert (status.completion_time, status.pending, status.nodes) == (text_of(after(400)), 0, None)
    assert (condition.status, condition.reason) == ("False", "Reclaimed")
    assert condition.message == "The nodes are free again; evicted: 2 pods"
    assert tell(news(report(world)), status, condition, 500) == (status, condition)


def test_a_reclaim_that_is_over_before_it_was_told_is_told() -> None:
    seen = report(World(rules=FORCE).add(guest("p")))
    over = report(World(rules=FORCE))
    given = news(over, began=seen, evictions=(eviction("p"),))
    status, condition = tell(given, at=2)
    assert (status.start_time, status.completion_time) == (text_of(START), text_of(after(2)))
    assert (status.evicted, condition.reason) == (1, "Reclaimed")
    lost, _ = tell(News(evictions=(eviction("p"),)))
    assert (lost.start_time, lost.cause) == (text_of(START), "")


def test_lending_again_stops_it_and_the_next_one_begins_anew() -> None:
    world = World(rules=FORCE).add(guest("p"))
    status, condition = tell(news(report(world), evictions=(eviction("q"),)))
    stopped, condition = tell(News(lent_again=True, lends=True), status, condition, 30)
    assert (condition.reason, condition.status) == ("LendingAgain", "False")
    assert tell(News(lends=True), stopped, condition, 40) == (stopped, condition)

    world.now, world.taints = after(100), ()
    status, condition = tell(news(report(world)), stopped, condition, 100)
    assert (status.start_time, status.evicted) == (text_of(after(100)), 0)
    assert status.completion_time is None


def test_closing_on_empty_nodes_is_not_the_reclaim_before() -> None:
    world = World(rules=FORCE).add(guest("p"))
    status, condition = tell(news(report(world), evictions=(eviction("q"),)))
    stopped, condition = tell(News(lent_again=True, lends=True), status, condition, 30)
    empty = report(World(rules=FORCE, now=after(100)))
    assert tell(news(empty, lends=True), stopped, condition, 90)[1].reason == "LendingAgain"
    status, condition = tell(news(empty), stopped, condition, 100)
    assert (status.start_time, status.completion_time) == (text_of(after(100)),) * 2
    assert (status.evicted, condition.reason) == (0, "Reclaimed")
    assert tell(news(empty), status, condition, 110) == (status, condition)


def test_a_node_that_a_policy_let_go_of_and_took_again_was_lent_again() -> None:
    world = World(rules=FORCE, cause=Cause.POLICY_NARROWED).add(guest("p"))
    status, condition = tell(news(report(world), lends=True))
    assert (status.cause, condition.reason) == ("PolicyNarrowed", "GracePeriod")
    stopped = tell(News(lent_again=True, lends=True), status, condition, 30)
    assert stopped[1].reason == "LendingAgain"
    assert tell(News(lends=True), *stopped, 40) == stopped
    done = tell(News(lends=True), status, condition, 30)
    assert done[1].reason == "Reclaimed"


def test_a_new_reclaim_that_was_over_at_once_was_not_stopped() -> None:
    world = World(rules=FORCE).add(guest("p"))
    status, condition = tell(news(report(world)))
    stopped, condition = tell(News(lends=True), status, condition, 30)
    gone = World(rules=FORCE, cause=Cause.POLICY_NARROWED, now=after(50)).add(guest("p"))
    given = News(began=report(gone), evictions=(eviction("p"),), lends=True)
    assert tell(given, stopped, condition, 60)[1].reason == "Reclaimed"


def test_a_status_is_bounded_and_numbers_count_all() -> None:
    crowd = [guest(f"p{n:03}") for n in range(50)]
    seen = [report(World(rules=FORCE).add(*crowd), f"v{n:03}") for n in range(200)]
    assert all(len(each.pods) == SHOWN for each in seen)
    many = tuple(eviction(f"p{n}") for n in range(300))
    status, _ = tell(news(*seen, evictions=many))
    assert (status.pending_nodes, status.pending, status.evicted) == (200, 10_000, 300)
    for named in (status.nodes, status.pods, status.last_evictions):
        assert named is not None
        assert len(named) == SHOWN
    assert status.last_evictions is not None
    assert status.last_evictions[0].name == "p299"
    assert len(msgspec.json.encode(status)) < 10_000


def test_what_is_counted_is_named_rightly() -> None:
    assert [counted(n, "pod") for n in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


def test_evicting_is_said_when_nobody_is_in_the_way() -> None:
    world = World(rules=FORCE, undying={"p"}).add(guest("p"))
    world.follow()
    world.now = after(60)
    assert tell(news(report(world)))[1].reason == "Evicting"
