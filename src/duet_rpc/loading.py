"""Loads msgspec before anything else of ours does, without what it has no need of.

msgspec takes three names out of typing_extensions wherever that is installed, and with it come
inspect, ast and tokenize: a sixth of the start of a small daemon. Since Python 3.11 the same names
are in typing, where msgspec looks when there is no typing_extensions. So there is none while it
loads; but only where no other thread could miss it meanwhile.
"""

import sys
from typing import Any

_NAME = "typing_extensions"
_modules: dict[str, Any] = sys.modules

if "msgspec" not in _modules and _NAME not in _modules and len(sys._current_frames()) == 1:
    _modules[_NAME] = None
    try:
        import msgspec  # noqa: F401
    finally:
        del _modules[_NAME]
