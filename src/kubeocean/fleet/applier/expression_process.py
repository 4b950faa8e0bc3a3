"""Expression process: evaluates expressions in a child process with limits.

Users of the hub write expressions, and an expression can take minutes and gigabytes. The child
process ends itself when one evaluation takes more than `CPU_S` of processor time or `MEMORY_BYTES`,
and it runs with low priority. The parent goes on meanwhile, and starts another child for the next
evaluation. A child that ends for whatever reason is the problem of that one evaluation.

The child is started at the first evaluation. It reads lines from its standard input, and answers
each with one line: JSON of expression and object, JSON of the value or of an `ExpressionProblem`.
It ends when its input does, and so with its parent.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kubeocean.fleet.applier.expressions import ExpressionProblem, compiled
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.objects import Json

__all__ = ["CPU_S", "MEMORY_BYTES", "ExpressionProcess"]

CPU_S: Final = 0.5
MEMORY_BYTES: Final = 128 << 20  # above the memory of an idle child
_WAIT_S: Final = 30.0  # for a child that gets no processor time
_NICE: Final = 10

_TOO_LONG: Final = f"the evaluation takes more than {CPU_S:g} s of processor time"
_TOO_LARGE: Final = f"the evaluation needs more than {MEMORY_BYTES >> 20} MiB of memory"

_ANSWERS: Final[msgspec.json.Decoder[bool | ExpressionProblem]] = msgspec.json.Decoder(
    bool | ExpressionProblem
)


class ExpressionProcess:
    """Evaluates expressions one after the other in a child process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def evaluate(self, expression: str, obj: Json) -> bool | ExpressionProblem:
        """Return whether the expression is true for an object. Raises only if cancelled."""
        try:
            request = msgspec.json.encode((expression, obj)) + b"\n"
        except (TypeError, ValueError) as error:
            return ExpressionProblem(f"the object is no JSON: {error}")
        async with self._turn:
            try:
                return await within(self._clock, _WAIT_S, lambda: self._ask(request))
            except TimeoutError:
                await self._end()
                return ExpressionProblem(
                    f"the evaluation has not ended after {_WAIT_S:g} s", is_passing=True
                )
            except OSError as error:
                await self._end()
                return ExpressionProblem(
                    f"the process that evaluates CEL expressions could not be started: {error}",
                    is_passing=True,
                )
            except BaseException:
                await self._end()  # its answer would be taken for that of the next evaluation
                raise

    async def close(self) -> None:
        """End the child process."""
        async with self._turn:
            await self._end()

    async def _ask(self, request: bytes) -> bool | ExpressionProblem:
        child = self._child
        is_new = child is None or child.returncode is not None
        if child is None or is_new:
            child = self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", __name__),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # signals of a terminal are for the parent
            )
        assert child.stdin is not None and child.stdout is not None
        answer = b""
        with suppress(ConnectionError):  # the child has ended
            child.stdin.write(request)
            await child.stdin.drain()
            answer = await child.stdout.readline()
        if answer.endswith(b"\n"):
            return _ANSWERS.decode(answer)
        # Not killed: that could collect the exit code before asyncio does.
        code = await child.wait()
        await self._end()
        problem = _problem_of(code)
        if problem.is_passing and not is_new:
            return await self._ask(request)  # the child may have ended before the request
        return problem

    async def _end(self) -> None:
        """Kill the child process if it still runs."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
        child.stdin.close()
        await child.wait()


def _problem_of(code: int) -> ExpressionProblem:
    """Return the problem of an evaluation whose process ended with this exit code."""
    match -code:
        case signal.SIGPROF:
            return ExpressionProblem(_TOO_LONG)
        case signal.SIGABRT:  # of the library, if an allocation fails
            return ExpressionProblem(_TOO_LARGE)
        case _:
            return ExpressionProblem(f"the evaluation ended with the code {code}", is_passing=True)


# --- the child


def _serve() -> None:
    """Answer the requests on standard input until its end."""
    compiled("true")  # loads the library, which no evaluation has to pay for
    _limit()
    requests = msgspec.json.Decoder(tuple[str, Json])
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        answer = _answer(*requests.decode(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def _answer(expression: str, obj: Json) -> bool | ExpressionProblem:
    program = compiled(expression)
    return program if isinstance(program, ExpressionProblem) else program.evaluate(obj)


def _limit() -> None:
    """Limit the memory of this process; a signal of its timer ends it without a core dump."""
    os.nice(_NICE)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    _serve()
