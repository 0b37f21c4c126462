"""What differs from one revision of MCP to the next, as data. `revisions/` has a file for each."""

from typing import Literal

from msgspec import Struct


class TaskForm(Struct, frozen=True, kw_only=True):
    """How a revision spells tasks: calls that go on after their request is answered."""

    extension: str = ""
    """What a client declares in each request so that we may answer with a task. Where it is empty,
    a client asks for a task by `params.task`."""
    ttl: str = "ttl"
    """The name of the time for which a task is kept."""
    poll_interval: str = "pollInterval"
    of_failed_tool: Literal["failed", "completed"] = "failed"
    """The status of a task whose tool ran and failed."""
    holds_result: bool = False
    """`tasks/get` answers with the result or the error as well; there is no `tasks/result`."""
    cancel_shows_task: bool = True
    """`tasks/cancel` answers with the task, and refuses one that has ended; else with nothing."""
    refusal: int = -32601
    """The code for a call that should have been one of a task."""


class Revision(Struct, frozen=True, kw_only=True):
    """One revision of the protocol: what it has, and how it spells it."""

    name: str
    is_modern: bool = False
    """There is no handshake: each request carries its own metadata, and each result its type."""
    methods: frozenset[str]
    """What a client may send."""
    takes_batches: bool = False
    has_annotations: bool = True
    """Tools say whether they only read, and the like; progress has a message; audio is content."""
    has_structure: bool = True
    """Results are structured, and tools say of which form; there are titles and links."""
    has_icons: bool = True
    """Things have icons, and servers a description and a website."""
    has_completions: bool = True
    """A server says that it completes arguments."""
    names_missing_id: bool = False
    """An error says `id: null` if the id could not be read; else it has no id."""
    has_cache_hints: bool = False
    """Lists say for how long they may be kept."""
    resource_not_found: int = -32602
    elicits: frozenset[str] = frozenset()
    """How the user of a client can be asked: by a form, by a page."""
    tasks: TaskForm | None = None
    """How calls go on as tasks; None where there are none."""


HANDSHAKE_METHODS = frozenset(
    {
        "initialize",
        "notifications/initialized",
        "ping",
        "tools/list",
        "tools/call",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "notifications/cancelled",
        "notifications/progress",
        "notifications/roots/list_changed",
    }
)
"""What a client sends in the revisions that begin with a handshake."""
