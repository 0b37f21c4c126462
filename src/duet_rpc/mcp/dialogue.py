"""How the questions of a handler reach the client, and how its request goes on with the answers.

Where the revision has requests of the server, they are sent, and the request is begun anew when all
are answered. In later revisions the request is answered with the questions and a sealed state, and
the client sends it again with both. Either way the handler runs from its beginning.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from duet_rpc.engine.failures import error_member, make_overloaded
from duet_rpc.errors import InputRequired
from duet_rpc.mcp.questions import spell_question
from duet_rpc.mcp.request_state import LIFETIME, Sealed
from duet_rpc.mcp.rounds import Rounds
from duet_rpc.service import Kind
from duet_rpc.wire.messages import Notification, Request
from duet_rpc.wire.params import KEY, read_short
from duet_rpc.wire.surrogates import decode_value, encode_value

if TYPE_CHECKING:
    from duet_rpc.mcp.asked import Asked
    from duet_rpc.mcp.session import McpSession

MAX_OPEN = 1024
"""Requests of one client that may wait for what it was asked; they hold no slot."""
_INPUT_REQUIRED = b'"error":{"code":%d' % InputRequired.code
_members_decoder = msgspec.json.Decoder(dict[str, Raw])


class Repeatable(Struct, kw_only=True):
    """The params of a request that may come again, with the answers to what it was asked."""

    inputResponses: dict[str, Raw] | UnsetType = UNSET
    requestState: str | UnsetType = UNSET


class Repeated(Struct, frozen=True):
    """What has to be the same when a request comes again."""

    message: Request
    target: str
    """The method, and the tool, the prompt or the resource."""
    arguments: bytes | None

    @property
    def digest(self) -> bytes:
        """A digest of the arguments."""
        from duet_rpc.ledger.fingerprint import fingerprint  # here: it loads hashlib

        return fingerprint(self.target, self.arguments)


class Dialogue:
    """The questions to one client."""

    def __init__(self, session: "McpSession", retake: Callable[[Request], None]) -> None:
        self._session = session
        self._retake = retake
        self._answered: dict[bytes, tuple[Request, Rounds]] = {}
        """The answers with which requests are begun anew, by their ids. They are for no other
        request, whatever its id."""
        self._open: dict[bytes, list[Any]] = {}
        """The calls of ours whose answers a request waits for."""

    def is_open(self, id: bytes) -> bool:
        """Tell whether a request waits under this id for what its client was asked."""
        return id in self._open

    def take_answers(self, message: Request | Notification) -> Rounds:
        """Take the answers with which a request is begun anew; none if it is new."""
        found = None
        if isinstance(message, Request):
            found = self._answered.get(message.id)
        if found is None or found[0] is not message:
            return Rounds({})
        del self._answered[found[0].id]
        return found[1]

    def resume(self, asked: "Asked", params: Repeatable, repeated: Repeated) -> None:
        """Take the answers that a request brings, and those of the rounds before."""
        rounds = asked.rounds
        if not asked.revision.is_modern:
            return
        if params.requestState is not UNSET:
            state = self._session.bound.seal.open(
                params.requestState,
                principal=self._session.origin.principal,
                target=repeated.target,
                arguments=repeated.digest,
            )
            rounds.responses |= state.responses
            rounds.key = state.key
        if params.inputResponses is not UNSET:
            rounds.responses |= params.inputResponses

    def spell(
        self, asked: "Asked", repeated: Repeated, spell: Callable[[bytes], bytes], member: bytes
    ) -> bytes:
        """Spell an answer; one that needs input first becomes a round of questions."""
        if not member.startswith(_INPUT_REQUIRED) or not asked.rounds.pending:
            return spell(member)
        if asked.revision.is_modern:
            return self._spell_questions(asked, repeated)
        if len(self._open) >= MAX_OPEN:
            return spell(error_member(make_overloaded()))
        self._ask(asked, repeated)
        return b""

    def _spell_questions(self, asked: "Asked", repeated: Repeated) -> bytes:
        rounds, session = asked.rounds, self._session
        key, method = rounds.key, rounds.method
        if key is None and method is not None and method.kind is Kind.COMMAND:
            key = _find_key(repeated)
            if key is None and method.dedupe_window is None:  # else its arguments are its key
                key = f"asked-{os.urandom(16).hex()}"
        state = Sealed(
            session.origin.principal,
            repeated.target,
            repeated.digest,
            time.time() + LIFETIME,
            key,
            rounds.responses,
        )
        result = {
            "resultType": "input_required",
            "inputRequests": rounds.describe_pending(asked),
            "requestState": session.bound.seal.close(state),
        }
        return b'"result":' + encode_value(result)

    def _ask(self, asked: "Asked", repeated: Repeated) -> None:
        """Send the questions, and begin the request anew when all are answered."""
        rounds, message = asked.rounds, repeated.message
        following = Rounds(dict(rounds.responses), rounds.key)
        waiting = set(rounds.pending)

        def settle(name: str, reply: Any) -> None:
            waiting.discard(name)
            try:
                following.responses[name] = Raw(encode_value(reply.take()))
            except Exception as error:
                following.failed = error
            if waiting or self._open.pop(message.id, None) is None:
                return
            if self._session.peer.gone is None:  # else there is no one to answer
                self._answered[message.id] = message, following
                self._retake(message)

        calls = self._open[message.id] = []
        try:
            for name, question in list(rounds.pending.items()):
                params = spell_question(question, asked.revision)
                reply: Any = self._session.peer.call(None, question.method, params, None, Any)
                calls.append(reply)
                reply.on_settled = partial(settle, name, reply)
        except BaseException:
            self.drop(message.id)
            raise

    def drop(self, id: bytes) -> None:
        """The client has cancelled a request: what it was asked for it need not answer."""
        self._answered.pop(id, None)
        for reply in self._open.pop(id, ()):
            reply.give_up()


def _find_key(repeated: Repeated) -> str | None:
    """Find the key among the arguments of a command."""
    if repeated.arguments is None:
        return None
    key = read_short(decode_value(_members_decoder, repeated.arguments).get(KEY, UNSET))
    return key if isinstance(key, str) else None
