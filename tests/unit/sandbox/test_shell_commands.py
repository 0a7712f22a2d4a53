"""The commands within the text of a shell."""

import pytest

from gateway.sandbox.shell_commands import commands_of, placed_commands
from tests.requirements import requirement


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
