"""What clients say: messages of every kind, for long conversations and as seeds of a fuzzer."""

from typing import Any

from duet_rpc.mcp.task_records import TaskHandle, write_id
from tests.mcp.line import MODERN, MODERN_META, PREFIX

EXTENSION = PREFIX + "tasks"
_CAPABLE: dict[str, Any] = {PREFIX + "clientCapabilities": {"extensions": {EXTENSION: {}}}}
DECLARED = {**MODERN_META, **_CAPABLE}
"""What a client sends with each request that knows tasks."""

TOOL_CALLS: list[tuple[str, Any]] = [
    ("zoo_nothing", {}),
    ("zoo_number", {"a": 1}),
    ("zoo_number", {"a": 1, "b": 5}),
    ("zoo_number", {"a": "one"}),
    ("zoo_number", {}),
    ("zoo_number", {"a": 1, "c": 2}),
    ("zoo_number", {"a": 10**30}),
    ("zoo_text", {"value": "größer \U0001f600 \u2028 \x00"}),
    ("zoo_text", {"value": "\ud800"}),
    ("zoo_anything", {}),
    ("zoo_anything", {"value": None}),
    ("zoo_anything", {"value": [1, "two", {"three": 3.5}]}),
    ("zoo_anything", {"value": {"result": {}}}),
    ("zoo_anything", {"value": {"a\ud800": "\udfff"}}),
    ("zoo_anything", {"value": "a text"}),
    ("zoo_anything", {"value": 1e300}),
    ("zoo_numbers", {"values": [3, 1, 2]}),
    ("zoo_numbers", {}),
    ("zoo_point", {"at": {"x": 1, "y": 2.5, "tags": ["a"]}}),
    ("zoo_point", {"at": {"x": "a"}}),
    ("zoo_either", {"value": {"x": 1}}),
    ("zoo_either", {"value": None}),
    ("zoo_table", {}),
    ("zoo_picture", {}),
    ("zoo_contents", {}),
    ("zoo_steps", {"count": 3}),
    ("zoo_refuse", {}),
    ("zoo_refuse", {"data": {"reason": "so", "detail": "thus"}}),
    ("zoo_refuse", {"data": [1, 2]}),
    ("zoo_refuse", {"data": "\ud800"}),
    ("zoo_fail", {}),
    ("zoo_unwritable", {}),
    ("zoo_act", {"amount": 5}),
    ("zoo_act", {"amount": 5, "idempotency_key": "k-1"}),
    ("zoo_act", {"amount": 6, "idempotency_key": "k-1"}),
    ("zoo_act", {"amount": 5, "idempotency_key": ""}),
    ("zoo_act", {"amount": 5, "idempotency_key": 7}),
    ("zoo_act_again", {"amount": 5, "idempotency_key": "k-2"}),
    ("zoo_unknown", {}),
    ("", {}),
]

