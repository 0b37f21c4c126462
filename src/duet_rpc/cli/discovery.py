"""What a server says about its methods: `rpc.discover` (OpenRPC), else `describeMethods`.

Servers of others may have neither, and may answer anything.
"""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from duet_rpc.cli.failures import ERROR_ANSWER
from duet_rpc.cli.output import Failed
from duet_rpc.errors import InvalidAnswer, RpcError

if TYPE_CHECKING:
    from duet_rpc.blocking import Client


class Found(Struct):
    """One method, as far as the server tells."""

    name: str
    description: str = ""
    kind: str | None = None
    promise: str | None = None
    told: dict[str, Any] = {}
    """All that the server said about it."""


class Discovered(Struct):
    """Everything a server says about itself."""

    methods: list[Found]
    is_openrpc: bool = False
    components: dict[str, Any] = {}

    def find(self, name: str) -> Found | None:
        """Find a method by its name."""
        return next((method for method in self.methods if method.name == name), None)

    @property
    def names(self) -> list[str]:
        """The names of all methods."""
        return [method.name for method in self.methods]


class _Document(Struct):
    methods: list[dict[str, Any]]
    components: dict[str, Any] = {}


def describe_methods(client: "Client") -> Discovered | None:
    """Ask what methods there are and of what kind; None if the server does not know how to say."""
    told = _ask(client, "describeMethods", list[dict[str, Any]])
    if told is None:
        return None
    return Discovered(
        [
            Found(
                each["name"],
                _text(each.get("description")),
                _word(each.get("kind")) or "query",
                _word(each.get("promise")),
                each,
            )
            for each in told
            if isinstance(each.get("name"), str)
        ]
    )


def discover(client: "Client") -> Discovered:
    """Ask everything there is to know about the methods."""
    document = _ask(client, "rpc.discover", _Document)
    if document is not None:
        return Discovered(
            [
                Found(
                    each["name"],
                    _text(each.get("summary") or each.get("description")),
                    _word(each.get("x-kind")),
                    _word(each.get("x-promise")),
                    each,
                )
                for each in document.methods
                if isinstance(each.get("name"), str)
            ],
            True,
            document.components,
        )
    listed = _ask(client, "listMethods", list[dict[str, Any]]) or []
    described = describe_methods(client) or Discovered([])
    if not listed and not described.methods:
        raise Failed(
            "the server does not say what its methods are",
            ERROR_ANSWER,
            ["It has none of rpc.discover, describeMethods and listMethods."],
        )
    by_name = {method.name: method for method in described.methods}
    for each in listed:
        name = each.get("name")
        if isinstance(name, str):
            method = by_name.setdefault(name, Found(name))
            method.description = method.description or _text(each.get("description"))
            method.told = {**each, **method.told}
    return Discovered(list(by_name.values()))


def _ask(client: "Client", method: str, returns: Any) -> Any:
    try:
        return client.call(method, returns=returns)
    except (RpcError, InvalidAnswer):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None
