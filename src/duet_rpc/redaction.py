"""Redaction: takes secrets out of texts that are logged or shown, and passwords out of URLs.

A help and not a promise: no pattern knows every secret.
"""

from typing import TYPE_CHECKING

from duet_rpc.startup import pattern

if TYPE_CHECKING:
    import re

HIDDEN = "***"
"""Stands where a password stood."""

SECRET_WORDS = (
    "token",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "authorization",
    "apikey",
    "api_key",
    "access_key",
    "private_key",
    "credential",
    "cookie",
)
_SECRET = "|".join(word.replace("_", "[_-]") for word in SECRET_WORDS)
_HEADERS = "(?:proxy-)?authorization|(?:set-)?cookie"
# A name, what stands between it and its value, and the value: in quotes to the closing one, in a
# header to the end of the line, else to where a value of a query or a list would end.
_SECRETS = rf"""(?ix)
    (?P<header> \b(?:{_HEADERS}) \s{{0,3}} : \s{{0,3}} (?!["'\s]) ) [^\r\n]+
    | (?P<before>
        (?:{_SECRET}) [\w-]{{0,20}} \\? ["']? \s{{0,3}} (?:=>|[=:]|(?<=["']),) \s{{0,3}}
        (?: [bruf]{{1,2}} (?=["']) )?
    )
    (?:
        (?P<quote> \\?["']) (?:(?!(?P=quote)) (?:\\.|.))* (?P<closing> (?P=quote))?
        | [^\s"',;&]+
    )
    | (?P<scheme> \b(?:bearer|basic)\s ) [\w.~+/=-]+
    | (?P<url> \b[a-z][a-z0-9+.-]{{0,20}}:// [^\s/:@"']{{0,200}} : ) [^\s/"']*(?=@)"""
_HOMES = r"/(?:home|Users)/[^/\s\"':]+|/root(?=/)"


def redact(text: str) -> str:
    """Take out the common forms of secrets, and whose home a path is in; a help, not a promise."""
    if _may_hold_secret(text):
        text = pattern(_SECRETS).sub(_mask, text)
    return pattern(_HOMES).sub("~", text) if "/" in text else text


def _may_hold_secret(text: str) -> bool:
    """Tell whether a text is worth the pattern, which takes a millisecond to compile."""
    folded = text.casefold()
    return any(mark in text for mark in "=:,") or "bearer" in folded or "basic" in folded


def _mask(found: "re.Match[str]") -> str:
    if (before := found["before"]) is not None:
        return f"{before}{found['quote'] or ''}***{found['closing'] or ''}"
    return f"{found['header'] or found['scheme'] or found['url']}***"


def without_password(url: str) -> str:
    """Show a URL that someone gave, without the password in it."""
    url = pattern(r"(://[^/:@]*:)[^/]*@").sub(rf"\1{HIDDEN}@", url)
    return pattern(r"(?i)((?:^|[?&\s])(?:ssl)?passw(?:or)?d=)[^&\s]+").sub(rf"\1{HIDDEN}", url)
