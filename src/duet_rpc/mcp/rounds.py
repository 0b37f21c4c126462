"""The rounds of questions of one request: what was answered, and what is asked for next.

In revisions with a handshake a question is a request of ours, and the handler waits for its answer.
In the later ones the request ends with its questions, and comes again with the answers: the handler
runs again from its beginning, and finds them. So does a transactional command in all revisions: no
transaction is held open while somebody thinks.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from duet_rpc.context import Context, Reply
from duet_rpc.errors import InputRequired, NeedsInput, UsageError
from duet_rpc.kinds import Promise
from duet_rpc.mcp.errors import missing_capability
from duet_rpc.mcp.questions import Question, Unanswerable, spell_question
from duet_rpc.service import Method
from duet_rpc.wire.surrogates import decode_value

if TYPE_CHECKING:
    from duet_rpc.mcp.asked import Asked

_any_decoder = msgspec.json.Decoder()


class Rounds:
    """The questions of one request."""

    def __init__(self, responses: dict[str, Raw], key: str | None = None) -> None:
        self.responses: dict[str, Raw] = responses
        """What was answered, by the keys of the questions."""
        self.key: str | None = key
        """The idempotency key that was made up for the command, if it came without."""
        self.pending: dict[str, Question] = {}
        """What was asked in this round, and is not answered."""
        self.method: Method | None = None
        self.failed: Exception | None = None
        """Why the client could not be asked."""
        self._count = 0

    def ask(
        self,
        asked: "Asked",
        ctx: Context,
        question: Question,
        key: str | None,
        timeout: float | None,
    ) -> Reply[Any]:
        """Ask a question; its answer is there, is waited for, or needs another round."""
        promise = None if self.method is None else self.method.promise
        if promise is Promise.AT_MOST_ONCE:
            raise UsageError(
                f"{ctx.method} runs at most once, so it cannot stop in the middle to ask; make it"
                " transactional, or retry_safe=True if running it again does no harm"
            )
        if not question.is_answerable(asked.capabilities):
            raise missing_capability(question.needs)
        if self.failed is not None:
            raise Unanswerable(data={"detail": str(self.failed)})
        self._count += 1
        name = key or f"question-{self._count}"
        if name in self.responses:
            try:
                value = question.read(decode_value(_any_decoder, self.responses[name]))
            except Unanswerable:
                pass  # it is asked once more
            else:
                return _Known(value)
        if asked.revision.is_modern or promise is not None:
            self.pending[name] = question
            return _Missing(self)
        params = spell_question(question, asked.revision)
        return _Awaited(ctx.call(question.method, params, timeout=timeout), question.read)

    def describe_pending(self, asked: "Asked") -> dict[str, Any]:
        """Say what is asked for, as the result of the request."""
        return {
            name: {"method": each.method, "params": spell_question(each, asked.revision)}
            for name, each in self.pending.items()
        }


class _Known:
    """An answer that is there."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value
        yield

    def result(self) -> Any:
        return self._value


class _Missing:
    """An answer that needs another round."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def __await__(self) -> Generator[Any, None, Any]:
        raise NeedsInput(InputRequired())
        yield

    def result(self) -> Any:
        raise NeedsInput(InputRequired())


class _Awaited:
    """An answer that the client is asked for while the handler waits."""

    def __init__(self, reply: Reply[Any], read: Callable[[Any], Any]) -> None:
        self._reply = reply
        self._read = read

    def __await__(self) -> Generator[Any, None, Any]:
        answer = yield from self._reply.__await__()
        return self._read(answer)

    def result(self) -> Any:
        return self._read(self._reply.result())
