"""What a Python program of the benchmark is asked to do, and the loops that ask it.

Every program, ours, a peer's or a limit's, takes one of four roles on its command line:

    serve                     answer on stdin and stdout until the input ends
    listen PATH               answer on the unix socket PATH until killed
    call PLAN PROGRAM...      start PROGRAM in a serving role, make the plan's calls, check every
                              answer, print one JSON line of measures
    dispatch KIND COUNT       bytes to bytes in this process, print one JSON line of measures

A program hands `main` a function for each role that it can take; the loops are the same for all.
Nothing but `sys` is imported before it is needed: the time from spawn to first answer is measured.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Any, Protocol

    class Pending(Protocol):
        """A call under way in a client that blocks."""

        def result(self) -> Any: ...

    Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
    Submit = Callable[[str, dict[str, Any]], Pending]
    Answer = Callable[[bytes], bytes | str | None]
    Plan = dict[str, Any]
    Measures = dict[str, float]


def main(
    *,
    serve: Callable[[], object] | None = None,
    listen: Callable[[str], object] | None = None,
    connect: Callable[[list[str]], AbstractAsyncContextManager[Call]] | None = None,
    connect_starting: Callable[[list[str]], AbstractAsyncContextManager[Call]] | None = None,
    connect_blocking: Callable[[list[str]], AbstractContextManager[Submit]] | None = None,
    dispatch: Callable[[], Answer] | None = None,
    run: Callable[[Any], Any] | None = None,
    threads: bool = False,
    raw: bool = False,
) -> None:
    """Take the role that the command line names.

    `connect_starting` gives the verb of a client for calls that are gathered, where it has one of
    its own. `run` replaces `asyncio.run` for async clients; `threads` says that a blocking client
    has several calls open by as many threads; `raw` that answers are compared as the JSON they
    came in.
    """
    match sys.argv[1:]:
        case ["serve"] if serve:
            serve()
        case ["listen", path] if listen:
            listen(path)
        case ["call", text, *program] if connect or connect_blocking:
            plan = _plan(text, raw)
            # With clients of both kinds, the blocking one makes the calls that come one by one.
            if connect_blocking and not (connect and plan["width"] > 1):
                calls = _calls_in_threads if threads and plan["width"] > 1 else _calls_blocking
                _report(_call_blocking(connect_blocking(program), plan, calls))
            elif connect:
                import asyncio

                if plan["work"] == "rounds" and connect_starting:
                    connect = connect_starting
                _report((run or asyncio.run)(_call(connect(program), plan)))
        case ["dispatch", kind, count] if dispatch:
            _report(_dispatch(dispatch(), kind, int(count)))
        case role:
            raise SystemExit(f"this program has no role {role}")


def _plan(text: str, raw: bool) -> Plan:
    import json

    plan: Plan = json.loads(text)
    if path := plan.get("payload"):
        with open(path, "rb") as file:
            data = file.read()
        plan["value"] = plan["expected"] = json.loads(data)
        plan["seen"] = lambda answer: answer
        if raw:
            # The very bytes must come back; the file is as compact as a message.
            plan["seen"], plan["expected"] = bytes, data
    return plan


def _report(measures: Measures) -> None:
    import json

    print(json.dumps(measures))


def check(got: object, expected: object) -> None:
    """A wrong answer ends the run: a fast wrong answer must never reach a table."""
    if got != expected:
        raise SystemExit(f"wrong answer: {got!r:.200}, expected {expected!r:.200}")


class _Watch:
    """Wall and processor time of this process between construction and `measures`."""

    def __init__(self) -> None:
        from time import perf_counter, process_time

        self._clocks = perf_counter, process_time
        self._wall, self._cpu = perf_counter(), process_time()

    def measures(self, latencies: list[float] | None = None) -> Measures:
        wall, cpu = (clock() for clock in self._clocks)
        found = {"wall": wall - self._wall, "cpu": cpu - self._cpu}
        if latencies:
            ordered = sorted(latencies)
            found["p50"] = ordered[len(ordered) // 2]
            found["p99"] = ordered[len(ordered) * 99 // 100]
        return found


async def _call(client: AbstractAsyncContextManager[Call], plan: Plan) -> Measures:
    async with client as call:
        await _calls(call, plan, range(-plan["warmup"], 0))
        watch = _Watch()
        latencies = await _calls(call, plan, range(plan["count"]))
        return watch.measures(latencies)


async def _calls(call: Call, plan: Plan, numbers: range) -> list[float]:
    import asyncio
    from time import perf_counter

    method, ask = _question(plan)
    latencies: list[float] = []
    match plan["work"]:
        case "one":
            for number in numbers:
                params = ask(number)
                start = perf_counter()
                got = await call(method, params)
                latencies.append(perf_counter() - start)
                check(got, number + 1)
        case "window":
            shared = iter(numbers)

            async def caller() -> None:
                for number in shared:
                    check(await call(method, ask(number)), number + 1)

            await asyncio.gather(*(caller() for _ in range(plan["width"])))
        case "rounds":
            for group in _groups(numbers, plan["width"]):
                got = await asyncio.gather(*(call(method, ask(number)) for number in group))
                check(got, [number + 1 for number in group])
        case "echo":
            for _ in numbers:
                start = perf_counter()
                got = await call("echo", {"value": plan["value"]})
                latencies.append(perf_counter() - start)
                check(plan["seen"](got), plan["expected"])
                del got
    return latencies


def _call_blocking(
    client: AbstractContextManager[Submit],
    plan: Plan,
    calls: Callable[[Submit, Plan, range], list[float]],
) -> Measures:
    with client as submit:
        calls(submit, plan, range(-plan["warmup"], 0))
        watch = _Watch()
        latencies = calls(submit, plan, range(plan["count"]))
        return watch.measures(latencies)


def _calls_in_threads(submit: Submit, plan: Plan, numbers: range) -> list[float]:
    """A window of calls, each open call on a thread of its own."""
    from concurrent.futures import ThreadPoolExecutor

    method, ask = _question(plan)
    shared = iter(numbers)

    def caller(_: int) -> None:
        for number in shared:
            check(submit(method, ask(number)).result(), number + 1)

    with ThreadPoolExecutor(plan["width"]) as pool:
        for _ in pool.map(caller, range(plan["width"])):
            pass  # what a thread raised is raised here
    return []


def _calls_blocking(submit: Submit, plan: Plan, numbers: range) -> list[float]:
    from collections import deque
    from time import perf_counter

    method, ask = _question(plan)
    latencies: list[float] = []
    match plan["work"]:
        case "one":
            for number in numbers:
                params = ask(number)
                start = perf_counter()
                got = submit(method, params).result()
                latencies.append(perf_counter() - start)
                check(got, number + 1)
        case "window":
            pending: deque[tuple[int, Pending]] = deque()
            for number in numbers:
                if len(pending) == plan["width"]:
                    oldest, answer = pending.popleft()
                    check(answer.result(), oldest + 1)
                pending.append((number, submit(method, ask(number))))
            for number, answer in pending:
                check(answer.result(), number + 1)
        case "rounds":
            for group in _groups(numbers, plan["width"]):
                answers = [submit(method, ask(number)) for number in group]
                check([answer.result() for answer in answers], [number + 1 for number in group])
        case "echo":
            for _ in numbers:
                start = perf_counter()
                got = submit("echo", {"value": plan["value"]}).result()
                latencies.append(perf_counter() - start)
                check(plan["seen"](got), plan["expected"])
                del got
    return latencies


def _question(plan: Plan) -> tuple[str, Callable[[int], dict[str, Any]]]:
    """The method to call and its params for a number; the answer is the number and one."""
    if name := plan.get("command"):
        return "commit", lambda number: {"a": number, "b": 1, "idempotency_key": f"{name} {number}"}
    return "add", lambda number: {"a": number, "b": 1}


def _groups(numbers: range, width: int) -> Iterator[range]:
    for start in range(0, len(numbers), width):
        yield numbers[start : start + width]


_REQUEST = {"jsonrpc": "2.0", "method": "add", "params": {"a": 1, "b": 2}, "id": 7}
_NOTIFICATION = {"jsonrpc": "2.0", "method": "add", "params": {"a": 1, "b": 2}}
_ANSWER = {"jsonrpc": "2.0", "result": 3, "id": 7}
BATCH = 50


def _dispatch(answer: Answer, kind: str, count: int) -> Measures:
    """Seconds for one message (one item, in a batch), the quickest of five loops."""
    import json
    from time import perf_counter

    body, expected, items = {
        "request": (_REQUEST, _ANSWER, 1),
        "notification": (_NOTIFICATION, None, 1),
        "batch": ([_REQUEST | {"id": i} for i in range(BATCH)],
                  [_ANSWER | {"id": i} for i in range(BATCH)], BATCH),
    }[kind]  # fmt: skip
    data = json.dumps(body, separators=(",", ":")).encode()
    got = answer(data)
    check(json.loads(got) if got else None, expected)
    loops = []
    for _ in range(5):
        rounds = range(max(1, count // items))
        start = perf_counter()
        for _ in rounds:
            answer(data)
        loops.append((perf_counter() - start) / len(rounds) / items)
    return {"seconds": min(loops)}


class Done:
    """A call that was over when it returned."""

    def __init__(self, value: object) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


def spawn(program: list[str]) -> Any:
    """Start PROGRAM as a stdio server, on pipes, for a client that does not do so itself."""
    import subprocess

    return subprocess.Popen(
        [*program, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=-1
    )
