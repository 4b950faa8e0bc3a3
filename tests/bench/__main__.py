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
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.server import Server
from bench.syncing import sync_from_a_real_server
from kubeocean.local.progress import progress_on

TURNS = 4
EVENTS, OFFICIAL_EVENTS, REQUESTS, PODS, REAL_PODS = 10_000, 1_000, 6_400, 50_000, 10_000
CLIENT_CORE, SERVER_CORE = 0, 1


@dataclass(frozen=True)
class Bar:
    """What a figure must not exceed, or must reach."""

    name: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def held(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def measure(directory: Path) -> dict[str, dict[str, float]]:
    """All subjects on the canned server, each in a process of its own."""
    figures: dict[str, dict[str, float]] = {}
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


def bars(figures: dict[str, dict[str, float]]) -> list[Bar]:
    """The promises, with what was measured."""
    ours, bare = figures["watch_ours"]["us"], figures["watch_bare"]["us"]
    unary, floor = figures["unary_ours"], figures["unary_bare"]
    fill = figures["fill_partial"]
    return [
        Bar("event against a bare read", ours / bare, 3.0, "x"),
        Bar("official client against ours", figures["watch_official"]["us"] / ours, 12, "x", True),
        Bar("GET against bare aiohttp", unary["get_us"] / floor["get_us"], 1.6, "x"),
        Bar("PATCH against bare aiohttp", unary["patch_us"] / floor["patch_us"], 1.6, "x"),
        Bar("50,000 Pods", fill["gigabytes"], 0.7, "GB"),
        Bar("longest stall while they fill", fill["stall_ms"], 100, "ms"),
    ]


def show(figures: dict[str, dict[str, float]], promised: list[Bar]) -> None:
    console = Console(soft_wrap=True)
    raw = Table("subject", "figure", "value", title="measured (CPU unless said otherwise)")
    for name, values in figures.items():
        for key, value in values.items():
            raw.add_row(name, key, f"{value:,.2f}")
    console.print(raw)
    table = Table("promise", "measured", "bar", "held", title="bars")
    for bar in promised:
        sign = "≥" if bar.at_least else "≤"
        limit = f"{sign} {bar.limit:g} {bar.unit}"
        table.add_row(bar.name, f"{bar.value:.2f} {bar.unit}", limit, "yes" if bar.held else "NO")
    console.print(table)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kubeocean-bench-") as name:
        figures = measure(Path(name))
        print(f"bench: {REAL_PODS} pods on a real kube-apiserver", file=sys.stderr)
        real = sync_from_a_real_server(Path(name), REAL_PODS, progress_on(sys.stderr))
        figures["sync_real"] = asyncio.run(real)
    promised = bars(figures)
    show(figures, promised)
    out = Path("build/bench.json")
    out.parent.mkdir(exist_ok=True)
    result = {
        "figures": figures,
        "bars": [
            {"name": b.name, "value": b.value, "limit": b.limit, "unit": b.unit, "held": b.held}
            for b in promised
        ],
    }
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"bench: also in {out}")
    return 0 if all(bar.held for bar in promised) else 1


if __name__ == "__main__":
    sys.exit(main())
