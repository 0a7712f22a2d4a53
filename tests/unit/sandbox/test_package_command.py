"""Commands of npx and uvx are understood exactly, or left as they are."""

import pytest

from gateway.sandbox.package_command import PackageCommand, commands_of, parse, placed_commands
from tests.requirements import requirement

pytestmark = requirement("box.package-commands")

UNDERSTOOD = [
    ("npx -y server", "", "server", False),
    ("npx --yes -q server@1.2.3", "a -y", "server@1.2.3", True),
    ("/usr/bin/npx -y @scope/server@^1", "--flag", "@scope/server@^1", False),
    ("npx -y @scope/server@latest", "", "@scope/server@latest", False),
    ("npx -y --package=a@1.0.0 -p b@2.0.0 run", "x", "a@1.0.0 b@2.0.0", True),
    ("npx --package a -- run", "-v", "a", False),
    ("npm exec --yes -- server", "x", "server", False),
    ("uvx server", "x", "server", False),
    ("uvx server@1.2.3", "--from x", "server@1.2.3", True),
    ("uvx server[extra]==1.2", "", "server[extra]==1.2", True),
    ("uvx server@latest", "", "server@latest", False),
    ("uvx --from server==1.0 --with mcp<2 run", "", "server==1.0 mcp<2", False),
    ("uvx -p 3.12 server", "", "server", False),
    ("uvx -p /usr/bin/python3 --index own=https://h/s -f https://h/w server", "", "server", False),
    ("uv tool run --from=server run", "y", "server", False),
]
LEFT_ALONE = [
    "", "node server.js", "npx", "npx -y", "npx --version", "npx -c run", "npx -y -c run", "npx --call=run",
    "npx ./server", "npx -y ../server", "npx -y /srv/server", "npx -y github:user/repository",
    "npx -y user/repository", "npx -y git+https://host/repository", "npx -y https://host/server.tgz",
    "npx -y server.tgz/", "npx -y server@npm:other@1", "npx -y server@file:../x",
    "npx --node-options=--inspect -y server", "npx -y -p ./local run", "npm install server", "npm exec server",
    "npm exec -- ", "bunx server", "pnpm dlx server", "uvx", "uvx --version", "uvx --from server",
    "uvx --refresh server", "uvx --isolated server", "uvx -n server", "uvx --env-file x server",
    "uvx --with-editable . server", "uvx --from . server", "uvx --from git+https://h/r server", "uvx ./server",
    "uvx python", "uvx --from server python3.12", "uvx --with ./local server", "uvx server@git+https://h/r",
    "uvx --find-links=wheels server", "uvx -f /srv/wheels server", "uvx --index=own=../wheels server",
    "uvx --index-url file:///srv/wheels server", "uvx -p .venv server", "uvx -p venv/bin/python server",
    "node_modules/.bin/npx -y server", "./uvx server",
    "uv run server.py", "uv --quiet tool run server", "uv tool install server",
]  # fmt: skip


@pytest.mark.parametrize(("head", "args", "package", "is_pinned"), UNDERSTOOD)
def test_a_command_is_taken_apart(head: str, args: str, package: str, is_pinned: bool) -> None:
    found = parse([*head.split(), *args.split()])
    assert found is not None and (found.head, found.args) == (tuple(head.split()), tuple(args.split()))
    assert (found.package, found.is_pinned) == (package, is_pinned)


@pytest.mark.parametrize("line", LEFT_ALONE)
def test_a_command_that_is_not_known_exactly_is_left_alone(line: str) -> None:
    assert parse(line.split()) is None


def test_uv_is_asked_for_the_python_of_the_same_environment() -> None:
    def within(line: str) -> tuple[str, str]:
        found = parse(line.split())
        assert isinstance(found, PackageCommand)
        return found.program, " ".join(found.within)

    assert within("uvx server@1.2 x") == ("server", "uvx --from server@1.2 python")
    assert within("uvx -p 3.12 --with a server") == ("server", "uvx -p 3.12 --with a --from server python")
    assert within("uv tool run --from server run x") == ("run", "uv tool run --from server python")
    assert within("uvx server[extra]>=1") == ("server", "uvx --from server[extra]>=1 python")


@requirement("box.runtime")
@pytest.mark.parametrize(
    ("argv", "within"),
    [
        (("python", "-c", "print(1)"), []),
        (("sh", "-c", "exec /opt/x/python -m server"), [("/opt/x/python", "-m", "server")]),
        (("/bin/bash", "-lc", "cd /srv/app && A=1 node 'dist/in dex.js' | tee log"),
         [("cd", "/srv/app"), ("node", "dist/in dex.js"), ("tee", "log")]),
        (("sh", "-ec", "run >/var/told 2>&1; if true; then one\ntwo; fi"),
         [("run",), ("/var/told", "2"), ("1",), ("true",), ("one",), ("two",), ("fi",)]),
        (("env", "-i", "A=b", "sh", "-c", "deep"), [("sh", "-c", "deep"), ("deep",)]),
        (("sh", "-c", "known 'no end"), [("known",)]),
        (("sh", "script.sh", "-x"), []),
        (("sh", "-c"), []),
        (("env",), []),
        (("bash", "--rc", "x"), []),
    ],
)  # fmt: skip
def test_the_commands_of_a_shell_are_found(argv: tuple[str, ...], within: list[tuple[str, ...]]) -> None:
    assert commands_of(argv) == [argv, *within]


def test_cd_goes_to_another_folder() -> None:
    placed = list(placed_commands(("sh", "-c", "one; cd app/../lib && two; cd /srv; three"), "/here"))
    assert [(command[0], folder) for command, folder in placed[1:]] == [
        ("one", "/here"), ("cd", "/here"), ("two", "/here/lib"), ("cd", "/here/lib"), ("three", "/srv"),
    ]  # fmt: skip
