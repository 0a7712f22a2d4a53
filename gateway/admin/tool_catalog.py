"""The tools of all servers, as the servers have listed them to the gateway, for operators."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.admin.operators import NoSuch, OperatorError
from gateway.admin.reports import CatalogPage, ToolRow
from gateway.protocol.catalog import named
from gateway.protocol.listing import operation_of
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.jsonrpc import Object, decode_exact
from transports.mirrored_headers import argument_headers

__all__ = ["ToolCatalog"]


class ToolCatalog:
    """Reads what the probes of the servers have found. Asks no server. `paths` are the names of the servers behind each
    endpoint."""

    def __init__(self, upstreams: Iterable[ConfiguredUpstream], paths: Mapping[str, Iterable[str]]) -> None:
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._paths = {path: tuple(servers) for path, servers in paths.items()}

    def page(self, query: str = "", *, server: str = "", limit: int = 100) -> CatalogPage:
        """The tools of which server, name, title or description have all words of the query."""
        words = query.lower().split()
        found: list[ToolRow] = []
        unknown: list[str] = []
        for name, upstream in self._upstreams.items():
            if server not in ("", name):
                continue
            tools = upstream.probed_tools
            if tools is None:
                unknown.append(name)
            else:
                rows = (_row(name, tool) for tool in tools.listed)
                found += [row for row in rows if _matches(row, words)]
        return CatalogPage(tools=found[:limit], total=len(found), unknown=unknown)

    def tool(self, server: str, name: str) -> ToolRow:
        """One tool. Raises `NoSuch`: there is no such server, or it has listed no such tool."""
        tools = self._upstream(server).probed_tools
        if tools is None:
            raise NoSuch(f"the tools of server {server!r} are not known: it has not answered yet, or asks for secrets")
        for tool in tools.listed:
            if tool["name"] == name:
                return _row(server, tool)
        raise NoSuch(f"server {server!r} lists no tool {name[:128]!r}")

    def path_of(self, server: str) -> str:
        """The endpoint that serves that server alone. Raises `NoSuch`."""
        return f"/servers/{self._upstream(server).name}/mcp"

    def name_at(self, path: str, server: str, tool: str) -> str:
        """The name of a tool for clients of an endpoint. Raises `OperatorError`: it does not serve the server."""
        served = self._paths.get(path, ())
        if server not in served:
            raise OperatorError(f"the session is one of {path}, which does not serve {server!r}")
        return tool if len(served) == 1 else str(named(server, {"name": tool})["name"])

    def headers_for(self, server: str, tool: str, arguments: Object) -> dict[str, str]:
        """The headers that repeat arguments of a call (MCP 2026-07-28, Transports §Custom Headers)."""
        tools = self._upstream(server).probed_tools
        schema = None if tools is None else tools.mirrored.get(tool)
        if schema is None:
            return {}
        headers = argument_headers(schema, {name: decode_exact(value) for name, value in arguments.items()})
        return {name.lower(): value for name, value in headers.items()}

    def _upstream(self, server: str) -> ConfiguredUpstream:
        if server not in self._upstreams:
            raise NoSuch(f"there is no server {server[:128]!r}")
        return self._upstreams[server]


def _row(server: str, tool: Mapping[str, Any]) -> ToolRow:
    annotations = tool.get("annotations")
    return ToolRow(
        server=server,
        name=tool["name"],
        title=_text(tool.get("title")),
        description=_text(tool.get("description")),
        operation=operation_of(tool),
        annotations=annotations if isinstance(annotations, dict) else {},
        input_schema=tool.get("inputSchema"),
        output_schema=tool.get("outputSchema"),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _matches(row: ToolRow, words: list[str]) -> bool:
    text = "\n".join((row.server, row.name, row.title, row.description)).lower()
    return all(word in text for word in words)
