"""A server whose tools read, write and evaluate. The configuration says which tool does what."""

import time

from mcp.server import MCPServer

server = MCPServer("stage")
places: dict[str, float] = {}


@server.tool()
def describe() -> str:
    """Where everybody stands."""
    return ", ".join(f"{actor} at {x:g}" for actor, x in sorted(places.items())) or "the stage is empty"


@server.tool()
def move(actor: str, x: float) -> str:
    """Move an actor."""
    places[actor] = x
    return f"{actor} at {x:g}"


@server.tool()
def evaluate(expression: str) -> str:
    """Add up numbers: the part of a language that is safe to show here."""
    return f"{sum(map(float, expression.split('+'))):g}"


@server.tool()
def rehearse(seconds: float) -> str:
    """Take some time."""
    time.sleep(seconds)
    return "rehearsed"


if __name__ == "__main__":
    server.run("stdio")
