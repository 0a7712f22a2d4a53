"""The tables: which subjects stand beside each other, under which load. The first row of a table bounds the others."""

from collections.abc import Callable, Mapping
from typing import Final

from bench.features import features
from bench.load import Client, Load
from bench.place import Place, Row
from bench.subjects import echo_server

__all__ = ["TABLES", "Place", "Row"]

TOOLS: Final = 25
SERVERS: Final = 20


def stores(place: Place) -> list[Row]:
    """What bounds a gateway, and the gateway on each store, with one worker and two, and from another replica."""
    one = place.gateway()
    return [
        Row(name="minimal relay", subject=place.relay()),
        Row(name="bare ASGI app", subject=place.bare()),
        Row(name="gateway, redis", subject=one),
        Row(name="gateway, redis, modern", subject=one, load=Load(era="modern")),
        Row(name="gateway, memory", subject=place.gateway("memory://")),
        Row(name="gateway, sqlite", subject=place.gateway(f"sqlite:///{place.folder / 'bench.db'}")),
        Row(name="2 workers, redis", subject=place.gateway("", "--workers", "2")),
        Row(name="forwarded, redis", subject=one, owner=one),
    ]


def eras(place: Place) -> list[Row]:
    """The cells of the era matrix; the same with event streams."""
    rows = [Row(name="minimal relay", subject=place.relay())]
    for client in ("legacy", "modern"):
        for server in ("legacy", "modern"):
            subject = place.gateway(ECHO_ERA=server)
            rows.append(Row(name=f"{client} client, {server} server", subject=subject, load=Load(era=client)))
    streams = Load(progress=True)
    return [*rows, Row(name="answers as event streams", subject=place.gateway(), load=streams)]


def sizes(place: Place) -> list[Row]:
    """Results of 100 bytes to a megabyte, each beside the relay."""
    rows = []
    for size in (100, 10_000, 100_000, 1_000_000):
        load = Load(arguments={"size": size}, connections=32 if size < 1_000_000 else 8)
        rows.append(Row(name=f"minimal relay, {size:,} B", subject=place.relay(), load=load))
        rows.append(Row(name=f"gateway, {size:,} B", subject=place.gateway(), load=load))
    return rows


def one(place: Place) -> list[Row]:
    """One connection: what a call takes that waits for nobody."""
    load = Load(connections=1)
    return [
        Row(name="minimal relay", subject=place.relay(), load=load),
        Row(name="bare ASGI app", subject=place.bare(), load=load),
        Row(name="gateway, redis", subject=place.gateway(), load=load),
        Row(name="gateway, redis, modern", subject=place.gateway(), load=Load(connections=1, era="modern")),
        Row(name="gateway, memory", subject=place.gateway("memory://"), load=load),
    ]


def live(place: Place) -> list[Row]:
    """What live sessions that are idle do to the calls of others: at 32 connections, beside 0 and 10,000. Those share
    a server's process, so that opening them takes half a minute."""
    entry = {"command": str(echo_server())}
    subject = place.gateway(servers={"echo": entry, "many": {**entry, "shared": True}})
    few = Load(path="/servers/echo/mcp")
    many = Load(path=few.path, idle=10_000, idle_path="/servers/many/mcp")
    return [
        Row(name="minimal relay", subject=place.relay()),
        Row(name="gateway, 32 live sessions", subject=subject, load=few),
        Row(name="gateway, 10,032 live sessions", subject=subject, load=many),
    ]


def growth(place: Place) -> list[Row]:
    """What a call costs with more servers, more tools, and with more replicas than the one that owns its session."""
    rows = []
    for servers, tools in ((1, 1), (5, 25), (20, 25), (20, 250)):
        names = [f"s{n % servers}__tool{n % tools}" for n in range(SERVERS)]
        entry = {"command": str(echo_server()), "env": {"ECHO_TOOLS": str(tools)}}
        subject = place.gateway(servers={f"s{n}": entry for n in range(servers)})
        load = Load(tools=names if servers > 1 else ("tool0",), arguments={"text": "hello", "team": "red"})
        rows.append(Row(name=f"{servers} servers, {servers * tools:,} tools", subject=subject, load=load))
    one = place.gateway()
    return [*rows, Row(name="1 of 2 replicas, the other owns", subject=one, owner=one)]


def clients(place: Place) -> list[Row]:
    """Clients that send what real ones do: another id and another length each time, in two segments."""
    rows = []
    kinds: tuple[Client, ...] = ("httpx", "fetch")
    for client in kinds:
        for name, subject, era in (
            ("minimal relay", place.relay(), "legacy"),
            ("bare ASGI app", place.bare(), "legacy"),
            ("gateway, redis", place.gateway(), "legacy"),
            ("gateway, redis, modern", place.gateway(), "modern"),
        ):
            rows.append(Row(name=f"{name}, {client}", subject=subject, load=Load(client=client, era=era)))
    return rows


def app(place: Place) -> list[Row]:
    """What `SessionMiddleware` costs an app that does next to nothing else. All clients send a cookie."""
    opener, load = place.app("written"), Load(visits=True)
    return [
        Row(name="bare Starlette app", subject=place.app("bare"), load=load, owner=opener),
        Row(name="one Redis read, no session", subject=place.app("asking"), load=load, owner=opener),
        Row(name="session untouched", subject=place.app("untouched"), load=load, owner=opener),
        Row(name="session read", subject=place.app("read"), load=load, owner=opener),
        Row(name="session written", subject=place.app("written"), load=load, owner=opener),
    ]


TABLES: Final[Mapping[str, Callable[[Place], list[Row]]]] = {
    "stores": stores,
    "one": one,
    "live": live,
    "eras": eras,
    "sizes": sizes,
    "features": features,
    "growth": growth,
    "clients": clients,
    "app": app,
}
