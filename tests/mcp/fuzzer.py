"""Random and mutated messages, and what has to be true of every conversation all the same.

every request with a readable id has one answer under that id, unless it was cancelled
no answer has an id that was not asked under
every message that leaves fits the published schema of its revision
nothing is raised, and nothing is logged as a fault but what handlers raise
"""

import json
import random
from collections import Counter
from typing import Any

from tests.mcp.conversation import NO_MESSAGES, NOTIFICATIONS, ODD_META, REQUESTS, with_meta
from tests.mcp.line import MODERN, MODERN_META, PREFIX, REVISIONS, Foreseen, McpLine
from tests.mcp.published import Published, published

SESSION = 400
"""How many messages one connection has to bear."""

METHODS = sorted({method for method, _ in [*REQUESTS, *NOTIFICATIONS]})
SCALARS: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e300, 2**31, 2**53, 2**64, 10**40, "", "a", "0", "null"),
    *("\x00", "\ud800", "é", "\U0001f600", "a" * 300, "from-4", "zoo_number", "zoo://all", MODERN),
]
NAMES = [
    *("name", "arguments", "_meta", "cursor", "uri", "jsonrpc", "id", "method", "params", "result"),
    *(
        "task",
        "taskId",
        "error",
        "value",
        "a",
        "progressToken",
        "requestId",
        "idempotency_key",
        "level",
        "",
    ),
    *(PREFIX + "protocolVersion", PREFIX + "clientCapabilities", PREFIX + "logLevel"),
]


class Tally:
    """What a run has seen."""

    def __init__(self) -> None:
        self.messages = self.requests = self.answers = self.notifications = self.cancelled = 0
        self.anonymous = self.results = self.failed_tools = 0
        self.codes: Counter[int] = Counter()

    def __str__(self) -> str:
        codes = ", ".join(f"{code}: {count:,}" for code, count in sorted(self.codes.items()))
        return (
            f"{self.messages:,} messages, {self.requests:,} requests, {self.answers:,} answers"
            f" ({self.results:,} results, {self.failed_tools:,} of them failed tools,"
            f" {self.anonymous:,} without an id), {self.notifications:,} notifications,"
            f" {self.cancelled:,} cancelled; errors: {codes}"
        )


class Fuzzer:
    """One source of messages for one revision."""

    def __init__(self, revision: str, seed: int) -> None:
        self.revision = revision
        self.random = random.Random(f"{revision} {seed}")
        self._next = 0

    def make_id(self) -> Any:
        self._next += 1
        number = self._next
        return self.random.choice((number, -number, f"r{number}", number + 2**53, f"é\n{number}"))

    def make_value(self, depth: int = 0) -> Any:
        pick = self.random.random()
        if depth > 3 or pick < 0.7:
            return self.random.choice(SCALARS)
        size = self.random.randrange(4)
        if pick < 0.85:
            return [self.make_value(depth + 1) for _ in range(size)]
        return {self.random.choice(NAMES): self.make_value(depth + 1) for _ in range(size)}

    def make_message(self) -> Any:
        """Make a sound message, or nearly so."""
        rng = self.random
        if rng.random() < 0.08:
            method, params = rng.choice(NOTIFICATIONS)
            message: Any = {"jsonrpc": "2.0", "method": method}
        else:
            method, params = rng.choice(REQUESTS)
            if rng.random() < 0.05:
                method, params = "tools/call", {"name": "zoo_hold", "arguments": {"name": "x"}}
            if method == "initialize" and rng.random() < 0.9:
                method, params = "ping", {}
            message = {"jsonrpc": "2.0", "id": self.make_id(), "method": method}
        era = self.revision if rng.random() < 0.97 else rng.choice(REVISIONS)
        params = with_meta(params, era)
        if rng.random() < 0.03:
            params = {**(params or {}), "_meta": rng.choice(ODD_META)}
        return message if params is None else {**message, "params": params}

    def mutate(self, value: Any) -> Any:
        """Change one thing, anywhere."""
        rng = self.random
        if isinstance(value, dict) and value and rng.random() < 0.85:
            # What is inside is more rarely refused at the door.
            inside = "params" in value and rng.random() < 0.5
            name = "params" if inside else rng.choice(list(value))
            pick = rng.random()
            changed = dict(value)
            if pick < 0.15:
                del changed[name]
            elif pick < 0.30:
                changed[name] = self.make_value()
            elif pick < 0.36:
                changed[rng.choice(NAMES)] = self.make_value()
            elif pick < 0.40 and "method" in changed:
                changed["method"] = rng.choice(METHODS)
            elif pick < 0.43:
                changed[rng.choice(NAMES)] = changed.pop(name)
            else:
                changed[name] = self.mutate(value[name])
            return changed
        if isinstance(value, list) and value and rng.random() < 0.7:
            at = rng.randrange(len(value))
            return [*value[:at], self.mutate(value[at]), *value[at + 1 :]]
        return self.make_value()

    def spoil(self, line: bytes) -> bytes:
        """Change some bytes."""
        rng = self.random
        data = bytearray(line)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            pick = rng.random()
            if pick < 0.3:
                data[at : at + rng.randrange(1, 5)] = b""
            elif pick < 0.6:
                data[at:at] = bytes(
                    rng.choices(b'{}[]",:\\0123456789.eE-+tfnu \t\xff\xc3\x00', k=2)
                )
            elif pick < 0.8 and at < len(data):
                data[at] = rng.randrange(256)
            elif pick < 0.9:
                data = data[:at]
            else:
                data += data[at:]
        return bytes(data)

    def make_line(self) -> bytes:
        """Make what arrives next."""
        rng = self.random
        pick = rng.random()
        if pick < 0.02:
            return rng.choice(NO_MESSAGES)
        if pick < 0.03:
            return rng.randbytes(rng.randrange(60)).translate(None, b"\r\n")
        if pick < 0.06:
            items = [self.make_message() for _ in range(rng.randrange(5))]
            items = [self.mutate(item) if rng.random() < 0.3 else item for item in items]
            return json.dumps(items).encode()
        message = self.make_message()
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
            message = self.mutate(message)
        line = json.dumps(message, ensure_ascii=rng.random() < 0.8 or _has_lone(message)).encode()
        if rng.random() < 0.1:
            line = self.spoil(line)
        return line.translate(None, b"\r\n")


