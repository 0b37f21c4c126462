"""What a server says about its methods: `rpc.discover` (OpenRPC), else `describeMethods`.

Servers of others may have neither, and may answer anything.
"""

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from duet_rpc.cli.exit_codes import ERROR_ANSWER
from duet_rpc.cli.output import Failed
from duet_rpc.errors import InvalidAnswer, RpcError
from duet_rpc.server.description import ServiceDescription, read_method

if TYPE_CHECKING:
    from duet_rpc.blocking import Client


def describe_methods(client: "Client") -> ServiceDescription | None:
    """Ask what methods there are and of what kind; None if the server does not know how to say."""
    described = _ask(client, "describeMethods", list[dict[str, Any]])
    if described is None:
        return None
    methods = [method for method in map(read_method, described) if method is not None]
    return ServiceDescription(
        methods=tuple(replace(method, kind=method.kind or "query") for method in methods)
    )


def discover(client: "Client") -> ServiceDescription:
    """Ask everything there is to know about the methods."""
    from duet_rpc.server.openrpc import Document, read_openrpc

    document = _ask(client, "rpc.discover", Document)
    if document is not None:
        return read_openrpc(document)
    described = describe_methods(client) or ServiceDescription()
    by_name = {method.name: method for method in described.methods}
    for method in map(read_method, _ask(client, "listMethods", list[dict[str, Any]]) or []):
        if method is not None:
            known = by_name.get(method.name, method)
            by_name[method.name] = replace(
                known,
                description=known.description or method.description,
                source={**method.source, **known.source},
            )
    if not by_name:
        raise Failed(
            "the server does not say what its methods are",
            ERROR_ANSWER,
            ["It has none of rpc.discover, describeMethods and listMethods."],
        )
    return ServiceDescription(methods=tuple(by_name.values()))


def _ask(client: "Client", method: str, returns: Any) -> Any:
    try:
        return client.call(method, returns=returns)
    except (RpcError, InvalidAnswer):
        return None
