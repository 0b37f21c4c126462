"""Batches: whether one is taken at all, and its answers in request order in one array.

Each item of a batch passes every rule alone, in `requests`. Here is what concerns them together.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from duet_rpc.errors import InvalidRequest
from duet_rpc.wire.messages import NULL, Batch, Invalid, Response, Single, TooLarge, encode_batch

if TYPE_CHECKING:
    from duet_rpc.engine.requests import Requests


class BatchAnswers:
    """The answers to one body, gathered in request order and delivered together."""

    __slots__ = ("_answers", "_deliver", "_missing", "on_delivered", "requests")

    def __init__(
        self, requests: "Requests", size: int, deliver: Callable[[bytes | None], object]
    ) -> None:
        self.requests: Requests = requests
        """To which its items belong."""
        self._answers: list[bytes | None] = [None] * size
        self._missing = size
        self._deliver = deliver
        """Takes the body of the answer, or None if nothing is answered."""
        self.on_delivered: list[Callable[[], object]] | None = []
        """Called when the answers have been delivered; None from then on."""

    def settle(self, index: int, answer: bytes | None) -> None:
        """Take what one item gave, None for no answer; deliver all when it was the last."""
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            answers = [answer for answer in self._answers if answer is not None]
            self._deliver(encode_batch(answers) if answers else None)
            delivered, self.on_delivered = self.on_delivered or (), None
            for tell in delivered:
                tell()


class SingleAnswer:
    """The answer to a body that is one message, where its absence matters too."""

    __slots__ = ("_deliver", "requests")
    on_delivered = None

    def __init__(self, requests: "Requests", deliver: Callable[[bytes | None], object]) -> None:
        self.requests: Requests = requests
        self._deliver = deliver

    def settle(self, index: int, answer: bytes | None) -> None:
        """Deliver the answer, None if there is none."""
        self._deliver(answer)


Place: TypeAlias = tuple[BatchAnswers | SingleAnswer, int] | None
"""Where an answer goes: to the others of its body, or, for None, out by itself."""


def refuse_batch(
    batch: Batch | TooLarge, limit: int, *, takes_answers: bool = True
) -> InvalidRequest | None:
    """Say why an array is not taken, before anything of it runs; None if it is.

    Answers to calls of ours are not limited: the limit is for what is asked of us. A protocol that
    has no arrays at all does not take those either.
    """
    has_answers = isinstance(batch, Batch) and batch.items and all(map(_is_answer, batch.items))
    if has_answers and takes_answers:
        return None
    if limit == 0:
        return InvalidRequest.because(
            "batch-not-supported",
            "Batch requests not supported",
            detail="send the requests one by one",
        )
    if isinstance(batch, TooLarge) or len(batch.items) > limit:
        return InvalidRequest.because(
            "batch-too-large", detail="send fewer requests at once", limit=limit
        )
    if not batch.items:
        return InvalidRequest.because("invalid-envelope", detail="the batch is empty")
    return None


def _is_answer(item: Single) -> bool:
    return type(item) is Response or (type(item) is Invalid and item.is_answer)


def is_anonymous(item: Single) -> bool:
    """Tell an answer under no id; in an array it stands for what the others leave open."""
    if type(item) is Response:
        return item.is_anonymous
    return type(item) is Invalid and item.is_answer and item.id == NULL
