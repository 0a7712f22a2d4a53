"""A server of the Python SDK with the skills of a folder: `skills_server.py FOLDER`. It reads no directories. Its skill
`unlisted`, if there is one, is in no list."""

import hashlib
import sys
from pathlib import Path
from typing import Any

from mcp import types
from mcp.server import MCPServer
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.resources import TextResource
from mcp.shared.exceptions import MCPError


class Named(types.RequestParams):
    uri: str


class Skills(Extension):
    """The Skills extension."""

    identifier = "io.modelcontextprotocol/skills"

    def __init__(self, folder: Path) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        self.files = {f"skill://{path.relative_to(folder)}": path.read_text() for path in paths}
        self._entries = {uri: self._entry(uri) for uri in self.files if uri.endswith("/SKILL.md")}

    def _entry(self, uri: str) -> dict[str, Any]:
        head = self.files[uri].split("---\n")[1]
        root = uri.removesuffix("SKILL.md")
        files = [
            {"uri": each, "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", "size": len(text.encode())}
            for each, text in self.files.items()
            if each.startswith(root)
        ]
        return {"uri": uri, "frontmatter": dict(line.split(": ") for line in head.splitlines()), "resources": files}

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("skills/list", types.PaginatedRequestParams, self._list),
            MethodBinding("skills/get", Named, self._get),
        ]

    async def _list(self, _: Any, params: Any) -> dict[str, Any]:
        listed = [entry for uri, entry in self._entries.items() if "unlisted" not in uri]
        return {"skills": listed, "ttlMs": 3_000, "cacheScope": "public"}

    async def _get(self, _: Any, params: Named) -> dict[str, Any]:
        if params.uri not in self._entries:
            raise MCPError(-32602, f"No skill is served at {params.uri}")
        return {"skill": self._entries[params.uri], "ttlMs": 3_000, "cacheScope": "public"}


def main() -> None:
    skills = Skills(Path(sys.argv[1]))
    server = MCPServer("skills", extensions=[skills])
    for uri, text in skills.files.items():
        server.add_resource(TextResource(uri=uri, name=uri, text=text))
    server.run()


if __name__ == "__main__":
    main()
