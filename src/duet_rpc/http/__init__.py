"""HTTP: a service that a browser, a balancer and curl can call.

from duet_rpc.http import AsgiApp, Http

server.run(Http("127.0.0.1", 8000))          # a listener of our own
app = Starlette(routes=[Route("/rpc", AsgiApp(server))])    # within another application
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duet_rpc.http.asgi import AsgiApp as AsgiApp
    from duet_rpc.http.credentials import BearerTokens as BearerTokens
    from duet_rpc.http.endpoint import Http as Http
    from duet_rpc.http.principal import Principal as Principal

_PLACES = {
    "AsgiApp": "duet_rpc.http.asgi",
    "BearerTokens": "duet_rpc.http.credentials",
    "Http": "duet_rpc.http.endpoint",
    "Principal": "duet_rpc.http.principal",
}

__all__ = ["AsgiApp", "BearerTokens", "Http", "Principal"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: who mounts an application needs no listener."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
