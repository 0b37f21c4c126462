"""The floor of a durable command: one commit before its handler and one after it, and no handler.

`commit.py commit URL WIDTH COUNT` writes COUNT small rows with the store's own driver, WIDTH of
them in one commit, and then as many outcomes into them: what a grouping server does at best. What
it shows most of all is how long this disk takes to sync.
"""

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from uuid import uuid4

Write = Callable[[list[str]], None]


def sqlite(path: str) -> tuple[Write, Write]:
    connection = sqlite3.connect(path, isolation_level=None)
    # As in our store: WAL has a bug in older versions.
    mode = "WAL" if sqlite3.sqlite_version_info >= (3, 51, 3) else "TRUNCATE"
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS raw (key TEXT PRIMARY KEY, outcome BLOB) WITHOUT ROWID"
    )

    def write(statement: str, keys: list[str]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, [(key,) for key in keys])
        connection.execute("COMMIT")

    return (
        lambda keys: write("INSERT INTO raw (key) VALUES (?)", keys),
        lambda keys: write("UPDATE raw SET outcome = x'31' WHERE key = ?", keys),
    )


def postgres(url: str) -> tuple[Write, Write]:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)
    connection.execute("CREATE TABLE IF NOT EXISTS raw (key text PRIMARY KEY, outcome bytea)")

    def write(statement: str, keys: list[str]) -> None:
        if len(keys) == 1:
            connection.execute(statement, keys, prepare=True)
            return
        with connection.pipeline(), connection.transaction():
            for key in keys:
                connection.execute(statement, [key], prepare=True)

    return (
        lambda keys: write("INSERT INTO raw (key) VALUES (%s)", keys),
        lambda keys: write("UPDATE raw SET outcome = '1' WHERE key = %s", keys),
    )


def valkey(url: str) -> tuple[Write, Write]:
    import redis

    client = redis.Redis.from_url(url)

    def write(field: str, keys: list[str]) -> None:
        if len(keys) == 1:
            client.hset(f"raw:{keys[0]}", field, "1")
            return
        with client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hset(f"raw:{key}", field, "1")
            pipeline.execute()

    return lambda keys: write("intent", keys), lambda keys: write("outcome", keys)


def main(url: str, width: int, count: int) -> None:
    if url.startswith("sqlite:///"):
        before, after = sqlite(url.removeprefix("sqlite:///"))
    else:
        before, after = (postgres if url.startswith("postgres") else valkey)(url)
    run = uuid4().hex
    keys = [f"{run} {number}" for number in range(count)]
    start = time.perf_counter()
    for first in range(0, count, width):
        group = keys[first : first + width]
        before(group)
        after(group)
    print(json.dumps({"rate": count / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
