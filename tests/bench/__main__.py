"""`make bench`: measure, compare with the bars, print a table and JSON.

Subjects that are compared run in turns, several times, and each one's best run counts: what else
the machine does then disturbs all of them alike or none. Exit code 1 means that a bar was missed.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from bench.bars import Bar, Figures, document, show
from bench.crowd import bars_of_crowd, gather
from bench.fleet import FleetSize, bars_of_fleet, measure_fleet
from bench.lending import bars_of, lend
from bench.living import bars_of_living, live
from bench.proxier import carry_sessions, sessions_bars
from bench.server import Server
from bench.sharding import measure_sharding
from bench.syncing import sync_from_a_real_server
from kubeocean.local.progress import progress_on

TURNS = 4
EVENTS, OFFICIAL_EVENTS, REQUESTS, PODS, REAL_PODS = 10_000, 1_000, 6_400, 50_000, 10_000
CLIENT_CORE, SERVER_CORE = 0, 1
QUIET_S = 60.0
CROWD = 5_000
SUBJECTS = ["runtime", "lending", "living", "crowd", "sharding", "proxier", "fleet"]


def measure(directory: Path) -> Figures:
    """All subjects on the canned server, each in a process of its own."""
    figures: Figures = {}
    two_cores = (os.cpu_count() or 1) > 1
    with Server(directory, core=SERVER_CORE if two_cores else None) as server:
        (directory / "ca.crt").write_bytes(server.ca)

        def subject(name: str, count: int) -> None:
            print(f"bench: {name}", file=sys.stderr)
            run = [sys.executable, "-m", "bench.subjects", name, server.url]
            answer = subprocess.run(
                [*run, str(directory / "ca.crt"), str(count)],
                env=os.environ | {"BENCH_DIRECTORY": str(directory)},
                preexec_fn=(lambda: os.sched_setaffinity(0, {CLIENT_CORE})) if two_cores else None,
                check=True,
                stdout=subprocess.PIPE,
            )
            before = figures.get(name, {})
            figures[name] = {
                key: min(value, before.get(key, value))
                for key, value in json.loads(answer.stdout).items()
            }

        for turn in range(TURNS):
            subject("watch_bare", EVENTS)
            subject("watch_ours", EVENTS)
            subject("unary_bare", REQUESTS)
            subject("unary_ours", REQUESTS)
            if turn < 2:
                subject("watch_official", OFFICIAL_EVENTS)
                subject("fill_partial", PODS)
                subject("fill_whole", PODS)
    return figures


def bars(figures: Figures) -> list[Bar]:
    """The promises, with what was measured."""
    ours, bare = figures["watch_ours"]["us"], figures["watch_bare"]["us"]
    unary, floor = figures["unary_ours"], figures["unary_bare"]
    fill = figures["fill_partial"]
    return [
        Bar("event against a bare read", ours / bare, 3.0, "x"),
        Bar("official client against ours", figures["watch_official"]["us"] / ours, 12, "x", "≥"),
        Bar("GET against bare aiohttp", unary["get_us"] / floor["get_us"], 1.6, "x"),
        Bar("PATCH against bare aiohttp", unary["patch_us"] / floor["patch_us"], 1.6, "x"),
        Bar("50,000 Pods", fill["gigabytes"], 0.7, "GB"),
        Bar("longest stall while they fill", fill["stall_ms"], 100, "ms"),
    ]


def measure_runtime(directory: Path) -> tuple[Figures, list[Bar]]:
    """The machinery under everything else."""
    figures = measure(directory)
    print(f"bench: {REAL_PODS} pods on a real kube-apiserver", file=sys.stderr)
    real = sync_from_a_real_server(directory, REAL_PODS, progress_on(sys.stderr))
    figures["sync_real"] = asyncio.run(real)
    return figures, bars(figures)


def measure_lending(directory: Path, nodes: int, idle_s: float) -> tuple[Figures, list[Bar]]:
    """A syncer with many nodes."""
    actual = asyncio.run(lend(directory, nodes, idle_s, progress_on(sys.stderr)))
    return {"lending": actual}, bars_of(actual)


def measure_living(directory: Path, pods: int, quiet_s: float) -> tuple[Figures, list[Bar]]:
    """Pods from their creation to their end."""
    actual = asyncio.run(live(directory, pods, quiet_s, progress_on(sys.stderr)))
    return actual, bars_of_living(actual)


def measure_crowd(directory: Path, nodes: int) -> tuple[Figures, list[Bar]]:
    """Memory, with many of everything."""
    actual = asyncio.run(gather(directory, nodes, CROWD, progress_on(sys.stderr)))
    return {"crowd": actual}, bars_of_crowd(actual)


def measure_proxier(directory: Path, held_s: float) -> tuple[Figures, list[Bar]]:
    """Sessions into real containers."""
    actual = asyncio.run(carry_sessions(directory, held_s))
    return {"proxier": actual}, sessions_bars(actual)


def measure_members(directory: Path, size: FleetSize) -> tuple[Figures, list[Bar]]:
    """A hub with many members and placements."""
    actual = asyncio.run(measure_fleet(directory, size, progress_on(sys.stderr)))
    return actual, bars_of_fleet(actual)


def main() -> int:
    parser = ArgumentParser("bench", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="|".join(SUBJECTS), help="which; all")
    parser.add_argument("--nodes", type=int, default=1000, help="virtual nodes")
    parser.add_argument("--pods", type=int, default=500, help="pods of each measurement")
    parser.add_argument("--idle", type=float, default=600, help="seconds of doing nothing")
    parser.add_argument("--held", type=float, default=60, help="seconds of holding sessions")
    fleet = FleetSize()
    parser.add_argument("--members", type=int, default=fleet.members, help="members of a fleet")
    parser.add_argument(
        "--clusters", type=int, default=fleet.clusters, help="clusters of each placement"
    )
    parser.add_argument("--placements", type=int, default=fleet.placements, help="placements")
    parser.add_argument(
        "--heartbeat", type=int, default=fleet.heartbeat_s, help="seconds between heartbeats"
    )
    requested = parser.parse_args()
    chosen = requested.subjects or SUBJECTS
    figures: Figures = {}
    promised: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="kubeocean-bench-") as name:
        for subject in chosen:
            if subject == "runtime":
                measured = measure_runtime(Path(name))
            elif subject == "lending":
                measured = measure_lending(Path(name), requested.nodes, requested.idle)
            elif subject == "living":
                measured = measure_living(Path(name), requested.pods, QUIET_S)
            elif subject == "crowd":
                measured = measure_crowd(Path(name), requested.nodes)
            elif subject == "proxier":
                measured = measure_proxier(Path(name), requested.held)
            elif subject == "fleet":
                size = FleetSize(
                    members=requested.members,
                    clusters=requested.clusters,
                    placements=requested.placements,
                    heartbeat_s=requested.heartbeat,
                    idle_s=min(requested.idle, fleet.idle_s),
                )
                measured = measure_members(Path(name), size)
            elif subject == "sharding":
                measured = measure_sharding(Path(name))
            else:
                parser.error(f"there is no subject {subject}")
            figures |= measured[0]
            promised += measured[1]
    show(figures, promised)
    out = Path("build/bench.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(document(figures, promised), indent=2) + "\n")
    print(f"bench: also in {out}")
    return 0 if all(bar.held for bar in promised) else 1


if __name__ == "__main__":
    sys.exit(main())
