"""A stand-in for Go that builds in no time, and a finder of assets in a directory of its own.

As a program (`python fake_go.py ROOT NAME…`) the module finds assets in that directory, for tests
that need several processes.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from kubeocean.local.assets import AssetFinder
from kubeocean.local.download import Mirrors
from kubeocean.local.progress import PlainProgress, Progress

__all__ = ["AssetWorld"]

_NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once
_GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version $(cat "{root}/go-version") linux/amd64"; exit 0; fi
echo "$*" >>"{root}/builds"
env | sort >"{root}/environment"
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then target=$2; fi
    shift
done
echo "example.com/some/package" >&2
. "{root}/mode"
printf '#!/bin/sh\\necho %s\\n' "${{target##*/}}" >"$target"
"""


class AssetWorld:
    """Home, PATH and cache under `root`; nothing of the machine's is found but a few tools."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lines: list[str] = []
        self.environ = {
            "HOME": str(root / "home"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "PATH": str(root / "bin"),
            # pip must find nothing, also if this machine has a configuration for it.
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
        }

    @property
    def cache(self) -> Path:
        return self.root / "cache" / "kubeocean" / "assets"

    @property
    def builds(self) -> list[str]:
        """The arguments of each build so far."""
        file = self.root / "builds"
        return file.read_text().splitlines() if file.exists() else []

    def make(self) -> AssetWorld:
        (self.root / "bin").mkdir(parents=True)
        for tool in ("cat", "env", "sleep", "sort", "touch"):
            actual = shutil.which(tool)
            assert actual is not None
            (self.root / "bin" / tool).symlink_to(actual)
        return self

    def install_go(self, version: str = "go1.26.8", *, mode: str = ":") -> None:
        """Install a go command; `mode` is a shell command that runs before the file is written."""
        (self.root / "go-version").write_text(version)
        (self.root / "mode").write_text(mode)
        self.program("go", _GO.format(root=self.root))

    def program(self, name: str, script: str = "#!/bin/sh\n", *, directory: str = "bin") -> Path:
        path = self.root / directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return path

    def finder(
        self, *, mirrors: Mirrors | None = None, progress: Progress | None = None
    ) -> AssetFinder:
        """Return a finder of Go; `lines` collects its messages."""
        return AssetFinder(
            environ=self.environ,
            progress=progress or PlainProgress(self.lines.append),
            mirrors=mirrors or Mirrors(_NOWHERE, _NOWHERE, _NOWHERE),
        )


async def _main(root: Path, names: list[str]) -> None:
    world = AssetWorld(root)
    assets = await world.finder(progress=PlainProgress(_say)).ensure(names)
    for name in assets:
        _say(f"{name}={assets.path(name)}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2:]))
