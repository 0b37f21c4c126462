"""The log as the engine sees it: somewhere to write lines, which may be nowhere."""

from typing import Any, Literal, Protocol


class Log(Protocol):
    """Where the engine tells what happened; it never says more than these two kinds of things."""

    def note(
        self, severity: Literal["debug", "info", "warn", "error"], text: str, **fields: Any
    ) -> None:
        """Tell a fact about the stream or a request."""
        ...

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        """Tell of an unforeseen exception, in full; return the reference that the peer is given."""
        ...


class Silence:
    """A log that keeps nothing."""

    def note(self, severity: str, text: str, **fields: Any) -> None:
        """Forget it."""

    def failure(self, text: str, error: BaseException, **fields: Any) -> str:
        """Forget it; the reference leads nowhere."""
        return "unlogged"
