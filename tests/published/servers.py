"""The published servers: how each is configured, and calls that show that it does its work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Site:
    """What the servers work on: `folder` has files, a repository and room for more. `page` is the URL of a web page."""

    folder: Path
    page: str

    @property
    def repository(self) -> str:
        return str(self.folder / "repository")

    @property
    def host(self) -> str:
        """Host and port of the page."""
        return self.page.split("/")[2]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. Its result has to have `expected` in its text."""

    tool: str
    arguments: Mapping[str, Any]
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedServer:
    """One server. `sandbox` are the grants that it needs beyond its profile: everything else of it works without."""

    name: str
    command: tuple[str, ...]
    args: Callable[[Site], list[str]] = lambda site: []
    env: Callable[[Site], dict[str, str]] = lambda site: {}
    calls: Callable[[Site], list[Call]]
    sandbox: Callable[[Site], dict[str, Any]] = lambda site: {}
    shows: str
    is_quick: bool = field(default=False)
    """True if `make test` runs it."""


def _npx(package: str, *words: str, **more: Any) -> PublishedServer:
    return PublishedServer(name=package, command=("npx", "-y", package, *words), **more)


def _uvx(package: str, *words: str, **more: Any) -> PublishedServer:
    return PublishedServer(name=package, command=("uvx", package, *words), **more)


def _page_of(site: Site) -> dict[str, Any]:
    """A web server on this machine, which no profile reaches by itself."""
    return {"reach": [site.host]}


def _sheet(site: Site) -> dict[str, Any]:
    return {"path": str(site.folder / "book.xlsx"), "sheet": "One"}


CHROMIUM: Final = "/usr/bin/chromium"


