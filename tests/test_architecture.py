"""The house stands as docs/architecture.md says: imports go down only, pure modules stay pure, files hold one idea."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Set
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.tools.state_diagrams import DIAGRAMS, DOCUMENT, drawn

ROOT = Path(__file__).parent.parent
LAYERS = {
    "gateway": {"gateway", "session_store", "transports"},
    "mcp_session_gateway": {"gateway", "mcp_session_gateway"},
    "session_store": {"session_store"},
    "transports": {"transports"},
}
PURE = [
    "session_store/session.py",
    "session_store/token_signing.py",
    "session_store/ports/tool_state.py",
    "session_store/redaction.py",
    "session_store/record.py",
    "transports/mirrored_headers.py",
    "transports/jsonrpc.py",
    "transports/sse.py",
    "transports/inbound/modern_request_checks.py",
    "transports/upstream/line_splitter.py",
    "gateway/config/hosts/client_snippets.py",
    "gateway/protocol/merged_lists.py",
    "gateway/context/session_facts.py",
    "gateway/protocol/params.py",
    "gateway/identity/request_context.py",
    "gateway/identity/context_rules.py",
    "gateway/calls/lifecycles.py",
    "gateway/calls/suspended_call.py",
    "gateway/calls/open_call_counts.py",
    "gateway/observability/request_outcomes.py",
    "gateway/identity/credential_claims.py",
    "gateway/protocol/result_translation.py",
    "gateway/protocol/handshake.py",
    "gateway/protocol/tasks.py",
    "gateway/tasks/task_messages.py",
    "gateway/tasks/task_handles.py",
    "gateway/tasks/gateway_tasks/stored_call.py",
    "gateway/tasks/gateway_tasks/task_states.py",
]
ROOMS = (
    "protocol", "config", "identity", "context", "observability", "policy", "sandbox", "cluster", "calls", "bridge",
    "upstreams", "sessions", "tasks", "relay", "admin", "serving", "integrations", "doctor", "cli",
)  # fmt: skip
"""The rooms of `gateway/`, lowest first. A module imports from its own room and from lower ones."""

BELOW_ALL, ABOVE_ALL = {"gateway.errors", "gateway.version"}, {"gateway", "gateway.__main__", "gateway.demo_server"}

IO = {"asyncio", "socket", "subprocess", "redis", "sqlite3", "threading"}
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A source, parsed when a test first asks for it: every worker of a run imports this file, one runs its tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports_of(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> Iterator[str]:
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def test_imports_go_down_only() -> None:
    wrong = set()
    for path in SOURCES:
        layer = path.relative_to(ROOT).parts[0]
        closed = (LAYERS.keys() - LAYERS[layer]) | {"tests"}
        if layer == "session_store":
            closed |= {"mcp", "mcp_types", "starlette", "uvicorn", "httpx", "httpx2"}
        tops = {name.partition(".")[0] for name in imported(path)}
        wrong |= {(str(path.relative_to(ROOT)), top) for top in tops & closed}
    assert wrong == set()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def floor(module: str) -> int:
    """The place of a module's room among the rooms, from 0."""
    if module in BELOW_ALL | ABOVE_ALL:
        return -1 if module in BELOW_ALL else len(ROOMS)
    return ROOMS.index(module.split(".")[1])


def test_every_module_of_the_gateway_stands_in_a_room() -> None:
    for path in (ROOT / "gateway").rglob("*.py"):
        floor(module_of(path))


def test_imports_between_rooms_go_down_only() -> None:
    """Imports for types and imports inside functions count as well."""
    upward = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        own = module_of(path)
        for name in imported(path):
            if name.partition(".")[0] == "gateway" and floor(name) > floor(own):
                upward.add((own, name))
    assert upward == set()


