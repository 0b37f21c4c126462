"""The scripts of the Redis store: the transitions of `states` where one step must be whole.

A script returns a number if it did what it is for, and else the record that it found (a flat list
of fields and values) and the server's time. Fractions travel as text: Lua would cut them off.

The server drops a key by its wall clock, whatever that is set to. So a running command has no time
to live: a sorted set holds its key by the end of its record, and a sweep makes it an unknown one.
What has its outcome lives a little longer than it has to, which bears small steps of the clock;
after a large one the store is young again, and retries that find nothing are of unknown outcome.
"""

from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any

from duet_rpc.ledger.retry_age import must_have_record
from duet_rpc.ledger.states import (
    Claim,
    Finish,
    Identity,
    Operation,
    Record,
    Release,
    Renew,
    State,
)
from duet_rpc.ledger.stores.sql import COLUMNS, from_row, to_row

ScriptCall = tuple[str, str, Sequence[Any]]
"""A script's digest, the key of its record and its values."""

PREFIX = "duet:command:"
STORE = "duet:store"
"""The key of what the store keeps about itself."""

_CLOCK = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function text(number) return string.format('%.6f', number) end
local function at(seconds) return text(now + tonumber(seconds)) end
local RUNNING = 'duet:running'
local function run(key, until_)
    redis.call('PERSIST', key)
    redis.call('ZADD', RUNNING, until_, key)
end
local function live(key, seconds)
    redis.call('ZREM', RUNNING, key)
    redis.call('PEXPIRE', key, math.max(1, math.ceil(tonumber(seconds) * 1000)))
end
local function drop(key)
    redis.call('ZREM', RUNNING, key)
    redis.call('DEL', key)
end
local function found() return {redis.call('HGETALL', KEYS[1]), text(now)} end
"""

_SOURCES = {
    "load": "return found()",
    "claim": """
if redis.call('EXISTS', KEYS[1]) == 1 then return found() end
local token = string.format('%d', math.floor(now * 1000))
redis.call('HSET', KEYS[1], 'principal', ARGV[1], 'method', ARGV[2], 'key', ARGV[3],
    'fingerprint', ARGV[4], 'promise', ARGV[5], 'state', 'running', 'token', token,
    'owner', ARGV[6], 'attempts', '1', 'correlation_id', ARGV[7], 'lease_until', at(ARGV[8]),
    'created_at', text(now), 'expires_at', at(ARGV[9]))
redis.call('ZADD', RUNNING, at(ARGV[9]), KEYS[1])
return tonumber(token)""",
    "renew": """
local old = redis.call('HMGET', KEYS[1], 'token', 'owner', 'state')
if old[1] ~= ARGV[1] or old[2] ~= ARGV[2] or old[3] ~= 'running' then return found() end
redis.call('HSET', KEYS[1], 'lease_until', at(ARGV[3]), 'expires_at', at(ARGV[4]))
run(KEYS[1], at(ARGV[4]))
return 1""",
    "finish": """
local old = redis.call('HMGET', KEYS[1], 'token', 'owner', 'state')
if old[1] ~= ARGV[1] or old[2] ~= ARGV[2] or old[3] == 'done' then return found() end
redis.call('HSET', KEYS[1], 'state', 'done', 'outcome', ARGV[3], 'finished_at', text(now),
    'expires_at', at(ARGV[4]))
live(KEYS[1], ARGV[5])
return 1""",
    "release": """
local old = redis.call('HMGET', KEYS[1], 'owner', 'state')
if old[1] ~= ARGV[1] or old[2] ~= 'running' then return found() end
drop(KEYS[1])
return 1""",
    # First what tells the record that was read from any other version of it, then the new one.
    "swap": """
local old = redis.call('HMGET', KEYS[1], 'token', 'owner', 'state', 'lease_until', 'expires_at')
for index = 1, 5 do
    if (old[index] or '') ~= ARGV[index] then return 0 end
end
drop(KEYS[1])
if #ARGV > 7 then
    redis.call('HSET', KEYS[1], unpack(ARGV, 8))
    if ARGV[6] == 'running' then
        run(KEYS[1], ARGV[7])
    else
        live(KEYS[1], tonumber(ARGV[7]) - now)
    end
end
return 1""",
    # Since when the store remembers. A clock that no one has looked at for too long may have
    # jumped, and then keys may have been dropped before their time.
    "upkeep": """
local old = redis.call('HMGET', KEYS[1], 'since', 'seen_at')
local since = old[1]
if not since or tonumber(since) > now or now - tonumber(old[2]) > tonumber(ARGV[1]) then
    since = text(now)
end
redis.call('HSET', KEYS[1], 'since', since, 'seen_at', text(now))
return {since, text(now)}""",
    "begin": """
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('HSET', KEYS[1], 'since', text(now), 'seen_at', text(now))
end
return 1""",
    "sweep": """
