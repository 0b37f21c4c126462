"""What keeps a cold start cold: msgspec without what it has no need of, patterns when needed.

Importing this module, before all others, loads msgspec. With it come modules that nearly no program
needs: a fifth of the start of a small daemon. So others stand in for them while it loads; but only
where no other thread could meet those meanwhile.

- msgspec takes three names out of typing_extensions wherever that is installed, and with it come
  inspect, ast and tokenize. Since Python 3.11 the same names are in typing, where msgspec looks if
  there is no typing_extensions.
- uuid asks platform for the name of the system, which is known on Linux; since Python 3.13 it does
  not ask there.
- Only the schema of a class with a docstring needs textwrap.

Compiling all regular expressions at import would be a third of what our own modules cost a small
daemon at its start, and most are for input that never comes. So `pattern` compiles one when it is
first needed.
"""

import re
import sys
from functools import cache
from types import ModuleType
from typing import Any, AnyStr


class _LateModule(ModuleType):
    """Stands in for a module, which is loaded when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(__import__(self.__name__), name)


def _stand_ins() -> dict[str, Any]:
    """Make what stands in for modules; None says that there is no such module."""
    others: dict[str, Any] = {"typing_extensions": None, "textwrap": _LateModule("textwrap")}
    if sys.platform == "linux":
        platform: Any = _LateModule("platform")
        platform.system = lambda: "Linux"
        others["platform"] = platform
    return {name: other for name, other in others.items() if name not in sys.modules}


if "msgspec" not in sys.modules and len(sys._current_frames()) == 1:
    _others = _stand_ins()
    sys.modules.update(_others)
    try:
        import msgspec  # noqa: F401
    finally:
        for _name in _others:
            del sys.modules[_name]

_compiled = cache(re.compile)


def pattern(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Compile a regular expression, once."""
    return _compiled(source, flags)