def modules_imported(path: Path, modules: Set[str]) -> Iterator[str]:
    """As `imported`; `from package import module` is an import of the module."""
    for node in imports_of(path):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & modules
            if names - modules:
                yield node.module or ""
        else:
            yield from (alias.name for alias in node.names)


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for types and imports inside functions count as well."""
    modules = {module_of(path) for path in SOURCES}
    graph = {module_of(path): set(modules_imported(path, modules)) for path in SOURCES}
    sorter = TopologicalSorter({module: names & graph.keys() for module, names in graph.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {error.args[1]}")


def test_pure_modules_do_no_io() -> None:
    tops = {(name, module.partition(".")[0]) for name in PURE for module in imported(ROOT / name)}
    assert {(name, top) for name, top in tops if top in IO} == set()


def test_serving_commands_and_urls_does_not_load_the_sdk() -> None:
    """It takes half a second and 16 MB to load, for each worker. Servers in the process and event stores need it."""
    modules = "sys, gateway.cli.serve, gateway.serving.composition, transports.upstream.streamable_http"
    loaded = f"import {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} & {"mcp", "mcp_types"} == set()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_EXTRAS = {
    "gateway/context/consent_flow.py": "mcp",
    "gateway/integrations/sdk_event_store.py": "mcp",
    "gateway/integrations/pytest_plugin.py": "test",
    "gateway/observability/tracing.py": "tracing",
    "gateway/sessions/session_management_tools.py": "mcp",
    "mcp_session_gateway/pytest_plugin.py": "test",
    "session_store/testing": "test",
    "transports/testing": "test",
    "transports/upstream/in_process.py": "mcp",
}
"""Files and folders that need an extra. Other modules import them when a setting or a test asks for them."""


def installed_with(requirements: list[str]) -> set[str]:
    """The packages that these requirements bring, by name. The extra `hiredis` of redis has the name of its package."""
    found, new = set[str](), {name for each in requirements for name in re.findall(r"^[\w.-]+|(?<=\[)\w+(?=\])", each)}
    while new:
        found |= new
        further = [each for package in new for each in requires(package) or () if "extra ==" not in each]
        names = {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in further}
        new = {
            name for name in names - found if any(name in some for some in packages_by_module().values())
        }  # of other systems
    return found


@functools.cache
def packages_by_module() -> dict[str, set[str]]:
    """Module → the packages that have it."""
    return {
        module: {package.lower().replace("_", "-") for package in packages}
        for module, packages in packages_distributions().items()
    }


def test_what_is_imported_is_installed_with_the_gateway_or_with_an_extra() -> None:
    base = installed_with(PROJECT["dependencies"])
    extras = {name: installed_with(PROJECT["optional-dependencies"][name]) for name in set(OF_EXTRAS.values())}
    assert "mcp" not in base
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        here = base.union(*(extras[extra] for place, extra in OF_EXTRAS.items() if name.startswith(place)))
        tops = {module.partition(".")[0] for module in imported(path)} - {"_typeshed"}
        for module in tops - sys.stdlib_module_names - LAYERS.keys():
            assert packages_by_module()[module] & here, f"{name}: {module}"


WITHOUT_OTHERS = """
import asyncio, sys

class Others:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Others())
import session_store.child_process_session, session_store.redis, session_store.app_store
from gateway import SessionMiddleware
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def visit(request):
    return PlainTextResponse(str(await session_store.current_session().state.increment("visits")))

async def receive():
    return {"type": "http.request"}

async def send(message):
    print(message.get("body", b"").decode(), end="")

