"""The examples of the JSON-RPC 2.0 specification, section 7, under SPEC.

Code, message, id and result are compared. `data` is allowed by the specification, and ours says
what to do.
"""

import json
from typing import Any

import pytest

from duet_rpc.policy import SPEC
from tests.conformance.specimen import specimen
from tests.helpers import exchange

INVALID = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": None}
UNPARSED = {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": None}
NOT_FOUND = {"code": -32601, "message": "Method not found"}

EXAMPLES: dict[str, tuple[str, Any]] = {
    "rpc call with positional parameters": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}',
        {"jsonrpc": "2.0", "result": 19, "id": 1},
    ),
    "rpc call with positional parameters, the other way round": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}',
        {"jsonrpc": "2.0", "result": -19, "id": 2},
    ),
    "rpc call with named parameters": (
        '{"jsonrpc": "2.0", "method": "subtract",'
        ' "params": {"subtrahend": 23, "minuend": 42}, "id": 3}',
        {"jsonrpc": "2.0", "result": 19, "id": 3},
    ),
    "rpc call with named parameters, the other way round": (
        '{"jsonrpc": "2.0", "method": "subtract",'
        ' "params": {"minuend": 42, "subtrahend": 23}, "id": 4}',
        {"jsonrpc": "2.0", "result": 19, "id": 4},
    ),
    "a notification": ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
    "a notification to nobody": ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    "rpc call of non-existent method": (
        '{"jsonrpc": "2.0", "method": "foobar", "id": "1"}',
        {"jsonrpc": "2.0", "error": NOT_FOUND, "id": "1"},
    ),
    "rpc call with invalid JSON": (
        '{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
        UNPARSED,
    ),
    "rpc call with invalid request object": (
        '{"jsonrpc": "2.0", "method": 1, "params": "bar"}',
        INVALID,
    ),
    "rpc call batch, invalid JSON": (
        '[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
        ' {"jsonrpc": "2.0", "method"]',
        UNPARSED,
    ),
    "rpc call with an empty array": ("[]", INVALID),
    "rpc call with an invalid batch, but not empty": ("[1]", [INVALID]),
    "rpc call with invalid batch": ("[1,2,3]", [INVALID, INVALID, INVALID]),
    "rpc call batch": (
        """[
        {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
        {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
        {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
        {"jsonrpc": "2.0", "method": "get_data", "id": "9"}
        ]""",
        [
            {"jsonrpc": "2.0", "result": 7, "id": "1"},
            {"jsonrpc": "2.0", "result": 19, "id": "2"},
            INVALID,
            {"jsonrpc": "2.0", "error": NOT_FOUND, "id": "5"},
            {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"},
        ],
    ),
    "rpc call batch, all notifications": (
        '[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},'
        ' {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]',
        None,
    ),
}


def without_data(answer: Any) -> Any:
    if isinstance(answer, list):
        return [without_data(item) for item in answer]
    if "error" in answer:
        answer["error"].pop("data", None)
    return answer


@pytest.mark.clause("messages-1", "messages-5", "batches-2", "batches-4", "batches-6", "batches-7")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_specifications_example(name: str) -> None:
    sent, expected = EXAMPLES[name]
    answers = exchange(SPEC, specimen(), sent.encode())
    assert [without_data(json.loads(answer)) for answer in answers] == (
        [] if expected is None else [expected]
    )
