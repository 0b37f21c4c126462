"""A module of the same program, whose functions fail."""

from duet_rpc import RpcError


class Missing(RpcError):
    code, message = 7003, "Missing"


def look_up(id: int) -> None:
    raise Missing(data=id)