app = SessionMiddleware(Starlette(routes=[Route("/", visit)]), store="memory://")
scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "scheme": "http"}
asyncio.run(app(scope, receive, send))
"""


@requirement("app.middleware")
def test_the_extra_of_the_middleware_is_enough_for_it_and_for_every_store() -> None:
    brought = installed_with(PROJECT["optional-dependencies"]["middleware"])
    others = {module for module, packages in packages_by_module().items() if not packages & brought} - LAYERS.keys()
    run = [sys.executable, "-c", WITHOUT_OTHERS % others]
    assert subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "1"
    assert not brought & {"mcp", "uvicorn", "typer", "jinja2", "cryptography", "dnspython", "httpx2"}


def test_the_demo_server_needs_nothing_heavy() -> None:
    allowed = {"base64", "json", "os", "secrets", "socket", "sys", "threading", "collections", "typing", "http"}
    assert {module.partition(".")[0] for module in imported(ROOT / "gateway/demo_server.py")} <= allowed


MAX_MODULE, MAX_TEST_FILE, MAX_CONSTRUCTOR, MAX_PARAMETERS = 600, 600, 8, 6

OF_LIBRARIES: set[tuple[str, str]] = {
    ("gateway/cli/options.py", "run.__annotations__"),
    ("gateway/cli/options.py", "run.__signature__"),
    ("gateway/cli/gateway_or_store.py", "command.__signature__"),
    ("gateway/config/patterns.py", "options.case_sensitive"),
    ("gateway/config/patterns.py", "options.log_errors"),
    ("gateway/config/patterns.py", "options.max_mem"),
    ("gateway/config/secrets.py", "context.check_hostname"),
    ("gateway/config/secrets.py", "context.minimum_version"),
    ("gateway/config/secrets.py", "context.verify_mode"),
    ("gateway/demo_server.py", "connection.sock"),
    ("gateway/observability/queued_output.py", "sys.stderr"),
    ("gateway/protocol/uris.py", "options.log_errors"),
    ("gateway/protocol/uris.py", "options.max_mem"),
    ("gateway/sandbox/package_command.py", "reader.whitespace_split"),
    ("gateway/serving/uvicorn_server.py", "self._operators[0].should_exit"),
    ("session_store/redis/connection.py", "error.__cause__"),
    ("transports/inbound/asgi_bypass.py", "self._connection.server_state.total_requests"),
    ("transports/inbound/http_connection.py", "cycle.disconnected"),
    ("transports/inbound/http_connection.py", "cycle.transport"),
    ("transports/inbound/http_connection.py", "cycle.waiting_for_100_continue"),
    ("transports/inbound/http_connection.py", "self.server_state.total_requests"),
    ("transports/upstream/walls/raw_system_calls.py", "_libc.syscall.restype"),
}
"""Attributes that a library wants to be assigned."""


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    named = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")])


def too_large(path: Path) -> Iterator[tuple[str, int]]:
    name = str(path.relative_to(ROOT))
    if lines_of(path) > MAX_MODULE:
        yield name, lines_of(path)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            most = MAX_CONSTRUCTOR if node.name == "__init__" else MAX_PARAMETERS
            if parameters(node) > most:
                yield f"{name}:{node.name}", parameters(node)


def test_files_and_parameter_lists_are_small() -> None:
    assert {name for path in SOURCES for name, _ in too_large(path)} == set()


MOST_IN_A_ROOM = 20
LARGE_ROOMS: dict[str, int] = {
    "gateway": 23,
}
"""Rooms that have more. A number may only fall, and its row goes at `MOST_IN_A_ROOM`."""


def sizes() -> Iterator[tuple[str, int]]:
    """Each package, and how many modules and packages stand in it."""
    for path in SOURCES:
        if path.name == "__init__.py":
            modules = [one for one in path.parent.glob("*.py") if one != path]
            packages = [*path.parent.glob("*/__init__.py")]
            yield str(path.parent.relative_to(ROOT)), len(modules) + len(packages)


def test_a_room_holds_what_one_can_look_over() -> None:
    assert {room: size for room, size in sizes() if size > LARGE_ROOMS.get(room, MOST_IN_A_ROOM)} == {}


def test_no_test_file_is_too_long() -> None:
    assert {str(path) for path in (ROOT / "tests").rglob("*.py") if lines_of(path) > MAX_TEST_FILE} == set()


def test_no_line_of_a_page_a_style_a_script_or_a_chart_is_too_long() -> None:
    kinds = ["*.css", "*.html", "*.js", "*.mjs", "*.yaml", "*.yml", "Makefile"]
    tracked = subprocess.run(["git", "ls-files", *kinds], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in tracked.split() if (ROOT / name).is_file()]
    assert [path for path in paths if any(len(line) > 200 for line in path.read_text("utf-8").splitlines())] == []


def test_no_line_of_a_document_is_too_long() -> None:
    """Rows of tables and code blocks cannot be folded. The change log has a line for each change."""
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: list[str] = []
    for name in {*tracked.split()} - {"CHANGELOG.md"}:
        text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        found += [f"{name}: {line}" for line in text.splitlines() if len(line) > 200 and not line.startswith("|")]
    assert found == []


def own_attributes(tree: ast.Module) -> set[str]:
    """Names of attributes that the classes of that module have."""
    names = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef):
            for node in ast.walk(each):
                if isinstance(node, ast.AnnAssign | ast.Assign):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if isinstance(target, ast.Name):
                            names.add(target.id)
                        if isinstance(target, ast.Name) and target.id == "__slots__":
                            names |= set(re.findall(r"\w+", ast.unparse(node)))
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                    names.add(node.attr)
    return names


def foreign_assignments(tree: ast.Module) -> Iterator[str]:
    """Attributes assigned to an object whose class stands in another module, as far as names can tell."""
    own = own_attributes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")) and node.attr not in own:
                yield ast.unparse(node)


def test_nobody_assigns_the_attributes_of_another_modules_class() -> None:
    """What changes an object stands in its class, where its rules are."""
    found = {(str(path.relative_to(ROOT)), name) for path in SOURCES for name in foreign_assignments(tree_of(path))}
    assert found - OF_LIBRARIES == set()


def test_the_tree_names_no_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    # Spelled so that this file does not match itself.
    machine = re.compile("/" + "work/|" + "/" + "root/|" + "shared" + r"/(design|wire|style|requirements)\.md")
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix != ".png":
            assert not machine.search(path.read_text(encoding="utf-8", errors="replace")), name


def defined_in(path: str) -> set[str]:
    file = ROOT / path
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return set(re.findall(r"^ *(?:async )?def (\w+)\(", text, re.MULTILINE))


def test_every_test_that_a_document_or_a_table_names_exists() -> None:
    command = ["git", "ls-files", "*.md", "*.toml"]
    tables = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = {
        (path, test, table)
        for table in tables
        if (ROOT / table).is_file()
        for path, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", (ROOT / table).read_text(encoding="utf-8"))
    }
    defined = {path: defined_in(path) for path, _, _ in named}
    assert len(named) > 500
    assert sorted(each for each in named if each[1] not in defined[each[0]]) == []


CONTEXT_VARIABLES = {
    "gateway/observability/logs.py": "the correlation id of log lines",
    "gateway/observability/tracing.py": "the span of a request, for who reports its end",
    "gateway/integrations/sdk_event_store.py": "the log that an SDK's event store writes to",
    "session_store/current_tool_session.py": "current_session(), for the code of tools",
    "transports/via_header.py": "the gateways that a request has passed, which it repeats to servers",
}


@requirement("wall.authority")
def test_no_context_variable_holds_what_a_credential_says() -> None:
    """Servers start a connection's next request in the context of the one before: authority travels as an argument."""
    found = {}
    for path in SOURCES:
        for node in ast.walk(tree_of(path)) if "ContextVar" in path.read_text(encoding="utf-8") else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).partition("[")[0].endswith("ContextVar"):
                found[str(path.relative_to(ROOT))] = ast.unparse(node)
    assert found.keys() == CONTEXT_VARIABLES.keys()
    for words in ("granted", "principal", "claim", "credential", "permission", "trust"):
        assert not any(words in variable.lower() for variable in found.values())


def test_the_diagrams_of_lifecycles_are_drawn_from_their_tables() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert re.findall(r"<!-- lifecycle: (\w+) -->", text) == list(DIAGRAMS)
    assert drawn(text) == text, "make reference draws them"


def test_the_architecture_names_files_that_exist_and_every_room() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for path in re.findall(r"`([\w/]+(?:/|\.py))`", text):
        assert any((ROOT / base / path).exists() for base in ("", "gateway", "transports", "session_store")), path
    assert set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)) == set(ROOMS)
