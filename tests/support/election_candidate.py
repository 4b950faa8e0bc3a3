"""A candidate in a process of its own, which writes lines to a file only while it leads.

    python election_candidate.py KUBECONFIG NAMESPACE IDENTITY FILE LEASE_S RENEW_S RETRY_S

Each line is `<seconds> <identity> <event>`, on a clock that all processes of the machine share. The
process decides, reads the clock and writes the line without waiting in between.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from kubeocean.runtime.client import connect
from kubeocean.runtime.election import Election, LeadershipLost

_EVERY_S = 0.01


class Candidate:
    def __init__(self, election: Election, file: int) -> None:
        self._election = election
        self._file = file
        self._tasks: list[asyncio.Task[None]] = []

    def note(self, event: str) -> None:
        # The time before the check: an act counts from when it was allowed.
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        if event == "act":
            try:
                self._election.check()
            except LeadershipLost:
                event = "refused"
        os.write(self._file, f"{at:.6f} {self._election.identity} {event}\n".encode())

    async def run(self) -> None:
        """Run the candidate until `stop`."""
        async with asyncio.TaskGroup() as group:
            self._tasks = [
                group.create_task(self._election.run(self.lead, rejoin=True)),
                group.create_task(self.watch()),
            ]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def watch(self) -> None:
        """Record the holder of the lease."""
        holder = ""
        while True:
            if self._election.holder != holder:
                holder = self._election.holder
                self.note(f"see-{holder}")
            await asyncio.sleep(_EVERY_S)

    async def lead(self) -> None:
        self.note("begin")
        try:
            while True:
                self.note("act")
                await asyncio.sleep(_EVERY_S)
        finally:
            self.note("end")


async def main(arguments: list[str]) -> None:
    kubeconfig, namespace, identity, path, lease_s, renew_s, retry_s = arguments
    client = connect(kubeconfig)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    election = Election(
        client,
        namespace=namespace,
        name="candidates",
        identity=identity,
        lease_s=float(lease_s),
        renew_s=float(renew_s),
        retry_s=float(retry_s),
    )
    candidate = Candidate(election, file)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, candidate.stop)
    await candidate.run()
    await client.close()
    os.close(file)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
