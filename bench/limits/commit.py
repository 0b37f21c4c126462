"""The floor of a durable command: insert one small row and commit, over and over, in one thread.

`commit.py commit COUNT FOLDER`. SQLite as it is safe everywhere: rollback journal and
synchronous FULL. What it shows most of all is how long this disk takes to sync.
"""

import json
import sqlite3
import sys
import time


def main(count: int, folder: str) -> None:
    connection = sqlite3.connect(f"{folder}/raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE commands (key TEXT PRIMARY KEY, outcome BLOB) WITHOUT ROWID")
    start = time.perf_counter()
    for number in range(count):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO commands VALUES (?, ?)", (f"key {number}", b"1"))
        connection.execute("COMMIT")
    print(json.dumps({"rate": count / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3])