local over = redis.call('ZRANGEBYSCORE', RUNNING, '-inf', text(now), 'LIMIT', 0, ARGV[1])
for _, key in ipairs(over) do
    local old = redis.call('HMGET', key, 'state', 'promise', 'expires_at')
    if old[1] ~= 'running' then
        redis.call('ZREM', RUNNING, key)
    elseif tonumber(old[3]) > now then
        redis.call('ZADD', RUNNING, old[3], key)
    elseif old[2] == 'retry-safe' then
        drop(key)
    else
        redis.call('HSET', key, 'state', 'unknown', 'expires_at', at(ARGV[2]))
        live(key, ARGV[3])
    end
end
return #over""",
}

_DIGESTS = {
    name: sha1((_CLOCK + source).encode(), usedforsecurity=False).hexdigest()
    for name, source in _SOURCES.items()
}
SCRIPTS = {_DIGESTS[name]: _CLOCK + source for name, source in _SOURCES.items()}
"""The sources by the digest under which the server knows them."""
LOAD, SWAP = _DIGESTS["load"], _DIGESTS["swap"]
BEGIN, UPKEEP, SWEEP = _DIGESTS["begin"], _DIGESTS["upkeep"], _DIGESTS["sweep"]


def slack(ttl: float) -> float:
    """Tell how much longer than it has to a record stays, and how far a clock may jump unseen."""
    return min(ttl / 10, 3600.0)


def name_key(identity: Identity) -> str:
    """Name the key of a record; the lengths keep any two identities apart."""
    principal, method, key = identity
    return f"{PREFIX}{len(principal)}:{len(method)}:{principal}:{method}:{key}"


def make_pattern(principal: str, prefix: str) -> str:
    """Make the pattern of the keys of a principal's records whose method begins with a prefix."""
    begins = "".join(f"\\{each}" if each in "*?[]^\\" else each for each in f"{principal}:{prefix}")
    return f"{PREFIX}{len(principal)}:*:{begins}*"


def pack(call: ScriptCall) -> bytes:
    """Write a call in the server's protocol."""
    digest, key, values = call
    parts = [b"*%d\r\n$7\r\nEVALSHA\r\n" % (len(values) + 4)]
    for value in (digest, 1, key, *values):
        data = value if isinstance(value, bytes) else str(value).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def write_script(operation: Operation) -> ScriptCall:
    """Write an operation as a script's digest, its key and its values."""
    key = name_key(operation.identity)
    match operation:
        case Claim() if must_have_record(operation):
            return LOAD, key, ()  # `states` decides
        case Claim(command, owner, lease, unknown_ttl):
            values = (
                *operation.identity,
                command.fingerprint,
                command.promise.value,
                owner,
                command.correlation_id,
                lease,
                lease + unknown_ttl,
            )
            return _DIGESTS["claim"], key, values
        case Renew(_, token, owner, lease, unknown_ttl):
            return _DIGESTS["renew"], key, (token, owner, lease, lease + unknown_ttl)
        case Finish(_, token, owner, outcome, ttl):
            return _DIGESTS["finish"], key, (token, owner, outcome, ttl, ttl + slack(ttl))
        case Release(_, owner):
            return _DIGESTS["release"], key, (owner,)


def swap_values(old: Record | None, new: Record | None, now: float) -> Sequence[Any]:
    """Give the values of `SWAP`: it writes the new record only where the old one still stands."""
    values: list[Any] = [""] * 5
    if old is not None:
        ends = _write(old.lease_until), _write(old.expires_at)
        values = [old.token, old.owner, old.state.value, *ends]
    if new is None:
        return [*values, "", ""]
    fields = zip(COLUMNS, map(_write, to_row(new)), strict=True)
    pairs = [part for pair in fields if pair[1] is not None for part in pair]
    end = new.expires_at
    if new.state is not State.RUNNING:
        end += slack(end - now)
    return [*values, new.state.value, _write(end), *pairs]


def read_found(fields: Sequence[bytes], now: bytes) -> tuple[Record | None, float]:
    """Make the record and the server's time out of what a script found."""
    if not fields:
        return None, float(now)
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    row = [_read(name, values.get(name.encode())) for name in COLUMNS]
    return from_row(row), float(now)


_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("fingerprint", "outcome"), bytes),
    **dict.fromkeys(("token", "attempts"), int),
    **dict.fromkeys(("lease_until", "created_at", "finished_at", "expires_at"), float),
}


def _read(name: str, value: bytes | None) -> Any:
    return None if value is None else _READERS.get(name, bytes.decode)(value)


def _write(value: Any) -> Any:
    return f"{value:.6f}" if isinstance(value, float) else value
