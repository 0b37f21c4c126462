"""A program with three servers: it starts them, asks all at once, and says why one has died.

    python examples/three_servers.py

`sums` answers a hundred calls that are in flight together. `words` counts the words of files, and
tells of each file as it is read; `client.on` hears it. `oracle` takes too long, so the call times
out and nothing else is touched; asked again, it crashes, and `closed()` says with which status and
what it said last. The other two go on.
"""

import asyncio
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from duet_rpc import CallTimeout, Client, ConnectionEnd, ConnectionLost, Context, Server, Service
from duet_rpc.policy import AGENT

sums, words, oracle = SERVICES = Service("sums"), Service("words"), Service("oracle")


@sums.query
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@words.query
def count(folder: str, ctx: Context) -> int:
    """Count the words of all files in a folder."""
    total = 0
    for path in sorted(Path(folder).iterdir()):
        total += (found := len(path.read_text().split()))
        ctx.notify("words.counted", {"file": path.name, "words": found})
    return total


@oracle.query
async def ask(question: str) -> str:
    """Think for very long, or fail."""
    if "licence" in question:
        print("oracle: the licence has run out", file=sys.stderr, flush=True)
        os._exit(3)
    await asyncio.sleep(3600)
    return "42"


async def report(name: str, client: Client) -> ConnectionEnd:
    """Say why a server is gone, whenever that is."""
    end = await client.closed()
    if end.reason != "closed":
        last = end.stderr_tail.splitlines()[-1:]
        print(f"{name} is gone: {end.reason}, status {end.exit_code}, last words {last}")
    return end


async def main(folder: Path) -> None:
    """Start the servers and have them work."""
    clients = {each.name: Client.spawn(sys.executable, __file__, each.name) for each in SERVICES}
    heard: asyncio.Queue[str] = asyncio.Queue()

    @clients["words"].on("words.counted")
    def hear(file: str, words: int) -> None:
        heard.put_nowait(f"{file} has {words}")

    async with AsyncExitStack() as stack:
        for client in clients.values():
            await stack.enter_async_context(client)
        ends = [asyncio.create_task(report(*each)) for each in clients.items()]

        adding = [clients["sums"].start("sums.add", [n, n], returns=int) for n in range(100)]
        counting = clients["words"].start("words.count", [str(folder)], returns=int)
        thinking = clients["oracle"].start("oracle.ask", ["What for?"], timeout=0.5)
        print(f"sums: {len(adding)} answers, {sum(await asyncio.gather(*adding))} in all")
        print(f"words: {await counting} in all; {await heard.get()}, {await heard.get()}")
        try:
            await thinking
        except CallTimeout as error:
            print(f"oracle: {error}")

        try:
            await clients["oracle"].call("oracle.ask", ["Have you a licence?"])
        except ConnectionLost:
            await ends[-1]  # it tells more than the call could
        print(f"sums: {await clients['sums'].query('sums.add', [20, 22])}, as before")
    for name, end in zip(clients, await asyncio.gather(*ends), strict=True):
        print(f"{name} ended: {end.reason}, status {end.exit_code}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        [service] = [each for each in SERVICES if each.name == sys.argv[1]]
        Server(service, policy=AGENT).run_stdio()
    else:
        with tempfile.TemporaryDirectory() as made:
            Path(made, "a.txt").write_text("to be or not to be")
            Path(made, "b.txt").write_text("that is the question")
            asyncio.run(main(Path(made)))
