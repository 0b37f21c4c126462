"""The published JSON schemas of MCP, and which part of them a message has to fit.

They come with the protocol's conformance suite (`make mcp-clients`). It carries all revisions but
the first, whose schema is that of the second without what came with it.
"""

import copy
import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError

from tests.interop.mcp.clients import MISSING, SCHEMAS
from tests.mcp.published_tasks import check_task_result

FIRST, SECOND = "2024-11-05", "2025-03-26"

_RESULTS = {
    "initialize": "InitializeResult",
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "completion/complete": "CompleteResult",
}
_OPEN = ("inputSchema", "outputSchema", "_meta", "experimental", "extensions")
"""What holds objects of others, which may have any members."""


class Published:
    """The schema of one revision, with objects closed: a member of a later one is a fault."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        path = SCHEMAS / f"{SECOND if revision == FIRST else revision}.json"
        if not path.exists():
            pytest.skip(MISSING)
        schema = json.loads(path.read_text("utf-8"))
        self._key = "$defs" if "$defs" in schema else "definitions"
        self._defined: dict[str, Any] = schema[self._key]
        if revision == FIRST:
            _take_back(self._defined)
        self._validators: dict[str, Any] = {}
        self._methods = {
            each["properties"]["method"]["const"]: name
            for name, each in self._defined.items()
            if "const" in each.get("properties", {}).get("method", {})
        }
        closed = {name: _close(each) for name, each in self._defined.items()}
        open_ones = {
            name: each
            for name, each in self._defined.items()
            if "Error" in name or name.endswith("MetaObject")
        }
        self._closed = closed | open_ones
        self._valid: set[tuple[str, str]] = set()

    def _check(self, name: str, value: Any) -> None:
        # Most answers of a long conversation have been seen before.
        text = json.dumps(value)
        if (name, text) in self._valid:
            return
        assert name in self._defined, f"{self.revision} has no {name}: {text[:2000]}"
        if name not in self._validators:
            make: Any = Draft202012Validator if self._key == "$defs" else Draft7Validator
            self._validators[name] = make(
                {"$ref": f"#/{self._key}/{name}", self._key: self._closed}
            )
        try:
            self._validators[name].validate(value)
        except ValidationError as error:
            where = "/".join(map(str, error.absolute_path))
            raise AssertionError(
                f"{self.revision}: no {name}: at {where}: {error.message[:400]}\n{text[:2000]}"
            ) from None
        if len(self._valid) < 100_000:
            self._valid.add((name, text))

    def _name(self, *names: str) -> str:
        return next(name for name in names if name in self._defined)

    @property
    def is_modern(self) -> bool:
        return self.revision == "2026-07-28"

    def check_answer(self, message: Any, method: str | None) -> None:
        """Check the answer to a request, or to something whose method is not known."""
        assert isinstance(message, dict)
        assert message.keys() <= {"jsonrpc", "id", "result", "error"}
        is_anonymous = message.get("id") is None
        if is_anonymous:
            # No schema has null here; before 2025-11-25 none can do without an id either.
            assert "error" in message
            assert ("id" in message) is ("$defs" != self._key), message
        steady = {**message, "id": 0}  # the same for all, for the memory of what was valid
        if "error" in message:
            self._check(self._name("JSONRPCErrorResponse", "JSONRPCError"), steady)
            assert message["error"]["code"] not in range(-32019, -32002), "ours do not go out"
            specific = self._specific_error(message["error"]["code"])
            if specific is not None:
                self._check(specific, steady)
            return
        assert not is_anonymous
        least = {"resultType": "complete"} if self.revision == "2026-07-28" else {}
        self._check(
            self._name("JSONRPCResultResponse", "JSONRPCResponse"), {**steady, "result": least}
        )
        assert method is not None, message
        if check_task_result(self, method, message["result"]):
            return
        empty = self._name("EmptyResult")
        self._check(_RESULTS.get(method, empty), message["result"])
        if self.revision == "2026-07-28":
            assert message["result"]["resultType"] == "complete"

    @cache  # noqa: B019  there is one for each revision
    def _specific_error(self, code: int) -> str | None:
        for name, each in self._defined.items():
            parts = each.get("properties", {}).get("error", {}).get("allOf", ())
            codes = [part.get("properties", {}).get("code", {}).get("const") for part in parts]
            if code in codes:
                return name
        return None

    def check_unasked(self, message: Any) -> None:
        """Check a notification."""
        assert message.keys() <= {"jsonrpc", "method", "params"}
        self._check(self._name("JSONRPCNotification"), message)
        assert message["method"] in self._methods, message
        unversioned = {name: value for name, value in message.items() if name != "jsonrpc"}
        name = self._methods[message["method"]]
        has_version = "jsonrpc" in self._defined[name]["properties"]
        self._check(name, message if has_version else unversioned)

    def check_part(self, name: str, value: Any) -> None:
        """Check a part of a message by its name in the schema."""
        self._check(name, value)

    def check(self, message: Any, method: str | None) -> None:
        """Check whatever leaves the server."""
        if "method" in message:
            self.check_unasked(message)
        else:
            self.check_answer(message, method)


@cache
def published(revision: str) -> Published:
    """Read the schema of a revision."""
    return Published(revision)


def _take_back(defined: dict[str, Any]) -> None:
    """Take what came with the second revision out of its schema.

    The message of progress stays: the first revision does not name it, and lets it be.
    """
    del defined["AudioContent"], defined["Tool"]["properties"]["annotations"]
    del defined["ServerCapabilities"]["properties"]["completions"]
    audio = {"$ref": "#/definitions/AudioContent"}
    for part in list(defined.values()):
        _drop(part, audio)


def _drop(part: Any, choice: Any) -> None:
    if isinstance(part, dict):
        for value in part.values():
            _drop(value, choice)
    elif isinstance(part, list):
        while choice in part:
            part.remove(choice)
        for value in part:
            _drop(value, choice)


def _close(schema: Any) -> Any:
    """Let no object have members that it does not name, unless it says that it may."""
    if isinstance(schema, list):
        return [_close(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties":
            closed[name] = {
                each: copy.deepcopy(part) if each in _OPEN else _close(part)
                for each, part in value.items()
            }
        else:
            closed[name] = copy.deepcopy(value) if name in ("enum", "allOf") else _close(value)
    if "properties" in closed and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed
