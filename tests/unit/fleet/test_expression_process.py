"""The process that evaluates expressions: its limits, its end, and its successor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from kubeocean.fleet.applier.expression_process import CPU_S, ExpressionProcess
from kubeocean.fleet.applier.expressions import ExpressionProblem
from kubeocean.runtime.objects import Json
from support.wait import until

LARGE: Json = {"text": "ab" * 200_000, "list": list(range(5000)), "few": list(range(100))}
READY: Json = {"status": {"phase": "Ready"}}
IS_READY = "self.status.phase == 'Ready'"
SLOW = "self.list.all(n, !self.text.matches('(a|b)*z'))"


@pytest.fixture
async def process() -> AsyncIterator[ExpressionProcess]:
    process = ExpressionProcess()
    yield process
    await process.close()


def children() -> list[psutil.Process]:
    """Return the processes that evaluate expressions for this one."""
    name = "kubeocean.fleet.applier.expression_process"
    return [each for each in psutil.Process().children() if name in each.cmdline()]


async def test_values_and_problems_are_returned(process: ExpressionProcess) -> None:
    assert await process.evaluate(IS_READY, READY) is True
    assert await process.evaluate(IS_READY, {"status": {"phase": "No"}}) is False
    missing = ExpressionProblem('the object has no field "status"', is_missing=True)
    assert await process.evaluate(IS_READY, {}) == missing
    invalid = await process.evaluate("ready", READY)
    assert isinstance(invalid, ExpressionProblem) and "undeclared reference" in invalid.message
    assert isinstance(await process.evaluate(IS_READY, {"a": object()}), ExpressionProblem)


async def test_many_evaluations_at_once_get_their_own_answers(process: ExpressionProcess) -> None:
    numbers = range(50)
    answers = await asyncio.gather(
        *(process.evaluate(f"self.n == {n}", {"n": n - n % 2}) for n in numbers)
    )
    assert answers == [n % 2 == 0 for n in numbers]
    assert len(children()) == 1


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (SLOW, f"the evaluation takes more than {CPU_S:g} s of processor time"),
        ("self.few.map(a, self.few.map(b, self.text + string(b))).size() == 1", "memory"),
        ("self.few.all(a, size(self.text + self.text + self.text + self.text) > 0)", ""),
    ],
    ids=["time", "memory", "both"],
)
async def test_the_costliest_expressions_end_and_others_go_on(
    process: ExpressionProcess, expression: str, reason: str
) -> None:
    problem, ready = await asyncio.gather(
        process.evaluate(expression, LARGE), process.evaluate(IS_READY, READY)
    )
    assert isinstance(problem, ExpressionProblem)
    assert reason in problem.message
    assert not problem.is_passing
    assert ready is True


async def test_a_killed_process_is_replaced(process: ExpressionProcess) -> None:
    for _ in range(3):
        assert await process.evaluate(IS_READY, READY) is True
        (child,) = children()
        child.kill()  # while it is idle


async def test_an_evaluation_whose_process_is_killed_can_be_repeated(
    process: ExpressionProcess,
) -> None:
    evaluation = asyncio.create_task(process.evaluate(SLOW, LARGE))
    await until(lambda: len(children()) == 1, every=0.001)
    (child,) = children()
    child.kill()
    problem = await evaluation
    assert isinstance(problem, ExpressionProblem)
    assert problem.is_passing
    assert await process.evaluate(IS_READY, READY) is True


async def test_a_cancelled_evaluation_leaves_no_answer_behind(process: ExpressionProcess) -> None:
    assert await process.evaluate(IS_READY, READY) is True
    (child,) = children()
    child.suspend()
    evaluation = asyncio.create_task(process.evaluate("false", READY))
    await asyncio.sleep(0.05)
    evaluation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await evaluation
    assert await process.evaluate(IS_READY, READY) is True


async def test_the_process_ends_with_its_owner() -> None:
    process = ExpressionProcess()
    await process.close()  # nothing was started
    assert await process.evaluate(IS_READY, READY) is True
    (child,) = children()
    await process.close()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    await process.close()


async def test_the_process_ends_when_its_input_does() -> None:
    process = ExpressionProcess()
    assert await process.evaluate(IS_READY, READY) is True
    (child,) = children()
    assert process._child is not None and process._child.stdin is not None
    process._child.stdin.close()
    assert await process._child.wait() == 0
    assert child.pid != os.getpid()
    await process.close()


async def test_the_process_has_a_lower_priority_and_ignores_the_terminal() -> None:
    process = ExpressionProcess()
    assert await process.evaluate(IS_READY, READY) is True
    (child,) = children()
    assert child.nice() > psutil.Process().nice()
    assert os.getsid(child.pid) != os.getsid(0)
    os.kill(child.pid, signal.SIGTERM)
    await process.close()