TASKS = [write_id(TaskHandle(f"zoo.{name}", f"t-{name}")) for name in ("act", "act_again")]
TASK_REQUESTS: list[tuple[str, Any]] = [
    *(
        (
            "tools/call",
            {
                "name": f"zoo_{name}",
                "arguments": {"amount": amount, "idempotency_key": f"t-{name}"},
                "task": task,
                "_meta": _CAPABLE,
            },
        )
        for name, amount, task in (
            ("act", 1, {}),
            ("act_again", 2, {"ttl": 1000}),
            ("act", "one", {}),
            ("act_again", 3, {}),
            ("act", 1, 7),
        )
    ),
    ("tools/call", {"name": "zoo_number", "arguments": {"a": 1}, "task": {}, "_meta": _CAPABLE}),
    *(
        (f"tasks/{what}", {"taskId": id, "_meta": _CAPABLE})
        for what in ("get", "result", "cancel", "update")
        for id in (*TASKS, "none", "WyJhIiwiYiJd")
    ),
    ("tasks/get", {"taskId": 7, "_meta": _CAPABLE}),
    ("tasks/get", {}),
    ("tasks/list", {}),
    ("tasks/list", {"cursor": "after-0x1p+0-x"}),
    ("tasks/list", {"cursor": "elsewhere"}),
    ("tasks/create", {"method": "zoo.act", "key": "k", "arguments": {}, "age": 0}),
]
REQUESTS: list[tuple[str, Any]] = [
    *TASK_REQUESTS,
    *(("tools/call", {"name": name, "arguments": given}) for name, given in TOOL_CALLS),
    ("tools/call", {"name": "zoo_nothing"}),
    ("tools/call", {"name": "zoo_number", "arguments": None}),
    ("tools/call", {"name": "zoo_number", "arguments": [1]}),
    ("tools/call", {"name": "zoo_steps", "arguments": {"count": 2}, "_meta": {"progressToken": 7}}),
    (
        "tools/call",
        {"name": "zoo_steps", "arguments": {"count": 2}, "_meta": {"progressToken": "t"}},
    ),
    (
        "tools/call",
        {
            "name": "zoo_act",
            "arguments": {"amount": 1},
            "_meta": {"duet-rpc/idempotency-key": "k-3"},
        },
    ),
    ("tools/call", {"name": "zoo_act", "arguments": {"amount": 1}, "idempotencyKey": "k-4"}),
    ("tools/call", {"arguments": {}}),
    ("tools/call", {"name": 7}),
    ("tools/call", None),
    ("tools/list", None),
    ("tools/list", {}),
    ("tools/list", {"cursor": "from-4"}),
    ("tools/list", {"cursor": "from-8"}),
    ("tools/list", {"cursor": ""}),
    ("tools/list", {"cursor": "elsewhere"}),
    ("tools/list", {"cursor": 4}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    *(
        ("resources/read", {"uri": uri})
        for uri in (
            *("zoo://all", "zoo://bytes", "zoo://points/3", "zoo://points/-3", "zoo://points/x"),
            *("zoo://files/a/b%20c.txt", "zoo://files/broken", "zoo://nothing", "", "%ff", "é"),
        )
    ),
    ("resources/read", {}),
    ("resources/subscribe", {"uri": "zoo://all"}),
    ("resources/unsubscribe", {"uri": "zoo://all"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "ask", "arguments": {"topic": "tea", "often": "2"}}),
    ("prompts/get", {"name": "ask", "arguments": {"topic": "tea", "often": "often"}}),
    ("prompts/get", {"name": "ask"}),
    ("prompts/get", {"name": "ask", "arguments": {"topic": 3}}),
    ("prompts/get", {"name": "discuss", "arguments": {}}),
    ("prompts/get", {"name": "fail_to_ask"}),
    ("prompts/get", {"name": "nothing"}),
    ("logging/setLevel", {"level": "warning"}),
    ("logging/setLevel", {"level": "loud"}),
    ("ping", None),
    ("ping", {}),
    ("server/discover", {}),
    (
        "initialize",
        {
            "protocolVersion": "1999-01-01",
            "capabilities": {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}},
            "clientInfo": {"name": "tests", "version": "1"},
        },
    ),
    ("initialize", {}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "ask"}, "argument": {}}),
    ("shutdown", None),
    ("rpc.discover", {}),
    ("zoo.number", {"a": 1}),
    ("notifications/cancelled", {"requestId": 1}),
    ("notifications/initialized", {}),
]
"""Methods and params."""

NOTIFICATIONS: list[tuple[str, Any]] = [
    ("notifications/initialized", None),
    ("notifications/cancelled", {"requestId": "none", "reason": "no more"}),
    ("notifications/cancelled", {}),
    ("notifications/progress", {"progressToken": 1, "progress": 1}),
    ("notifications/roots/list_changed", None),
    ("notifications/unknown", {}),
    ("tools/call", {"name": "zoo_number", "arguments": {"a": 1}}),
    ("tools/list", {}),
    ("unknown", {}),
]


def with_meta(params: Any, revision: str) -> Any:
    """Give params what each request of a revision carries."""
    if revision != MODERN:
        return params
    params = {} if params is None else params
    return {**params, "_meta": {**MODERN_META, **params.get("_meta", {})}}


ODD_META: list[Any] = [
    7,
    [],
    {PREFIX + "protocolVersion": MODERN},
    {PREFIX + "protocolVersion": 7, PREFIX + "clientCapabilities": {}},
    {PREFIX + "protocolVersion": "2025-11-25", PREFIX + "clientCapabilities": {}},
    {PREFIX + "protocolVersion": "2099-01-01", PREFIX + "clientCapabilities": {}},
    {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": 7},
    {**MODERN_META, PREFIX + "logLevel": [[True], None]},
    {"progressToken": {}},
    {"progressToken": None},
    {"progressToken": 1.5},
    {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
]

NO_MESSAGES: list[bytes] = [
    b"{",
    b"",
    b"null",
    b"7",
    b'"text"',
    b"[]",
    b"[1]",
    b"{}",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":1}',
    b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
    b'{"id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":7}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":7}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}',
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1e3,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
    b'{"jsonrpc":"2.0","id":"x","result":{}}',
    b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"no"}}',
    b"\xff\xfe",
    b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    b"[" * 200,
    b"[" * 200 + b"]" * 200,
]
