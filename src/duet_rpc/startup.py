"""What keeps a cold start cold: msgspec without what it has no need of, patterns when needed.

Importing this module, before all others, loads msgspec. msgspec takes three names out of
typing_extensions wherever that is installed, and with it come inspect, ast and tokenize: a sixth of
the start of a small daemon. Since Python 3.11 the same names are in typing, where msgspec looks
when there is no typing_extensions. So there is none while it loads; but only where no other thread
could miss it meanwhile.

Compiling all regular expressions at import would be a third of what our own modules cost a small
daemon at its start, and most are for input that never comes. So `pattern` compiles one when it is
first needed.
"""

import re
import sys
from functools import cache
from typing import Any, AnyStr

_NAME = "typing_extensions"
_modules: dict[str, Any] = sys.modules

if "msgspec" not in _modules and _NAME not in _modules and len(sys._current_frames()) == 1:
    _modules[_NAME] = None
    try:
        import msgspec  # noqa: F401
    finally:
        del _modules[_NAME]

_compiled = cache(re.compile)


def pattern(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Compile a regular expression, once."""
    return _compiled(source, flags)
