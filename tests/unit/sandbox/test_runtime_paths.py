"""The files that a command needs, found on a machine that the tests build."""

from pathlib import Path

import pytest

from gateway.sandbox.runtime_paths import RuntimePaths, runtime_paths
from tests.requirements import requirement
from tests.unit.sandbox.parts import make

pytestmark = requirement("box.runtime")


@pytest.fixture
def home(place: Path) -> Path:
    return place / "home"


def program(path: Path, text: str = "\x7fELF") -> Path:
    make(path.parent, path.name, text=text, mode=0o755)
    return path


def found(home: Path, *argv: str, path: str = "/nowhere", cwd: str = "/") -> RuntimePaths:
    return runtime_paths(argv, path, cwd, str(home))


def test_a_virtual_environment_brings_its_base_and_the_sources_of_editable_packages(home: Path) -> None:
    base = program(home.parent / "python/bin/python3.11").parent
    make(base.parent, "lib/python3.11/")
    venv = home / "work/venv"
    program(venv / "bin/server", f"#!{venv}/bin/python\n")
    (venv / "bin/python").symlink_to(base / "python3.11")
    make(venv, "pyvenv.cfg", text=f"home = {base}\n")
    make(home / "src", "one/pyproject.toml", "two/pyproject.toml")
    packages = venv / "lib/python3.11/site-packages"
    make(packages, "one.pth", text=f"import sys\n{home}/src/one\n/nowhere/at/all\n")
    make(packages, "two-1.dist-info/direct_url.json", text=f'{{"url": "file://{home}/src/two"}}')
    code = found(home, "server", path=str(venv / "bin")).code
    assert {str(venv), str(base.parent), f"{home}/src/one", f"{home}/src/two"} <= code.keys()
    assert "/nowhere/at/all" not in code


def test_a_global_package_of_node_brings_the_packages_beside_it(home: Path) -> None:
    prefix = home.parent / "node"
    program(prefix / "bin/node")
    program(prefix / "lib/node_modules/server/dist/index.js", "#!/usr/bin/env -S node --flag\n")
    (prefix / "bin/server").symlink_to("../lib/node_modules/server/dist/index.js")
    code = found(home, "server", path=str(prefix / "bin")).code
    assert {f"{prefix}/lib/node_modules", f"{prefix}", f"{prefix}/bin/node"} <= code.keys()


def test_a_script_or_a_module_brings_its_project_and_never_a_home_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    notes = f"{home}/projects/notes"
    make(home, "projects/notes/src/server.py", "projects/notes/pyproject.toml", "lonely.py")
    assert notes in found(home, "python3", f"{notes}/src/server.py").code
    assert notes in found(home, "python3", "src/server.py", cwd=notes).code
    assert notes in found(home, "uv", "run", "--directory", notes, "server").code
    assert notes in found(home, "uv", f"--project={notes}", "run", "server").code
    make(home, "work/notes/__main__.py")
    for module, is_code in (("notes.main", True), ("http.server", False)):
        assert (f"{home}/work" in found(home, "python", "-m", module, cwd=f"{home}/work").code) is is_code
    alone = found(home, "python3", f"{home}/lonely.py").code
    assert f"{home}/lonely.py" in alone and str(home) not in alone


def test_a_tool_that_looks_below_home_is_told_where_it_is(home: Path) -> None:
    program(home / ".nvm/versions/node/v22/bin/node")
    make(home, ".cache/ms-playwright/")
    told = found(home, str(home / ".nvm/versions/node/v22/bin/node"))
    assert told.env == {"NVM_DIR": f"{home}/.nvm", "PLAYWRIGHT_BROWSERS_PATH": f"{home}/.cache/ms-playwright"}
    assert {f"{home}/.nvm", f"{home}/.cache/ms-playwright"} <= told.code.keys()


def test_a_shim_brings_the_tool_that_it_starts_and_what_that_has_installed(home: Path) -> None:
    root, tool = home.parent / "srv/pyenv", home.parent / "srv/cellar/pyenv/libexec"
    shim = f'#!/usr/bin/env bash\nset -e\nexport PYENV_ROOT="{root}"\nexec "{tool}/pyenv" exec "$program" "$@"\n'
    program(root / "shims/python", shim)
    program(root / "versions/3.12/bin/python3.12")
    program(tool / "pyenv", "#!/usr/bin/env bash\n")
    code = found(home, "python", path=str(root / "shims")).code
    assert {str(root), str(tool), str(tool / "pyenv")} <= code.keys()
    assert str(tool.parent) not in code and str(root.parent) not in code
    started = found(home, "/bin/sh", path=f"{root}/shims:/usr/bin").code
    assert {str(root), str(tool / "pyenv")} <= started.keys(), "a server starts it by name"
    program(home / "bin/wrapper", "#!/bin/sh\nexec $HOME/bin/other\nexec '/etc/pass wd'\n")
    assert not any("other" in path or "pass" in path for path in found(home, str(home / "bin/wrapper")).code)


def test_packages_of_a_user_stay_where_python_finds_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    program(home / ".local/bin/server", "#!/usr/bin/python3\n")
    make(home, ".local/lib/python3.11/site-packages/", ".local/share/keyrings/")
    told = found(home, "server", path=str(home / ".local/bin"))
    assert told.env["PYTHONUSERBASE"] == f"{home}/.local" and f"{home}/.local/lib/python3.11" in told.code
    assert f"{home}/.local" not in told.code and not any("keyrings" in path for path in told.code)


def test_the_long_line_of_pip_for_sh_names_an_interpreter_and_interpreters_that_name_each_other_end(home: Path) -> None:
    python = program(home / "deep/bin/python3")
    program(home / "bin/server", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    assert str(python) in found(home, str(home / "bin/server")).code
    one, two = home / "bin/one", home / "bin/two"
    program(one, f"#!{two}\n")
    program(two, f"#!{one}\n")
    assert {str(one), str(two)} <= found(home, str(one)).code.keys()


def test_folders_that_the_gateway_s_user_may_not_look_into_bring_nothing() -> None:
    """As another user's in PATH and HOME. A name that is too long cannot be looked at by root either."""
    closed = "/" + "x" * 300
    for command in ("server", f"{closed}/server", f"python3 {closed}/server.py", f"uv --project {closed}"):
        assert not found(Path(closed), *command.split(), path=f"{closed}/plugins/shims:{closed}/bin").code, command


def test_relative_entries_of_path_bring_nothing_of_the_gateway_s_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = program(home / "gateway/bin/tool").parents[1]
    program(home / "tools/tool")
    monkeypatch.chdir(here)
    for entry in (".", "bin", "", "./bin/.."):
        runtime = found(home, "tool", path=f"{entry}:{home}/tools", cwd=str(here))
        assert list(runtime.code) == [str(home / "tools/tool"), str(home / "tools")], entry
