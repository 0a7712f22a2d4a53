"""Which tests run when. `make test` runs the first ring; `make test-all` runs both rings; CI runs the first ring and
what a change touches of the second.

The second ring has what needs a browser, published packages or minutes, and what repeats a feature of the first ring in
more surroundings. `python -m tests.rings [REVISION]` prints the suites of the second ring that the commits since that
revision touch, one on a line. Without a revision these are the commits of the last day. A comment touches nothing.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

_WIRE: Final = ("transports/inbound/", "gateway/relay/")
_PEERS: Final = ("transports/peer_frames.py", "transports/peer_channel.py", "transports/peer_server.py")
_CLUSTER: Final = ("gateway/cluster/", "gateway/sessions/", "session_store/redis/", *_PEERS)
_PROCESS: Final = ("gateway/serving/uvicorn_server.py", "gateway/observability/process_memory.py")
"""What tunes the process."""
_CONSOLE: Final = ("gateway/admin/",)
_SANDBOX: Final = ("transports/upstream/walls/", "gateway/sandbox/")
_TASKS: Final = ("gateway/tasks/",)
_SUPPORT: Final = "tests/support/"
_SHARED: Final = ("tests/conftest.py", "pyproject.toml")
"""What every suite stands on, other than `_MODELS`."""
_MODELS: Final = "tests/proof/test_model.py"
"""SPIN reads the models, and nothing of the product."""
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)

SECOND_RING: Final[dict[str, tuple[str, ...]]] = {
    "tests/attack/test_audit_trail.py::test_thousands_of_bad_keys_flush_nothing_and_are_all_counted[memory]": (
        "gateway/observability/",
        "session_store/memory.py",
    ),
    "tests/attack/test_bystander.py": (
        *_WIRE,
        "gateway/identity/",
        "gateway/policy/",
        *_PROCESS,
        "tests/attack/attackers.py",
    ),
    "tests/attack/test_fast_path_differential.py::test_nor_does_that_of_calls_which_another_replica_forwards": (
        *_WIRE,
        *_PEERS,
        "gateway/calls/",
        "gateway/cluster/",
    ),
    "tests/attack/test_fuzz.py": ("transports/",),
    "tests/attack/test_hostile_memory.py": ("transports/inbound/", "gateway/calls/", "gateway/sessions/", *_PROCESS),
    "tests/attack/test_smuggling.py": ("deploy/", "transports/inbound/"),
    "tests/clients/test_apps.py": ("gateway/bridge/", "gateway/relay/"),
    "tests/clients/test_client_table.py": ("docs/clients.md", "gateway/sessions/", "tests/clients/programs/"),
    "tests/clients/test_large_bodies.py": ("transports/inbound/",),
    "tests/clients/test_oauth.py": ("gateway/identity/",),
    "tests/clients/test_other_sdks.py": (*_WIRE, "gateway/bridge/"),
    "tests/clients/test_sdk_tasks.py": _TASKS,
    "tests/clients/test_sdk.py::test_twenty_clients_at_once_never_mix[legacy": ("gateway/calls/", "gateway/sessions/"),
    "tests/clients/test_sdk.py::test_the_gateway_on_stdin_and_stdout_is_used_as_any_server[legacy]": (
        "gateway/cli/",
        "gateway/calls/",
        *_WIRE,
    ),
    "tests/clients/test_sdk.py::test_the_gateway_on_stdin_and_stdout_is_used_as_any_server[auto]": (
        "gateway/cli/",
        "gateway/calls/",
        *_WIRE,
    ),
    "tests/clients/test_skills.py": ("gateway/bridge/", "gateway/relay/"),
    "tests/clients/test_sse_front.py": _WIRE,
    "tests/clients/test_stdio_front.py": ("gateway/cli/", "gateway/calls/", *_WIRE),
    "tests/cluster/test_affinity.py": ("deploy/", "gateway/cluster/"),
    "tests/cluster/test_balancer": ("deploy/", "docker-compose.yml", *_CLUSTER),
    "tests/cluster/test_chart.py": ("deploy/",),
    "tests/cluster/test_dead_addresses.py": _CLUSTER,
    "tests/cluster/test_deploy.py::test_the_demo_serves": ("deploy/", "docker-compose.yml"),
    "tests/cluster/test_deploy.py::test_with_keys": ("deploy/", "docker-compose.yml"),
    "tests/cluster/test_failovers.py": _CLUSTER,
    "tests/cluster/test_hand_over.py": ("gateway/serving/", "transports/inbound/"),
    "tests/cluster/test_impostors.py": _CLUSTER,
    "tests/cluster/test_kills.py": ("deploy/", *_CLUSTER),
    "tests/cluster/test_made_tasks.py": (*_TASKS, *_CLUSTER),
    "tests/cluster/test_person_tokens.py": ("gateway/context/", "gateway/cluster/", "session_store/redis/"),
    "tests/cluster/test_reloads.py::test_reloads_of_three": ("gateway/serving/", "gateway/config/", *_CLUSTER),
    "tests/cluster/test_replicas.py::test_a_rolling_restart": _CLUSTER,
    "tests/cluster/test_server_tasks.py": (*_TASKS, *_CLUSTER),
    "tests/cluster/test_unreachable.py": ("gateway/serving/", *_CLUSTER),
    "tests/designs/test_scenarios.py": ("gateway/context/", "gateway/policy/", "examples/"),
    "tests/e2e/test_app_sessions.py": ("gateway/integrations/", "session_store/"),
    "tests/e2e/test_backup.py::test_a_snapshot": ("docs/backup.md", "session_store/redis/"),
    "tests/e2e/test_changed_tools.py::test_a_tool_that_changes_within_a_session_is_marked_told_or_refused[legacy": (
        "gateway/policy/",
        "gateway/sessions/",
        "gateway/upstreams/",
    ),
    "tests/e2e/test_changed_tools.py::test_another_replica_knows_what_a_session_was_shown[legacy": (
        "gateway/policy/",
        *_CLUSTER,
    ),
    "tests/e2e/test_durability.py::test_five_seconds_without_redis_lose_nothing[stopped]": (
        "gateway/sessions/",
        "session_store/redis/",
    ),
    "tests/e2e/test_edge_limits.py::test_clients_that_do_not_read_are_cut_and_hold_nothing[json-h11]": _WIRE,
    "tests/e2e/test_edge_limits.py::test_clients_that_do_not_read_are_cut_and_hold_nothing[sse-h11]": _WIRE,
    "tests/e2e/test_examples.py": ("examples/", "gateway/context/", "gateway/sandbox/"),
    "tests/e2e/test_idle_memory.py": ("gateway/sessions/", "gateway/calls/", "gateway/upstreams/", "transports/"),
    "tests/e2e/test_processes.py::test_what_npx_starts_ends_with_the_gateway": _SANDBOX,
    "tests/e2e/test_reload_model.py::test_many": ("gateway/serving/", "gateway/config/", "gateway/policy/"),
    "tests/e2e/test_suspended_calls.py::test_calls_that_have_ended": ("gateway/bridge/", "gateway/calls/"),
    "tests/hosts": ("gateway/config/",),
    "tests/hostile/test_hostile.py": _SANDBOX,
    "tests/matrix": ("gateway/bridge/", "gateway/calls/", "gateway/relay/", "gateway/upstreams/"),
    "tests/operating/test_alerts.py": ("deploy/", "gateway/observability/metrics.py"),
    "tests/operating/test_console": _CONSOLE,
    "tests/operating/test_frames.py::test_the_page": _CONSOLE,
    "tests/operating/test_metrics.py::test_one_call_is_one_trace": ("gateway/observability/", *_CLUSTER),
    "tests/operating/test_session_environment.py::test_a_tool_is_tried": _CONSOLE,
    "tests/operating/test_tools_page.py": _CONSOLE,
    "tests/operating/test_unread_log.py": ("gateway/observability/", "gateway/serving/"),
    "tests/operating/test_unreturning_clients.py": ("gateway/observability/", "gateway/sessions/"),
    "tests/processes/test_packages.py": _SANDBOX,
    "tests/processes/test_walls.py": ("gateway/sandbox/", "transports/upstream/"),
    "tests/published": _SANDBOX,
    "tests/simulation": (*_CLUSTER, "gateway/calls/", "tests/proof/histories.py"),
    "tests/store/test_redis_cluster.py": ("session_store/",),
    "tests/store/test_sentinel.py": ("session_store/redis/",),
    "tests/test_bench.py": ("bench/", "transports/", "gateway/relay/", "gateway/calls/", *_PROCESS),
    "tests/test_documents.py::test_a_command_does_what_the_document_says": (
        "docs/",
        "README.md",
        "examples/",
        "gateway/cli/",
        "gateway/config/",
        "gateway/doctor/",
    ),
    "tests/test_image.py": ("deploy/", "docker-compose.yml"),
    "tests/test_site.py": ("docs/", "mkdocs.yml"),
    "tests/test_surroundings.py::test_a_run_beside_a_gateway": ("gateway/serving/", "gateway/cli/"),
    "tests/test_wheel.py": ("gateway/cli/", "gateway/__init__.py", "pyproject.toml"),
    _MODELS: tuple(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/proof").glob("*.pml")),
}
"""Suite (a folder, a file, or a beginning of test ids) → what touches it beside itself: folders and files."""
_LONGEST: Final = (
    "tests/simulation",
    _MODELS,
    "tests/cluster/test_kills.py",
    "tests/cluster/test_person_tokens.py",
    "tests/test_wheel.py",
    "tests/test_image.py",
)
"""Files that take minutes. A run begins with them, so that no worker is left with one at the end."""


def is_of_the_second_ring(test: str) -> bool:
    """True for the id of such a test, as pytest writes it."""
    return any(test.startswith(suite) for suite in SECOND_RING)


def touched(changed: Iterable[str]) -> list[str]:
    """The suites of the second ring that a change of these files touches. A file of `tests/support` touches the suites
    that name it, or that name another one that names it."""
    files = tuple(changed)
    names = {Path(file).stem for file in files if file.startswith(_SUPPORT)}
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / _SUPPORT).rglob("*.py")}
    while more := {stem for stem, text in texts.items() if stem not in names and _names_one(text, names)}:
        names |= more
    conftest = (ROOT / "tests/conftest.py").read_text(encoding="utf-8")
    shared = _names_one(conftest, names) or any(file in _SHARED for file in files)
    return [
        suite
        for suite, by in SECOND_RING.items()
        if (shared and suite != _MODELS)
        or any(file.startswith((suite.partition("::")[0], *by)) for file in files)
        or any(_names_one(text, names) for text in _texts_of(suite))
    ]


def _names_one(text: str, modules: set[str]) -> bool:
    """By import (`support.NAME`, or a line of several) or by its file (`NAME.py`, `support/NAME`)."""
    lines = "\n".join(line for line in text.splitlines() if "tests.support import" in line)
    named = {*re.findall(r"(?<=support[./])\w+|\w+(?=\.(?:py|mjs|c|schema\.json)\b)", text), *re.findall(r"\w+", lines)}
    return not modules.isdisjoint(named)


def _texts_of(suite: str) -> Iterator[str]:
    for path in ROOT.glob(f"{suite.partition('::')[0]}*"):
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            yield file.read_text(encoding="utf-8")


def same_model(before: str, after: str) -> bool:
    """True for two texts of a model that differ in nothing but comments."""
    return _COMMENT.sub(" ", before) == _COMMENT.sub(" ", after)


def same_program(before: str, after: str) -> bool:
    """True for two texts of a module that differ in nothing but comments, docstrings and layout. The docstring of a
    decorated function counts: the decorator may make the description of a tool or a verb of it."""
    try:
        return ast.dump(_without_docstrings(before)) == ast.dump(_without_docstrings(after))
    except (SyntaxError, ValueError):
        return False


def _without_docstrings(text: str) -> ast.Module:
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(node, ast.Module | ast.ClassDef) or not node.decorator_list:
                node.body = [one for one in node.body if not _is_text(one)]
    return module


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def changed_since(base: str, root: Path = ROOT) -> Iterator[str]:
    """The files that differ from that commit's. A module or a model is left out if only its words are others, unless it
    is one of the commands, which show theirs."""
    for line in _git("diff", "--raw", "--no-renames", base, "HEAD", root=root).splitlines():
        how, file = line.split("\t")
        mode_before, mode, *_, status = how.lstrip(":").split()
        same = {".py": same_program, ".pml": same_model}.get(Path(file).suffix)
        is_rewritten = status == "M" and mode_before == mode and not file.startswith("gateway/cli/")
        if is_rewritten and same is not None:
            before, after = (_git("show", f"{commit}:{file}", root=root) for commit in (base, "HEAD"))
            if same(before, after):
                continue
        yield file


def _git(*arguments: str, root: Path = ROOT) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def main(arguments: list[str]) -> None:
    base = arguments or (
        _git("rev-list", "-1", "--before=1 day ago", "HEAD") or _git("rev-list", "--max-parents=0", "HEAD")
    ).split("\n")
    begun = {suite.partition("::")[0] for suite in touched(changed_since(base[0]))}
    # pytest takes files and folders; a beginning of names stands for those that begin with it. The mark of the ring
    # chooses among the tests of a file.
    named = {
        path for start in begun for path in ([ROOT / start] if (ROOT / start).exists() else ROOT.glob(f"{start}*"))
    }
    found = sorted((path.relative_to(ROOT).as_posix() for path in named), key=lambda path: (path not in _LONGEST, path))
    print(*found, sep="\n")  # noqa: T201  # a command


if __name__ == "__main__":
    main(sys.argv[1:])
