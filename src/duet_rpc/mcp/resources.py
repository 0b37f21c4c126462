"""Resources: what a client may read, by its address."""

from typing import Any

from msgspec import Raw
from msgspec.json import encode

from duet_rpc.around.offers import ResourceOffer
from duet_rpc.engine.failures import error_member
from duet_rpc.mcp.errors import ProtocolError, ResourceNotFound
from duet_rpc.mcp.results import ERROR, RESULT, spell_error
from duet_rpc.mcp.revision import Revision
from duet_rpc.service import Method
from duet_rpc.wire.surrogates import encode_value

_NOT_FOUND = b'"error":{"code":%d' % ResourceNotFound.code


class Resources:
    """The resources of a service: those with an address of their own first."""

    def __init__(self, offers: list[ResourceOffer], bound: dict[str, Method]) -> None:
        """`bound` are the methods that read them, joined to what they ask for."""
        self._fixed = {each.template.text: each for each in offers if each.template.is_fixed}
        self._templates = [each for each in offers if not each.template.is_fixed]
        self._bound = bound

    def __bool__(self) -> bool:
        return bool(self._fixed or self._templates)

    def find(self, uri: str) -> tuple[ResourceOffer, Method, dict[str, str]] | None:
        """Find what is at an address: the offer, what reads it, and the values in the address."""
        offer = self._fixed.get(uri)
        if offer is not None:
            return offer, self._bound[offer.method.name], {}
        for offer in self._templates:
            values = offer.template.match(uri)
            if values is not None:
                return offer, self._bound[offer.method.name], values
        return None

    def find_template(self, text: str) -> Method | None:
        """Find what reads the addresses of a template."""
        offers = [*self._fixed.values(), *self._templates]
        offer = next((each for each in offers if each.template.text == text), None)
        return None if offer is None else self._bound[offer.method.name]

    def describe(self, revision: Revision) -> list[Raw]:
        """Say what `resources/list` says of them."""
        offers = sorted(self._fixed.values(), key=lambda offer: offer.template.text)
        return [Raw(encode(_describe(offer, "uri", revision))) for offer in offers]

    def describe_templates(self, revision: Revision) -> list[Raw]:
        """Say what `resources/templates/list` says of them."""
        offers = sorted(self._templates, key=lambda offer: offer.template.text)
        return [Raw(encode(_describe(offer, "uriTemplate", revision))) for offer in offers]


def _describe(offer: ResourceOffer, address: str, revision: Revision) -> dict[str, Any]:
    said: dict[str, Any] = {address: offer.template.text, "name": offer.name}
    if offer.title is not None and revision.has_structure:
        said["title"] = offer.title
    if offer.description:
        said["description"] = offer.description
    mime_type = _mime_type(offer)
    if mime_type is not None:
        said["mimeType"] = mime_type
    return said


def _mime_type(offer: ResourceOffer) -> str | None:
    """Say of which type a resource is: as declared, or by what is returned."""
    if offer.mime_type is not None:
        return offer.mime_type
    returns = offer.method.parameters.returns
    if returns is str:
        return "text/plain"
    return "application/octet-stream" if returns is bytes else "application/json"


def not_found(uri: str, revision: Revision) -> ProtocolError:
    """Make the error of a revision for an address at which there is nothing."""
    return ProtocolError(revision.resource_not_found, ResourceNotFound.message, uri=uri)


def spell_contents(offer: ResourceOffer, uri: str, revision: Revision, member: bytes) -> bytes:
    """Make the result of `resources/read` of what the function has returned."""
    if member.startswith(_NOT_FOUND):
        return error_member(not_found(uri, revision))
    if member.startswith(ERROR):
        return spell_error(member)
    value = member[len(RESULT) :]
    place = "blob" if offer.method.parameters.returns is bytes else "text"
    if not value.startswith(b'"'):
        value = encode_value(value.decode())
    contents: dict[str, Any] = {"uri": uri, "mimeType": _mime_type(offer), place: Raw(value)}
    result: dict[str, Any] = {"contents": [contents]}
    if revision.is_modern:
        result["resultType"] = "complete"
    if revision.has_cache_hints:
        result |= {"ttlMs": 0, "cacheScope": "private"}
    return b'"result":' + encode_value(result)
