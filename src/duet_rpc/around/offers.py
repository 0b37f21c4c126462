"""What a service offers agents beside its methods: resources to read, prompts, completions.

The decorators only register; what becomes of it is the business of the face that serves agents
(`mcp`). Mistakes show here, when a function is registered.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec import Struct

from duet_rpc.errors import UsageError
from duet_rpc.methods.uri_template import UriTemplate, read_template
from duet_rpc.options import check, is_text

if TYPE_CHECKING:
    from duet_rpc.service import Method

F = TypeVar("F", bound=Callable[..., Any])


class ResourceOffer(Struct, frozen=True, kw_only=True):
    """Something that can be read at an address, or at all addresses of a template."""

    template: UriTemplate
    name: str
    title: str | None
    description: str
    mime_type: str | None
    method: Any
    """The `Method` that reads it."""


class PromptOffer(Struct, frozen=True, kw_only=True):
    """A text for a model, which a user chooses by its name."""

    name: str
    title: str | None
    description: str
    method: Any
    """The `Method` that makes it."""


class ServiceOffers:
    """The decorators of a service that are for agents alone."""

    def __init__(self) -> None:
        self.resources: list[ResourceOffer] = []
        self.prompts: list[PromptOffer] = []
        self.completions: dict[tuple[str, str], Any] = {}
        """The `Method` that completes an argument of a prompt, or of the template of a resource."""
        self.watchers: list[Callable[[str], object]] = []
        """Called with the address of each resource that has changed."""

    def _make_offered(
        self, function: Callable[..., Any], name: str, description: str | None
    ) -> "Method":
        """Prepare a function as a method that has no name on the wire."""
        raise NotImplementedError

    def resource(
        self,
        uri: str,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
    ) -> Callable[[F], F]:
        """Register a function that reads what is at an address: `@service.resource("notes://all")`.

        With places for values (`"notes://{day}"`, and `"files://{path*}"` for values with slashes)
        it reads what is at all such addresses; its parameters have the names of the places. It
        returns a `str`, `bytes`, or a value that is sent as JSON. Agents are offered it.
        """
        template = read_template(uri)
        for option, value in (("name", name), ("title", title), ("mime_type", mime_type)):
            check(option, value, value is None or is_text(value), "a text, or None")

        def register(function: F) -> F:
            method = self._make_offered(function, f"resource {uri}", description)
            listed = {p.name: p.required for p in method.parameters.listed}
            for place in template.names:
                if place not in listed:
                    raise UsageError(f"{uri} has {{{place}}}, which the function does not take")
            for parameter, required in listed.items():
                if required and parameter not in template.names:
                    raise UsageError(f"the function takes {parameter}, which {uri} does not have")
            if any(offer.template.text == uri for offer in self.resources):
                raise UsageError(f"there is a resource {uri} already")
            own_name = getattr(function, "__name__", uri)
            offer = ResourceOffer(
                template=template,
                name=name or own_name,
                title=title,
                description=method.description,
                mime_type=mime_type,
                method=method,
            )
            self.resources.append(offer)
            return function

        return register

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> Callable[[F], F]: ...
    def prompt(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> Any:
        """Register a function that writes a prompt, which the user of an agent chooses.

        It returns a text, which the user says, or a list of `duet_rpc.mcp.Message`. What the user
        fills in are its parameters.
        """
        for option, value in (("name", name), ("title", title)):
            check(option, value, value is None or is_text(value), "a text, or None")

        def register(function: F) -> F:
            own_name = name or str(getattr(function, "__name__", ""))
            if any(offer.name == own_name for offer in self.prompts):
                raise UsageError(f"there is a prompt {own_name} already; give it another name=")
            method = self._make_offered(function, f"prompt {own_name}", description)
            self.prompts.append(
                PromptOffer(
                    name=own_name, title=title, description=method.description, method=method
                )
            )
            return function

        return register if function is None else register(function)

    def completion(self, of: str, argument: str, /) -> Callable[[F], F]:
        """Register a function that completes an argument of a prompt, or of a resource's template.

        `@service.completion("review", "language")`, or `("notes://{day}", "day")`. It takes what
        has been typed so far, and returns what it may become: `def days(value: str) -> list[str]`.
        A second parameter, `arguments: dict[str, str]`, is given what was chosen before.
        """

        def register(function: F) -> F:
            prompts = {offer.name: offer.method for offer in self.prompts}
            templates = {offer.template.text: offer.method for offer in self.resources}
            method = prompts.get(of) or templates.get(of)
            if method is None or argument not in method.parameters.names:
                raise UsageError(
                    f"there is no prompt or resource {of!r} with an argument {argument!r};"
                    " register it first"
                )
            self.completions[of, argument] = self._make_offered(
                function, f"completion {of} {argument}", None
            )
            return function

        return register

    def resource_updated(self, uri: str) -> None:
        """Tell clients that have asked for it that a resource has changed; any thread."""
        for watch in list(self.watchers):
            watch(uri)

    @property
    def offered(self) -> "list[Method]":
        """The methods of everything that is offered."""
        offers: list[Any] = [*self.resources, *self.prompts]
        return [*(offer.method for offer in offers), *self.completions.values()]

    def adopt_offers(self, other: "ServiceOffers") -> None:
        """Take over what another service offers."""
        self.resources += [each for each in other.resources if each not in self.resources]
        self.prompts += [each for each in other.prompts if each not in self.prompts]
        self.completions |= other.completions
