"""`make bench`: measure, compare with the bars, print a table and JSON.

Subjects that are compared run in turns, several times, and the best run of each counts: other work
of the machine then disturbs all of them alike, or none. Exit code 1 means that a bar was missed.
`--small` measures a small amount of everything: it shows that all subjects work, but its numbers
cannot be compared with the bars.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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

CLIENT_CORE, SERVER_CORE = 0, 1
SUBJECTS = ["runtime", "lending", "living", "crowd", "sharding", "proxier", "fleet"]


@dataclass(frozen=True)
class RuntimeSize:
    """How many of everything that the runtime is measured with."""

    turns: int = 4
    events: int = 10_000
    official_events: int = 1_000
    requests: int = 6_400
    pods: int = 50_000
    real_pods: int = 10_000


@dataclass(frozen=True)
class Size:
    """How many of everything."""

    runtime: RuntimeSize = field(default_factory=RuntimeSize)
    nodes: int = 1000
    pods: int = 500
    crowd: int = 5_000
    ring_objects: int = 13_400  # of which three quarters move
    idle_s: float = 600.0
    quiet_s: float = 60.0
    held_s: float = 60.0
    fleet: FleetSize = field(default_factory=FleetSize)


FULL = Size()
SMALL = Size(
    runtime=RuntimeSize(2, 1_000, 100, 640, 2_000, 500),
    nodes=20,
    pods=20,
    crowd=100,
    ring_objects=1_340,
    idle_s=20.0,
    quiet_s=10.0,
    held_s=5.0,
    fleet=FleetSize(members=20, clusters=5, placements=4, heartbeat_s=10, idle_s=20.0),
)


def measure(directory: Path, size: RuntimeSize) -> Figures:
    """Measure all subjects on the canned server, each in a process of its own."""
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

        for turn in range(size.turns):
            subject("watch_bare", size.events)
            subject("watch_ours", size.events)
            subject("unary_bare", size.requests)
            subject("unary_ours", size.requests)
            if turn < 2:
                subject("watch_official", size.official_events)
                subject("fill_partial", size.pods)
                subject("fill_whole", size.pods)
    return figures


def bars(figures: Figures, pods: int) -> list[Bar]:
    """Return the bars, each with the measured number."""
    ours, bare = figures["watch_ours"]["us"], figures["watch_bare"]["us"]
    unary, floor = figures["unary_ours"], figures["unary_bare"]
    fill = figures["fill_partial"]
    return [
        Bar("event against a bare read", ours / bare, 3.0, "x"),
        Bar("official client against ours", figures["watch_official"]["us"] / ours, 12, "x", "≥"),
        Bar("GET against bare aiohttp", unary["get_us"] / floor["get_us"], 1.6, "x"),
        Bar("PATCH against bare aiohttp", unary["patch_us"] / floor["patch_us"], 1.6, "x"),
        Bar(f"{pods:,} Pods", fill["gigabytes"], 0.7, "GB"),
        Bar("longest stall while they fill", fill["stall_ms"], 100, "ms"),
    ]


def measure_runtime(directory: Path, size: RuntimeSize) -> tuple[Figures, list[Bar]]:
    """Measure the packages of `runtime`; return numbers and bars."""
    figures = measure(directory, size)
    print(f"bench: {size.real_pods} pods on a real kube-apiserver", file=sys.stderr)
    real = sync_from_a_real_server(directory, size.real_pods, progress_on(sys.stderr))
    figures["sync_real"] = asyncio.run(real)
    return figures, bars(figures, size.pods)


def measure_lending(directory: Path, nodes: int, idle_s: float) -> tuple[Figures, list[Bar]]:
    """Measure a syncer with many nodes; return numbers and bars."""
    actual = asyncio.run(lend(directory, nodes, idle_s, progress_on(sys.stderr)))
    return {"lending": actual}, bars_of(actual)


def measure_living(directory: Path, pods: int, quiet_s: float) -> tuple[Figures, list[Bar]]:
    """Measure pods from their creation to their end; return numbers and bars."""
    actual = asyncio.run(live(directory, pods, quiet_s, progress_on(sys.stderr)))
    return actual, bars_of_living(actual)


def measure_crowd(directory: Path, nodes: int, pods: int) -> tuple[Figures, list[Bar]]:
    """Measure the memory of a syncer with many nodes and pods; return numbers and bars."""
    actual = asyncio.run(gather(directory, nodes, pods, progress_on(sys.stderr)))
    return {"crowd": actual}, bars_of_crowd(actual)


def measure_proxier(directory: Path, held_s: float) -> tuple[Figures, list[Bar]]:
    """Measure sessions into real containers; return numbers and bars."""
    actual = asyncio.run(carry_sessions(directory, held_s))
    return {"proxier": actual}, sessions_bars(actual)


def measure_members(directory: Path, size: FleetSize) -> tuple[Figures, list[Bar]]:
    """Measure a hub with many members and placements; return numbers and bars."""
    actual = asyncio.run(measure_fleet(directory, size, progress_on(sys.stderr)))
    return actual, bars_of_fleet(actual)


def measure_subject(subject: str, directory: Path, size: Size) -> tuple[Figures, list[Bar]]:
    """Measure one subject; return numbers and bars."""
    match subject:
        case "runtime":
            return measure_runtime(directory, size.runtime)
        case "lending":
            return measure_lending(directory, size.nodes, size.idle_s)
        case "living":
            return measure_living(directory, size.pods, size.quiet_s)
        case "crowd":
            return measure_crowd(directory, size.nodes, size.crowd)
        case "sharding":
            return measure_sharding(directory, size.ring_objects)
        case "proxier":
            return measure_proxier(directory, size.held_s)
        case "fleet":
            return measure_members(directory, size.fleet)
        case _:
            raise ValueError(f"there is no subject {subject!r}")


def arguments() -> Namespace:
    """Read the subjects and their sizes; a size that was not given is None."""
    parser = ArgumentParser("bench", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="|".join(SUBJECTS), help="which; all")
    parser.add_argument("--small", action="store_true", help="little of everything")
    parser.add_argument("--nodes", type=int, help="virtual nodes")
    parser.add_argument("--pods", type=int, help="pods of each measurement")
    parser.add_argument("--idle", type=float, help="seconds of doing nothing")
    parser.add_argument("--held", type=float, help="seconds of holding sessions")
    parser.add_argument("--members", type=int, help="members of a fleet")
    parser.add_argument("--clusters", type=int, help="clusters of each placement")
    parser.add_argument("--placements", type=int, help="placements")
    parser.add_argument("--heartbeat", type=int, help="seconds between heartbeats")
    requested = parser.parse_args()
    for subject in requested.subjects:
        if subject not in SUBJECTS:
            parser.error(f"there is no subject {subject}; choose from {', '.join(SUBJECTS)}")
    return requested


def requested_size(requested: Namespace) -> Size:
    """Return the full or the small size, with the numbers that were given."""
    size = SMALL if requested.small else FULL

    def given(**values: float | None) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value is not None}

    fleet = replace(
        size.fleet,
        **given(
            members=requested.members,
            clusters=requested.clusters,
            placements=requested.placements,
            heartbeat_s=requested.heartbeat,
            idle_s=None if requested.idle is None else min(requested.idle, size.fleet.idle_s),
        ),
    )
    whole = given(
        nodes=requested.nodes, pods=requested.pods, idle_s=requested.idle, held_s=requested.held
    )
    return replace(size, fleet=fleet, **whole)


def main() -> int:
    requested = arguments()
    size = requested_size(requested)
    figures: Figures = {}
    promised: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="kubeocean-bench-") as name:
        for subject in requested.subjects or SUBJECTS:
            measured = measure_subject(subject, Path(name), size)
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
