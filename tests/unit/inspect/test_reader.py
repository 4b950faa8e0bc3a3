"""Tests of the time of snapshots, and of parts that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from kubeocean.errors import Unreachable
from kubeocean.inspect.explain.reading import ExplainReader
from kubeocean.inspect.reader import SnapshotReader, concurrently
from kubeocean.inspect.snapshot import NotRead
from kubeocean.inspect.status.model import ProgramState
from kubeocean.inspect.status.reading import StatusReader
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock, text_of
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport import Request, Response
from support.scripted_transport import Scripted, answer

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DATE = "Mon, 16 Nov 2026 12:00:00 GMT"


class ComputingCluster(Scripted):
    """Answers with its time and a manager that renewed its lease 5 s ago."""

    def __init__(self, *, date: str = DATE) -> None:
        super().__init__()
        self._date = date

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        items: list[Json] = []
        if request.path.endswith("/leases"):
            renewed = text_of(NOW - timedelta(seconds=5))
            spec = {"holderIdentity": "one", "renewTime": renewed}
            items = [{"metadata": {"name": "kubeocean-manager-leader"}, "spec": spec}]
        body = {"gitVersion": "v1.34.4", "metadata": {}, "items": items}
        return answer(200, msgspec.json.encode(body), Date=self._date)


@pytest.mark.parametrize("skew_s", [45, -600])
async def test_leases_are_judged_by_the_time_of_the_server(skew_s: int) -> None:
    clock = VirtualClock(NOW + timedelta(seconds=skew_s))
    reader = StatusReader(Client(ComputingCluster(), cluster="computing"), clock=clock)
    view = await reader.look()
    assert abs(view.at - NOW) < timedelta(seconds=1)
    assert view.manager.state is ProgramState.RUNNING


@pytest.mark.parametrize("skew_s", [45, -600])
async def test_heartbeats_are_judged_by_the_time_of_the_server(skew_s: int) -> None:
    clock = VirtualClock(NOW + timedelta(seconds=skew_s))
    reader = ExplainReader(Client(ComputingCluster(), cluster="computing"), clock=clock)
    assert abs((await reader.binding("")).now - NOW) < timedelta(seconds=1)


async def test_the_time_of_the_server_is_read_once() -> None:
    transport = ComputingCluster()
    reader = StatusReader(Client(transport, cluster="computing"), clock=VirtualClock(NOW))
    await reader.look()
    await reader.look()
    assert [each.path for each in transport.requests].count("/version") == 1


@pytest.mark.parametrize(
    "transport", [ComputingCluster(date="soon"), Scripted(Unreachable("refused", sent=False))]
)
async def test_without_a_time_of_the_server_the_clock_of_this_machine_counts(
    transport: Scripted,
) -> None:
    reader = SnapshotReader(Client(transport, cluster="computing"), clock=VirtualClock(NOW))
    assert await reader.now() == NOW
    assert isinstance((await reader.server()).skew, NotRead)


async def test_a_snapshot_says_which_reads_failed() -> None:
    transport = Scripted(answer(403, b'{"kind":"Status","message":"no"}'))
    reader = SnapshotReader(Client(transport, cluster="computing"))
    nodes = await reader.nodes()
    assert isinstance(nodes, NotRead)
    assert (nodes.what, nodes.forbidden) == ("nodes", True)
    assert isinstance(await reader.identity(), NotRead)
    assert isinstance((await reader.server()).version, NotRead)


async def test_work_is_done_concurrently_up_to_a_limit() -> None:
    clock, running, most = VirtualClock(), 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await clock.sleep(0)
        running -= 1
        return number * 2

    assert await concurrently(range(7), work, limit=3) == [0, 2, 4, 6, 8, 10, 12]
    assert most == 3
