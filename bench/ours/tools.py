"""The file of a person who has a tool for agents."""

from duet_rpc import Service

service = Service()


@service.query
def add(a: int, b: int) -> int:
    return a + b
