"""Regular expressions, compiled when they are first needed.

Compiling them all at import would be a third of what our own modules cost a small daemon at its
start, and most are for input that never comes.
"""

import re
from functools import cache
from typing import AnyStr

_compiled = cache(re.compile)


def pattern(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Compile once."""
    return _compiled(source, flags)
