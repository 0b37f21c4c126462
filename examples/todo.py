"""A to-do daemon for an editor: it follows what is typed, and keeps a list of what is to be done.

    python examples/todo.py                  plays an editor, and shows what both sides say
    duet-rpc serve examples/todo.py          what an editor runs

The editor tells of each line that changes (`todo.edited`). Notifications keep their order, and a
query sees every edit before it. The daemon tells the editor, unasked, which lines to mark. The list
is in `$TODO_FILE`, which a lifespan opens. On stdio the policy is EDITOR: one request at a time.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from duet_rpc import Client, Context, RpcError, Service

todo = Service("todo")


class Item(msgspec.Struct):
    id: int
    text: str
    done: bool = False


class NoSuchItem(RpcError):
    code, message = 5001, "No such item"


class Book:
    """The list that is in a file, and the lines that the editor shows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.items: list[Item] = []
        if path.exists():
            self.items = msgspec.json.decode(path.read_bytes(), type=list[Item])
        self.lines: dict[int, str] = {}

    def save(self) -> None:
        """Write all of it to another file, which then takes the place of the first."""
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self.items))
        new.replace(self._path)


@todo.lifespan
def open_book() -> Iterator[Book]:
    yield Book(Path(os.environ.get("TODO_FILE", "todo.json")))


@todo.notification
def edited(line: int, text: str, book: Book, ctx: Context) -> None:
    """Take note of a line, and tell the editor what to mark."""
    book.lines[line] = text
    ctx.notify("todo.marks", {"lines": marks(book)})


@todo.query
def marks(book: Book) -> list[int]:
    """List the lines that say TODO."""
    return sorted(line for line, text in book.lines.items() if "TODO" in text)


@todo.command
def add(text: str, book: Book) -> Item:
    """Put something on the list."""
    book.items.append(Item(len(book.items) + 1, text))
    book.save()
    return book.items[-1]


@todo.command
def tick(id: int, book: Book) -> Item:
    """Tick an item off."""
    if not 1 <= id <= len(book.items):
        raise NoSuchItem(data={"id": id, "items": len(book.items)})
    book.items[id - 1].done = True
    book.save()
    return book.items[id - 1]


async def play(file: Path) -> None:
    """Do what an editor does."""
    env = {**os.environ, "TODO_FILE": str(file)}
    editor = Client.spawn(sys.executable, __file__, "serve", env=env, errors=todo)

    told: asyncio.Queue[list[int]] = asyncio.Queue()

    @editor.on("todo.marks")
    def mark(lines: list[int]) -> None:
        told.put_nowait(lines)

    async with editor:
        for line, text in (3, "# TODO: name this"), (9, "# TODO: test this"), (3, "name = 1"):
            print(f"editor: line {line} is now {text!r}")
            await editor.notify("todo.edited", {"line": line, "text": text})
        print(f"answer: {await editor.query('todo.marks', returns=list[int])} say TODO")
        for _ in range(3):
            print(f"daemon: mark {await told.get()}")
        print(f"answer: {await editor.command('todo.add', {'text': 'test it'}, returns=Item)}")
        print(f"answer: {await editor.command('todo.tick', {'id': 1}, returns=Item)}")
        try:
            await editor.command("todo.tick", {"id": 7})
        except NoSuchItem as error:
            print(f"answer: {error}")
    print(f"ended: exit status {(await editor.closed()).exit_code}")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        todo.run()
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(play(Path(folder, "todo.json")))