def _has_lone(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


def read_json(line: bytes) -> tuple[bool, Any]:
    """Read a line as strictly as JSON is; say whether it is JSON."""
    try:
        return True, json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False, None


def is_id(id: Any) -> bool:
    return isinstance(id, (str, int)) and not isinstance(id, bool)


class Conversation:
    """One connection, and what it owes."""

    def __init__(self, fuzzer: Fuzzer, tally: Tally) -> None:
        self._fuzzer = fuzzer
        self._tally = tally
        self._line = McpLine()
        self._revision: str | None = None
        self._methods: dict[Any, set[tuple[str | None, str | None]]] = {}
        """Under each id that was asked under: the methods, and the revisions they were asked in."""
        self._owed: Counter[Any] = Counter()
        self._may_lack: set[Any] = set()
        self._may_come: Counter[Any] = Counter()
        self._anonymous = 0
        self._took_batch = False

    def run(self, count: int) -> None:
        """Say so much, then see whether everything was answered."""
        rng = self._fuzzer.random
        if rng.random() < 0.9:
            for message in self._line.open(self._fuzzer.revision):
                if self._fuzzer.revision != MODERN:
                    self._revision = message["result"]["protocolVersion"]
        for _ in range(count):
            self._step(rng)
        while self._line.host.open:
            self._receive(self._line.release(self._line.host.open[0]))
        lacking = {id: count for id, count in self._owed.items() if count > 0}
        assert lacking.keys() <= self._may_lack, f"never answered: {lacking}"
        self._tally.cancelled += len(lacking)
        self._check_log()

    def close(self) -> None:
        """End what belongs to the connection."""
        self._line.close()

    def _check_log(self) -> None:
        names = ("Foreseen", "Unserializable")
        for error in self._line.log.failures:
            if not (type(error).__name__ in names or isinstance(error, Foreseen)):
                raise AssertionError("a fault of our own was logged") from error

    def _step(self, rng: random.Random) -> None:
        pick, host = rng.random(), self._line.host
        if host.open and pick < 0.1:
            self._receive(self._line.release(rng.choice(host.open)))
        elif host.open and pick < 0.15:
            id = json.loads(rng.choice(host.open).id or b"null")
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            self._say(json.dumps({**cancel, "params": {"requestId": id}}).encode())
        else:
            self._say(self._fuzzer.make_line())

    def _say(self, line: bytes) -> None:
        self._tally.messages += 1
        is_json, value = read_json(line)
        items = value if isinstance(value, list) else [value]
        in_batch = isinstance(value, list)
        takes_batches = self._revision == "2025-03-26"
        self._took_batch = self._took_batch or takes_batches
        if is_json and (takes_batches or not in_batch):
            for item in items:
                self._note(item, in_batch)
        # What is anonymous in a batch comes with the others, when a tool that is held has ended.
        self._anonymous += max(1, len(items)) if in_batch and takes_batches else 1
        try:
            answers = self._line.send(line)
            self._receive(answers)
        except BaseException as error:
            error.add_note(f"after {line[:3000]!r}")
            raise
        if is_json and not in_batch and isinstance(value, dict):
            self._check_answered(value, line)

    def _note(self, item: Any, in_batch: bool) -> None:
        """Note what is owed for a message."""
        if not isinstance(item, dict):
            return
        id, method = item.get("id"), item.get("method")
        if method == "notifications/cancelled" and "id" not in item:
            params = item.get("params")
            if isinstance(params, dict) and is_id(params.get("requestId")):
                self._may_lack.add(_key(params["requestId"]))
        if not is_id(id):
            return
        key = _key(id)
        if "method" in item:
            self._owed[key] += 1
            self._tally.requests += 1
        else:
            self._may_come[key] += 1  # an answer, or nothing that is known
        params = item.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        names = meta.get(PREFIX + "protocolVersion") if isinstance(meta, dict) else None
        revision = self._revision if names is None else MODERN
        asked = (method if isinstance(method, str) else None, revision)
        self._methods.setdefault(key, set()).add(asked)

    def _check_answered(self, item: dict[str, Any], line: bytes) -> None:
        """A request has its answer at once, unless its tool is held."""
        id = item.get("id")
        if "method" not in item or not is_id(id) or self._line.host.open:
            return
        assert self._owed[_key(id)] <= 0 or _key(id) in self._may_lack, f"no answer to {line!r}"

    def _receive(self, messages: list[Any]) -> None:
        for message in messages:
            for each in message if isinstance(message, list) else [message]:
                if isinstance(message, list):
                    assert self._took_batch
                revision = "2025-03-26" if isinstance(message, list) else self._revision
                self._receive_one(each, revision)

    def _receive_one(self, message: Any, revision: str | None) -> None:
        if "method" in message:
            self._tally.notifications += 1
            _schema(revision).check_unasked(message)
            return
        self._tally.answers += 1
        self._count(message)
        id = message.get("id")
        if id is None:
            self._anonymous -= 1
            assert self._anonymous >= 0, "more answers than messages"
            _schema(revision).check_answer(message, None)
            return
        key = _key(id)
        assert key in self._methods, f"no one has asked under {id!r}"
        if self._owed[key] > 0:
            self._owed[key] -= 1
        else:
            assert self._may_come[key] > 0, f"answered twice: {message}"
            self._may_come[key] -= 1
        if "protocolVersion" in message.get("result", {}):
            self._revision = message["result"]["protocolVersion"]
        asked = self._methods[key]
        for number, (method, at_first) in enumerate(asked, 1):
            try:
                now = self._revision if method == "initialize" else at_first
                _schema(now).check_answer(message, method)
                return
            except AssertionError:
                if number == len(asked):
                    raise

    def _count(self, message: Any) -> None:
        tally = self._tally
        tally.anonymous += message.get("id") is None
        if "error" in message:
            tally.codes[message["error"]["code"]] += 1
        else:
            tally.results += 1
            tally.failed_tools += message["result"].get("isError") is True


def _key(id: Any) -> tuple[type, Any]:
    """Tell 1 and "1" apart."""
    return type(id), id


def _schema(revision: str | None) -> Published:
    return published("2025-11-25" if revision is None else revision)


def fuzz(revision: str, count: int, seed: int) -> Tally:
    """Send so many messages, over as many connections as it takes."""
    fuzzer, tally = Fuzzer(revision, seed), Tally()
    while tally.messages < count:
        conversation = Conversation(fuzzer, tally)
        conversation.run(min(SESSION, count - tally.messages))
        conversation.close()
    return tally


__all__ = ["MODERN_META", "fuzz"]
