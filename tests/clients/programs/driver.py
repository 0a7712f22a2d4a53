"""What every client of the table does, in the environment of its library: `python CLIENT.py SPECIFICATION`.

The specification is JSON: {mode: {"url": …, "one": headers, "two": headers}}. For each mode, two clients call at once,
both their first calls too, and then a third one, which has the headers of the first, calls after both have closed.
Prints JSON: {mode: {"one": [counts], "two": [counts], "again": [counts]}}. Imports nothing but the standard library:
other Pythons run it.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[[str], Awaitable[str]]
Connect = Callable[[str, dict[str, str]], contextlib.AbstractAsyncContextManager[Call]]

CALLS = 3


async def measured(connect: Connect, url: str, one: dict[str, str], two: dict[str, str]) -> dict[str, list[str]]:
    counts: dict[str, list[str]] = {"one": [], "two": [], "again": []}
    async with connect(url, one) as first, connect(url, two) as second:
        for _ in range(CALLS):
            answers = await asyncio.gather(first("count"), second("count"))
            for name, answer in zip(("one", "two"), answers, strict=True):
                counts[name].append(answer)
    async with connect(url, one) as again:
        counts["again"] = [await again("count") for _ in range(2)]
    return counts


def main(connect: Connect) -> None:
    specification: dict[str, Any] = json.loads(sys.argv[1])

    async def run() -> None:
        print(json.dumps({mode: await measured(connect, **given) for mode, given in specification.items()}))

    asyncio.run(run())
