"""Tasks as records of the ledger: what is kept of a task, and what becomes of its command.

A task is two records. One holds the arguments and says since when the task is there; its method is
that of the command with "task " before it, and it is written before the task is announced. The
other is the command's own, the same as without a task. So a task has no state of its own: it is
what the ledger says of the command. Its id is the method and the key, as one text; the principal is
never taken from it.
"""

import asyncio
import base64
import binascii
from typing import NamedTuple

import msgspec
from msgspec import Struct

from duet_rpc.engine.failures import error_member
from duet_rpc.errors import InProgress, InvalidParams, KeyReused, OutcomeUnknown
from duet_rpc.kinds import Promise
from duet_rpc.ledger import Command, Ending, Ledger, Ran, Record, State
from duet_rpc.ledger.commands import Commands
from duet_rpc.ledger.fingerprint import fingerprint
from duet_rpc.ledger.stores.base import Series
from duet_rpc.service import Method
from duet_rpc.wire.messages import NULL
from duet_rpc.wire.surrogates import encode_value

PREFIX = "task "
"""Before the name of a method: the method of the records that hold arguments. No method that a
client can call has a blank in its name and this before it."""
MAX_ID = 4096
PAUSE = 0.1
"""Seconds between two tries to give a command its outcome that runs somewhere else."""
_RESULT = b'"result":'
_handle_decoder = msgspec.json.Decoder(tuple[str, str])


class TaskHandle(NamedTuple):
    """What the id of a task says: which method, under which key."""

    method: str
    key: str


def write_id(handle: TaskHandle) -> str:
    """Write a handle as a text that is safe in URLs and headers."""
    return base64.urlsafe_b64encode(encode_value(handle)).decode().rstrip("=")


def read_id(text: str) -> TaskHandle | None:
    """Read an id; None if it is not one that we write."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        handle = TaskHandle(*_handle_decoder.decode(base64.urlsafe_b64decode(padded)))
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return None
    is_ours = len(text) <= MAX_ID and handle.key.isprintable() and write_id(handle) == text
    return handle if is_ours else None


class Task(Struct, frozen=True):
    """A task, as its record has it."""

    principal: str
    method: Method
    key: str
    arguments: bytes | None
    """The params of the command, as they came."""
    created_at: float = 0.0
    """In seconds since 1970, by the clock of the store."""
    ttl: float = 0.0
    """For how many seconds from then on the record is kept."""

    @property
    def id(self) -> str:
        """What clients call it."""
        return write_id(TaskHandle(self.method.name, self.key))

    @property
    def command(self) -> Command:
        """The command, as the ledger sees every call of it under this key."""
        name, promise = self.method.name, self.method.promise
        assert promise is not None, "only commands are tasks"
        print_ = fingerprint(name, self.arguments)
        return Command(self.principal, name, self.key, print_, promise, self.id)

    @property
    def record(self) -> Command:
        """The writing of the record of the task itself, which does no harm when done twice."""
        name = PREFIX + self.method.name
        print_ = fingerprint(name, self.arguments)
        return Command(self.principal, name, self.key, print_, Promise.RETRY_SAFE, self.id)


def find_ending(task: Task, record: Record | None) -> bytes | None:
    """Say what the command is answered with, as the member of an answer; None if it may yet end."""
    if record is None:
        return None
    if record.fingerprint != task.command.fingerprint:
        return error_member(KeyReused())  # by a call that came in between
    if record.state is State.UNKNOWN:
        return error_member(OutcomeUnknown())
    return record.outcome


def _read_task(record: Record, method: Method) -> Task | None:
    """Read the record of a task; None if it has not been written to the end."""
    if record.outcome is None:
        return None
    arguments = record.outcome.removeprefix(_RESULT)
    return Task(
        record.identity.principal,
        method,
        record.identity.key,
        None if arguments == NULL else arguments,
        record.created_at,
        record.expires_at - record.created_at,
    )


class TaskRecords:
    """Reads and writes what a ledger keeps of tasks; on an event loop."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    @property
    def _ledger(self) -> Ledger:
        return self._commands.ledger

    async def create(self, task: Task, age: float) -> Task:
        """Write the record of a task, or find the one that was written under its key before.

        Raises `KeyReused` if the key was used for something else. `age`, seconds since the call was
        first sent, tells "never created" from "forgotten".
        """
        held = _RESULT + (task.arguments or NULL)
        limit = self._ledger.max_outcome_bytes
        if len(held) > limit:
            raise InvalidParams(
                data={"param": "arguments", "expected": f"{limit} bytes at most, of a task"}
            )
        await self._check_command(task, age)

        async def write(run: object) -> Ran:
            return Ran(held)

        await self._ledger.run_async(task.record, write)
        stored = await self.find(task.principal, task.method, task.key)
        assert stored is not None, "it has just been written, and is kept for longer than this"
        return stored

    async def _check_command(self, task: Task, age: float) -> None:
        """Refuse a task whose command has been another call, or has perhaps been forgotten."""
        command = task.command
        found = await self._look(command, age)
        if found is None:
            return
        if found.fingerprint and found.fingerprint != command.fingerprint:
            raise KeyReused()
        is_forgotten = not found.fingerprint and command.promise is not Promise.RETRY_SAFE
        if is_forgotten and await self.find(task.principal, task.method, task.key) is None:
            raise OutcomeUnknown()

    async def find(self, principal: str, method: Method, key: str) -> Task | None:
        """Find a task of a principal; None if there is none, or none any more."""
        record = await self._look(Task(principal, method, key, None).record)
        return None if record is None else _read_task(record, method)

    async def list(
        self, principal: str, methods: dict[str, Method], since: float, limit: int
    ) -> list[Task]:
        """List the tasks of a principal from a time on, the oldest first."""
        found = []
        for record in await self._ledger.list_async(Series(principal, PREFIX, since), limit):
            method = methods.get(record.identity.method.removeprefix(PREFIX))
            task = None if method is None else _read_task(record, method)
            if task is not None:
                found.append(task)
        return found

    async def look(self, task: Task) -> Record | None:
        """Tell what became of the command of a task."""
        return await self._look(task.command)

    async def _look(self, command: Command, age: float = 0.0) -> Record | None:
        return await self._ledger.outcome_async(*command.identity, age=age)

    async def settle(self, task: Task, member: bytes, *, tries: int | None = None) -> None:
        """Give the command of a task this outcome, unless it has one.

        If it runs, that run is waited for, in this process or another: for as long as it takes, or
        so many times.
        """

        async def refuse(run: object) -> Ran:
            return Ran(member, Ending.DECLARED)

        while tries is None or tries > 0:
            tries = None if tries is None else tries - 1
            try:
                await self._ledger.run_async(task.command, refuse)
            except InProgress:
                await asyncio.sleep(PAUSE)
                continue
            except (OutcomeUnknown, KeyReused):
                return
            # A run that was joined may have left nothing behind.
            if find_ending(task, await self.look(task)) is not None:
                return
