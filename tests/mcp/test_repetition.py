"""Agents that repeat a call with the same arguments and no key, where a tool does the same once."""

from typing import Any

import pytest

from duet_rpc import Context, RpcError, Service
from duet_rpc.mcp import Text, ToolOptions
from duet_rpc.mcp.tools import MAX_DESCRIPTION
from duet_rpc.policy import AGENT, PRODUCTION
from tests.mcp.in_hand import InHand

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
EVERY = pytest.mark.parametrize("revision", REVISIONS)


class Full(RpcError):
    code, message = 507, "The mailbox is full"


class Mail:
    """A service that sends, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.service = service = Service("mail")

        @service.command(dedupe="arguments", dedupe_window=90)
        def send(to: str) -> dict[str, int]:
            """Send a mail."""
            self.sent.append(to)
            if to == "full":
                raise Full()
            if to == "fail":
                raise ValueError(to)
            return {"count": len(self.sent)}

        @service.command(dedupe="arguments", dedupe_window=90)
        def tell(to: str) -> list[Text]:
            """Tell somebody something."""
            self.sent.append(to)
            return []

        @service.command(dedupe="arguments", tool=ToolOptions(idempotent=False))
        def long() -> None:
            self.sent.append("long")

        long.__doc__ = "It is long. " * 200


@pytest.fixture
def mail() -> Mail:
    return Mail()


@pytest.mark.clause("repetition-1")
@EVERY
def test_a_repetition_says_that_it_is_one_and_holds_the_same(mail: Mail, revision: str) -> None:
    agent = InHand(mail.service, revision=revision)
    first = agent.call("mail_send", to="ada")
    again = agent.call("mail_send", to="ada")
    assert "_meta" not in first and again["_meta"] == {"duet-rpc/repetition": True}
    assert again.get("structuredContent") == first.get("structuredContent")
    block, note = again["content"]
    assert [block] == first["content"] and note["type"] == "text"
    assert note["text"].startswith("Already done, a moment ago")
    assert "within 90 s" in note["text"] and "give a new idempotency_key" in note["text"]
    assert mail.sent == ["ada"]
    other = agent.call("mail_send", to="ada", idempotency_key="once more")
    assert len(other["content"]) == 1 and mail.sent == ["ada", "ada"]
    same = agent.call("mail_send", to="ada", idempotency_key="once more")
    assert same == other, "a key of its own says enough"


@pytest.mark.clause("repetition-1")
@pytest.mark.parametrize("to", ["full", "fail"])
def test_so_does_a_failure_that_is_repeated(mail: Mail, to: str) -> None:
    agent = InHand(mail.service)
    first = agent.call("mail_send", to=to)
    again = agent.call("mail_send", to=to)
    assert again["isError"] and again["content"][:1] == first["content"]
    assert again["content"][1]["text"].startswith("Already tried, and it failed, a moment ago")
    assert again["_meta"] == {**first["_meta"], "duet-rpc/repetition": True}
    assert mail.sent == [to]


@pytest.mark.clause("repetition-1")
def test_so_does_a_result_that_is_content(mail: Mail) -> None:
    agent = InHand(mail.service)
    assert agent.call("mail_tell", to="ada") == {"content": []}
    (note,) = agent.call("mail_tell", to="ada")["content"]
    assert note["text"].startswith("Already done") and mail.sent == ["ada"]


@pytest.mark.clause("repetition-1")
def test_arguments_that_do_not_fit_are_no_repetition(mail: Mail) -> None:
    agent = InHand(mail.service)
    refused = [agent.call("mail_send", to=1) for _ in range(2)]
    assert refused[0] == refused[1] and len(refused[0]["content"]) == 1


@pytest.mark.clause("repetition-2")
@pytest.mark.parametrize("policy", [AGENT, PRODUCTION])
def test_the_tool_says_so_ahead(mail: Mail, policy: Any) -> None:
    tools = InHand(mail.service, policy=policy).tools()
    send = tools["mail_send"]
    assert send["description"].startswith("Send a mail.\n\nThe same call within 90 s is taken")
    assert "give a new idempotency_key" in send["description"]
    assert send["inputSchema"]["required"] == ["to"], "a key is never required"
    key = send["inputSchema"]["properties"]["idempotency_key"]["description"]
    assert "the same once more within 90 s" in key
    assert send["annotations"]["idempotentHint"] is True
    long = tools["mail_long"]
    assert len(long["description"]) <= MAX_DESCRIPTION and "within 600 s" in long["description"]
    assert long["annotations"]["idempotentHint"] is False, "as its author says"


@pytest.mark.clause("repetition-3")
def test_a_tool_and_a_method_are_the_same_command(mail: Mail) -> None:
    keys: list[str | None] = []

    @mail.service.command(dedupe="arguments")
    def note(text: str, ctx: Context) -> int:
        """Note a text."""
        keys.append(ctx.idempotency_key)
        return len(keys)

    agent = InHand(mail.service, policy=PRODUCTION)
    assert agent.call("mail_note", text="a")["structuredContent"] == {"result": 1}
    outcome = agent.call("outcome", tool="mail_note", idempotency_key=keys[0])
    assert outcome["structuredContent"]["state"] == "done"
