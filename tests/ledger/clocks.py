"""Stores whose wall clock can be set, as an administrator, NTP or a resumed laptop would."""

import sqlite3
import time
from pathlib import Path
from typing import Protocol

import psycopg
import redis

from duet_rpc.ledger import PostgresStore, RedisStore, SqliteStore, Store
from tests.ledger.servers import Postgres, Valkey


class Setting(Protocol):
    """A place for records whose clock can be set; `open` is what a new process would do."""

    def open(self) -> Store: ...

    def step(self, seconds: float) -> None: ...

    def rows(self) -> int: ...


class OnSqlite:
    """The clock of an SQLite store is given to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0.0

    def open(self) -> Store:
        return SqliteStore(self.path, clock=lambda: time.time() + self.offset)

    def step(self, seconds: float) -> None:
        self.offset += seconds

    def rows(self) -> int:
        connection = sqlite3.connect(self.path)
        [(rows,)] = connection.execute("SELECT count(*) FROM duet_commands").fetchall()
        connection.close()
        return int(rows)


class OnPostgres:
    """The server finds a clock of ours before its own, in a schema that is searched first."""

    def __init__(self, server: Postgres) -> None:
        self.url = f"{server.url}&options=-csearch_path%3Dstepped%2Cpg_catalog"
        with psycopg.connect(server.url, autocommit=True) as line:
            line.execute("DROP SCHEMA IF EXISTS stepped CASCADE")
            line.execute("CREATE SCHEMA stepped")
            line.execute("CREATE TABLE stepped.step (seconds float8 NOT NULL)")
            line.execute("INSERT INTO stepped.step VALUES (0)")
            line.execute(
                "CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz VOLATILE"
                " LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp()"
                " + (SELECT seconds FROM stepped.step) * interval '1 second' $$"
            )

    def open(self) -> Store:
        return PostgresStore(self.url)

    def step(self, seconds: float) -> None:
        with psycopg.connect(self.url, autocommit=True) as line:
            line.execute("UPDATE stepped.step SET seconds = seconds + %s", (seconds,))

    def rows(self) -> int:
        with psycopg.connect(self.url) as line:
            [(rows,)] = line.execute("SELECT count(*) FROM duet_commands").fetchall()
            return int(rows)


class OnValkey:
    """The server's clock is the machine's: all that it has written moves the other way instead."""

    TIMES = ("lease_until", "created_at", "finished_at", "expires_at", "since", "seen_at")

    def __init__(self, server: Valkey) -> None:
        server.empty()
        self.url = server.url

    def open(self) -> Store:
        return RedisStore(self.url)

    def step(self, seconds: float) -> None:
        client = redis.Redis.from_url(self.url, decode_responses=True)
        for key in [*client.scan_iter("duet:command:*"), "duet:store"]:
            for name in self.TIMES:
                if (value := client.hget(key, name)) is not None:
                    client.hset(key, name, f"{float(str(value)) - seconds:.6f}")
            if (left := int(str(client.pttl(key)))) > 0:
                client.pexpire(key, max(left - int(seconds * 1000), 1))
        for key in client.zrange("duet:running", 0, -1):
            client.zincrby("duet:running", -seconds, str(key))
        give_up = time.monotonic() + 60.0
        while any(client.pttl(key) in (0, 1) for key in client.scan_iter("duet:command:*")):
            assert time.monotonic() < give_up
        client.close()

    def rows(self) -> int:
        client = redis.Redis.from_url(self.url)
        rows = len(list(client.scan_iter("duet:command:*")))
        client.close()
        return rows


class Hands:
    """The monotonic clock of a sweeper, which a test can move on."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset


def pass_time(seconds: float, setting: Setting, *hands: Hands) -> None:
    """Let time really pass: on the wall and in every process that runs."""
    setting.step(seconds)
    for each in hands:
        each.offset += seconds