SERVERS: Final = (
    _npx(
        "@modelcontextprotocol/server-filesystem",
        args=lambda site: [str(site.folder)],
        calls=lambda site: [
            Call("write_file", {"path": str(site.folder / "written.txt"), "content": "by a server"}, "Successfully"),
            Call("read_text_file", {"path": str(site.folder / "written.txt")}, "by a server"),
        ],
        shows="writes a file and reads it",
    ),
    _npx(
        "@modelcontextprotocol/server-memory",
        env=lambda site: {"MEMORY_FILE_PATH": str(site.folder / "memory/memory.jsonl")},
        calls=lambda site: [
            Call(
                "create_entities",
                {"entities": [{"name": "Ada", "entityType": "person", "observations": ["wrote a program"]}]},
                "Ada",
            ),
            Call("search_nodes", {"query": "Ada"}, "wrote a program"),
        ],
        shows="stores an entity in its file and finds it",
    ),
    _npx(
        "@modelcontextprotocol/server-everything",
        calls=lambda site: [Call("get-sum", {"a": 40, "b": 2}, "42")],
        shows="adds two numbers",
        is_quick=True,
    ),
    _npx(
        "@modelcontextprotocol/server-sequential-thinking",
        calls=lambda site: [
            Call(
                "sequentialthinking",
                {"thought": "first", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2},
                '"thoughtNumber": 1',
            )
        ],
        shows="takes a thought",
    ),
    _npx(
        "@playwright/mcp",
        args=lambda site: ["--headless", "--isolated", "--no-sandbox", "--executable-path", CHROMIUM],
        calls=lambda site: [
            Call("browser_navigate", {"url": site.page}, "A page of the site"),
            Call("browser_snapshot", {}, "written by a script"),
        ],
        sandbox=_page_of,
        shows="opens a page in Chromium and reads what a script has written",
    ),
    _npx(
        "chrome-devtools-mcp",
        args=lambda site: [
            *("--headless", "--isolated", "--executablePath", CHROMIUM),
            *("--chromeArg=--no-sandbox", "--no-usage-statistics"),
        ],
        calls=lambda site: [
            Call("new_page", {"url": site.page}, site.page),
            Call("list_pages", {}, site.page),
        ],
        sandbox=_page_of,
        shows="opens a page in Chromium",
    ),
    _npx(
        "@cyanheads/git-mcp-server",
        env=lambda site: {"GIT_BASE_DIR": str(site.folder), "MCP_TRANSPORT_TYPE": "stdio"},
        calls=lambda site: [Call("git_log", {"path": site.repository}, "The first commit")],
        shows="reads the log of a repository",
    ),
    _npx(
        "time-mcp",
        calls=lambda site: [Call("days_in_month", {"date": "2024-02-10"}, "29")],
        shows="counts the days of a month",
    ),
    _npx(
        "mcp-server-code-runner",
        calls=lambda site: [Call("run-code", {"code": "console.log(6 * 7)", "languageId": "javascript"}, "42")],
        shows="runs a program",
    ),
    _npx(
        "repomix",
        "--mcp",
        calls=lambda site: [Call("pack_codebase", {"directory": site.repository}, "hello.py")],
        sandbox=lambda site: {"read": [site.repository]},
        shows="packs a repository, which no argument of its command names",
    ),
    _npx(
        "@eslint/mcp",
        calls=lambda site: [Call("lint-files", {"filePaths": [str(site.folder / "lint/bad.js")]}, "no-unused-vars")],
        sandbox=lambda site: {"read": [str(site.folder / "lint")]},
        shows="finds an unused variable",
    ),
    _npx(
        "mcp-echarts",
        calls=lambda site: [
            Call(
                "generate_pie_chart",
                {"data": [{"category": "a", "value": 1}, {"category": "b", "value": 2}], "outputType": "svg"},
                "<svg",
            )
        ],
        shows="draws a chart",
    ),
    _uvx(
        "mcp-server-git",
        args=lambda site: ["--repository", site.repository],
        calls=lambda site: [Call("git_log", {"repo_path": site.repository}, "The first commit")],
        shows="reads the log of a repository",
        is_quick=True,
    ),
    _uvx(
        "mcp-server-fetch",
        args=lambda site: ["--ignore-robots-txt", "--allow-private-ips"],
        calls=lambda site: [Call("fetch", {"url": site.page}, "A second paragraph says")],
        sandbox=_page_of,
        shows="fetches a page as Markdown",
    ),
    _uvx(
        "mcp-server-time",
        calls=lambda site: [
            Call("convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}, "21:00")
        ],
        shows="converts a time between zones",
    ),
    PublishedServer(
        name="mcp-server-sqlite",
        command=("uvx", "--with", "mcp<2", "mcp-server-sqlite"),
        args=lambda site: ["--db-path", str(site.folder / "database/notes.db")],
        calls=lambda site: [
            Call("create_table", {"query": "CREATE TABLE IF NOT EXISTS notes (text TEXT)"}, "success"),
            Call("write_query", {"query": "INSERT INTO notes VALUES ('kept')"}, "affected_rows"),
            Call("read_query", {"query": "SELECT text FROM notes"}, "kept"),
        ],
        shows="writes a row into a database and reads it",
    ),
    _uvx(
        "mcp-server-calculator",
        calls=lambda site: [Call("calculate", {"expression": "6 * 7"}, "42")],
        shows="calculates",
    ),
    _uvx(
        "markitdown-mcp",
        calls=lambda site: [Call("convert_to_markdown", {"uri": (site.folder / "page.html").as_uri()}, "# A page")],
        sandbox=lambda site: {"read": [str(site.folder / "page.html")]},
        shows="converts a file to Markdown, which no argument of its command names",
    ),
    _uvx(
        "excel-mcp-server",
        "stdio",
        calls=lambda site: [
            Call("create_workbook", {"path": str(site.folder / "book.xlsx"), "sheets": ["One"]}, "book.xlsx"),
            Call("write_range", {**_sheet(site), "at": "A1", "rows": [["sum", 42]]}, ""),
            Call("read_range", {**_sheet(site), "range": "A1:B1"}, "42"),
        ],
        sandbox=lambda site: {"write": [str(site.folder)]},
        shows="makes a workbook in a folder that is granted and reads it",
    ),
    PublishedServer(
        name="office-word-mcp-server",
        command=("uvx", "--from", "office-word-mcp-server", "--with", "mcp<2", "word_mcp_server"),
        calls=lambda site: [
            Call("create_document", {"filename": "letter.docx", "title": "Letter"}, "created"),
            Call("add_paragraph", {"filename": "letter.docx", "text": "Dear reader"}, "added"),
            Call("get_document_text", {"filename": "letter.docx"}, "Dear reader"),
        ],
        shows="writes a document in the session's own folder and reads it",
    ),
    _uvx(
        "mcp-server-motherduck",
        args=lambda site: ["--db-path", str(site.folder / "numbers/numbers.duckdb"), "--read-write"],
        calls=lambda site: [
            Call("execute_query", {"sql": "CREATE OR REPLACE TABLE t AS SELECT 42 AS answer"}, ""),
            Call("execute_query", {"sql": "SELECT answer FROM t"}, "42"),
        ],
        shows="writes a table into a database and reads it",
    ),
    _uvx(
        "mcp-shell-server",
        env=lambda site: {"ALLOW_COMMANDS": "ls,cat"},
        calls=lambda site: [
            Call("shell_execute", {"command": ["ls", "repository"], "directory": str(site.folder)}, "hello.py")
        ],
        sandbox=lambda site: {"read": [str(site.folder)]},
        shows="runs a command in a folder that is granted",
    ),
    _uvx(
        "mcp-simple-timeserver",
        calls=lambda site: [Call("get_local_time", {}, "20")],
        shows="tells the time",
    ),
)
