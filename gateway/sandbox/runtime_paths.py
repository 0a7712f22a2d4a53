"""Find the files that a command needs to run: its program, the interpreter and libraries that it uses, and its own
code.

Only reads the file system. Operators grant other needs with `read`, such as what a shell script runs, or plug-ins of a
program. A file that the gateway's user may not access counts as missing. So paths are checked with `os.path`, because
methods of `Path` raise PermissionError.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gateway.sandbox.package_command import placed_commands
from gateway.sandbox.system_paths import is_broad, real

_MOST_STEPS: Final = 256
"""The most steps of one search. A script names its interpreter, which may itself be a script, and so on."""
_HEAD_BYTES: Final = 4_096
_EXEC: Final = "'''exec' "
_EXEC_BY_PATH: Final = re.compile(r"""\s*exec\s+(["']?)(/[^"'\s$`]+)\1(?:\s|$)""")
"""Matches the line by which a wrapper in sh, such as those of pyenv, starts another program."""

_TOOL_ROOTS: Final[Mapping[str, str]] = {
    ".nvm": "NVM_DIR",
    ".pyenv": "PYENV_ROOT",
    ".rbenv": "RBENV_ROOT",
    ".nodenv": "NODENV_ROOT",
    ".volta": "VOLTA_HOME",
    ".asdf": "ASDF_DATA_DIR",
    ".bun": "BUN_INSTALL",
    ".deno": "DENO_INSTALL",
    ".rustup": "RUSTUP_HOME",
    ".sdkman": "SDKMAN_DIR",
    ".local/share/mise": "MISE_DATA_DIR",
    ".local/share/fnm": "FNM_DIR",
    ".local/share/uv/python": "UV_PYTHON_INSTALL_DIR",
    ".local/share/uv/tools": "UV_TOOL_DIR",
    ".local/share/pipx": "PIPX_HOME",
    ".local/share/pnpm": "PNPM_HOME",
}
"""Folders in which tools install programs for a user, each with the variable that names it. Without the variable, a
tool looks below HOME, which is another folder in a sandbox."""

BROWSERS: Final[Mapping[str, str]] = {
    ".cache/ms-playwright": "PLAYWRIGHT_BROWSERS_PATH",
    ".cache/puppeteer": "PUPPETEER_CACHE_DIR",
}
"""Folders of browsers below HOME, each with the variable that names it."""
_PROJECT_FILES: Final = ("pyproject.toml", "setup.py", "package.json", "deno.json", "Cargo.toml", "go.mod", ".git")
_INTERPRETERS: Final = re.compile(r"(python|pypy|node|bun|deno|tsx|ts-node|ruby|perl|php|bash|sh|zsh|dash|java)[\d.]*")
_RUNNERS: Final = frozenset(
    {"uv", "poetry", "pdm", "hatch", "rye", "npm", "npx", "pnpm", "yarn", "bun", "deno", "make"}
)
_FOLDER_OPTIONS: Final = frozenset({"--directory", "--project", "--prefix", "--cwd", "--dir", "-C"})


@dataclass(slots=True)
class RuntimePaths:
    """The files that a command needs, and the variables by which its programs find them."""

    code: dict[str, None] = field(default_factory=dict)
    """An ordered set of files and folders to read and execute."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables with the folders that programs would look for in HOME, which is another folder in a sandbox."""

    def add(self, path: Path | str) -> None:
        """Add a file or folder to `code`, unless it is too broad (`is_broad`)."""
        found = real(str(path))
        if os.path.exists(found) and not is_broad(found):
            self.code[found] = None


def runtime_paths(argv: Sequence[str], path: str, cwd: str, home: str) -> RuntimePaths:
    """Return the files that the command `argv` needs. `path` is the command's PATH, and `cwd` the folder in which it
    runs. `home` is the home folder in which tools were installed."""
    # A relative entry means a folder of wherever the server is by then, never the one that the gateway was started in.
    path = os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep)))
    found = RuntimePaths()
    search = _Search(found, path, home)
    for command, folder in placed_commands(argv, cwd):
        if program := _which(command[0], path, folder):
            search.program(program)
        for code in _code_of(command, folder):
            search.code(code)
    for folder in filter(None, path.split(os.pathsep)):  # the programs that servers start: git, node
        found.add(folder)
        search.folder(folder)
    for folder, variable in BROWSERS.items():
        if os.path.isdir(place := Path(home, folder)):
            found.add(place)
            found.env[variable] = str(place)
    return found


def _which(command: str, path: str, cwd: str) -> str:
    if "/" in command:
        absolute = os.path.join(cwd, command)
        return absolute if os.path.exists(absolute) else ""
    return shutil.which(command, path=path) or ""


class _Search:
    """Collects in `found` the files that programs and scripts need. `path` is the PATH of the programs and scripts.
    `home` is the home folder in which tools were installed."""

    def __init__(self, found: RuntimePaths, path: str, home: str) -> None:
        self._found = found
        self._path = path
        self._home = home
        self._inside_home = os.path.join(os.path.normpath(home), "")
        self._seen: set[str] = set()

    def program(self, path: str) -> None:
        """Add a program, the files around it, and its interpreters. If the program's path is a symlink, add the files
        around the symlink and around its target, because programs look for files around both."""
        if not self._is_new(path):
            return
        for name in dict.fromkeys((os.path.abspath(path), real(path))):
            self._found.add(name)
            self._around(Path(name))
            self._installed(name)
        for interpreter in _interpreters(path, self._path):
            self.program(interpreter)

    def _is_new(self, step: str) -> bool:
        """Record a step of this search. Return True if the step is new and the search has made fewer than `_MOST_STEPS`
        steps: scripts and packages may name each other in a circle."""
        if step in self._seen or len(self._seen) >= _MOST_STEPS:
            return False
        self._seen.add(step)
        return True

    def _around(self, program: Path) -> None:
        modules = [parent for parent in program.parents if parent.name == "node_modules"]
        if modules:
            self._found.add(modules[-1])
        elif program.parent.name in ("bin", "sbin"):
            self._prefix(program.parent.parent)
        elif program.parent.name in ("shims", "libexec"):  # of pyenv and its kin, wherever they are installed
            self._found.add(program.parent)
            self._versions(program.parent.parent)
        elif (root := _project(program)) is not None:
            self._found.add(root)

    def folder(self, path: str) -> None:
        """Add the files of the tool to which a folder in PATH belongs. If the folder is named `shims`, as that of
        pyenv, also add the versions that the tool has installed, and the programs that the scripts in `shims` start."""
        self._installed(path)
        if (folder := Path(path)).name == "shims":
            self._versions(folder.parent)
            with contextlib.suppress(OSError):  # all of them are alike
                for shim in islice((one for one in folder.iterdir() if os.path.isfile(one)), 1):
                    for tool in _interpreters(str(shim), self._path):
                        self.program(tool)

    def _versions(self, root: Path) -> None:
        if any(os.path.isdir(root / name) for name in ("versions", "installs")):
            self._found.add(root)

    def _prefix(self, prefix: Path) -> None:
        """Add an installation with folders such as `bin` and `lib`. If it is as broad as a home folder, add only its
        libraries."""
        if not self._is_new(str(prefix)):
            return
        if os.path.isfile(prefix / "pyvenv.cfg"):
            self._venv(prefix)
        libraries = [*prefix.glob("lib*/python3*"), *prefix.glob("lib/node_modules")]
        if not is_broad(real(str(prefix))) and (libraries or os.path.isfile(prefix / "pyvenv.cfg")):
            self._found.add(prefix)
        # `lib64` is often a link to `lib`.
        for library in {real(str(library)): library for library in libraries}.values():
            self._found.add(library)
            if library.name.startswith("python3"):
                self._packages(library / "site-packages")
                if prefix == Path(self._home, ".local"):
                    self._found.env["PYTHONUSERBASE"] = str(prefix)

    def _venv(self, prefix: Path) -> None:
        self._found.add(prefix)
        with contextlib.suppress(OSError, ValueError):
            for line in (prefix / "pyvenv.cfg").read_text("utf-8").splitlines():
                name, _, value = map(str.strip, line.partition("="))
                if name == "home":
                    self.program(str(next(Path(value).glob("python3*"), Path(value, "python3"))))

    def _packages(self, folder: Path) -> None:
        """Add the source folders of packages in `folder` that are installed only as links to their source (PEP 660,
        PEP 610, and lines in `.pth` files)."""
        with contextlib.suppress(OSError, ValueError):
            names = os.listdir(folder)
            for name in names:
                if name.endswith(".pth"):
                    for line in Path(folder, name).read_text("utf-8", "replace").splitlines():
                        if line.startswith("/"):
                            self.code(line.strip())
            for name in names:
                if name.endswith(".dist-info") and os.path.exists(file := f"{folder}/{name}/direct_url.json"):
                    url = urlsplit(str(json.loads(Path(file).read_text("utf-8")).get("url", "")))
                    if url.scheme == "file":
                        self.code(unquote(url.path))

    def _installed(self, path: str) -> None:
        """If the path is in a folder of a tool below `home`, add this folder, and the variable that names it."""
        if not os.path.normpath(path).startswith(self._inside_home):
            return
        for folder, variable in _TOOL_ROOTS.items():
            root = Path(self._home, folder)
            if Path(path).is_relative_to(root):
                self._found.add(root)
                self._found.env[variable] = str(root)

    def code(self, path: str) -> None:
        """Add a script, or a folder of code, and the project to which it belongs."""
        file = Path(path)
        if not os.path.exists(file) or not self._is_new(f"code {path}"):
            return
        self._found.add(file)
        modules = [parent for parent in Path(real(path)).parents if parent.name == "node_modules"]
        root = modules[-1] if modules else _project(file)
        if root is not None:
            self._found.add(root)
        elif os.path.isfile(file):  # Python and Node load what lies beside a script
            self._found.add(file.parent)
        for folder in {root or file, file}:
            if os.path.isfile(Path(folder) / ".venv/pyvenv.cfg"):
                self._prefix(Path(folder) / ".venv")


def _project(path: Path) -> Path | None:
    """Return the project to which a file or folder belongs: the git repository around it, otherwise the nearest folder
    with a project file. Return None if there is none; broad folders, such as a home folder, end the search."""
    nearest = None
    for folder in (path, *path.parents):
        if is_broad(real(str(folder))):
            break
        if any(os.path.exists(folder / name) for name in _PROJECT_FILES):
            nearest = nearest or folder
            if os.path.exists(folder / ".git"):
                return folder
    return nearest


def _interpreters(path: str, search: str) -> Iterator[str]:
    """Yield the paths of the interpreters that the script at `path` names in its first lines; none if it is no script.
    `search` is the PATH to find them. The lines behind the first count, too: if the path of a Python is too long for
    `#!`, pip and uv write it in a second line, for `sh`."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return
    if not head.startswith(b"#!"):
        return
    lines = head.decode("utf-8", "replace").splitlines()
    words = _words(lines[0][2:])
    if words and Path(words[0]).name == "env":
        yield words[0]
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if words and (found := _which(words[0], search, "/")):
        yield found
    if len(lines) > 1 and lines[1].startswith(_EXEC) and (hidden := _words(lines[1].removeprefix(_EXEC))):
        yield hidden[0]
    for line in lines[1:]:
        if (started := _EXEC_BY_PATH.match(line)) is not None:
            yield started[2]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _code_of(argv: Sequence[str], cwd: str) -> Iterator[str]:
    """Yield the paths of the scripts and folders of code that the command `argv` names, if it is one of an interpreter
    or of a runner such as uv or npm. `cwd` is the folder in which it runs."""
    name, words = Path(argv[0]).name, argv[1:]
    if name == "cd" and len(words) == 1:
        yield os.path.join(cwd, words[0])
    if name in _RUNNERS:
        for option, value in pairwise(words):
            if option in _FOLDER_OPTIONS:
                yield os.path.join(cwd, value)
        for word in words:
            option, _, value = word.partition("=")
            if value and option in _FOLDER_OPTIONS:
                yield os.path.join(cwd, value)
    if name in _RUNNERS or _INTERPRETERS.fullmatch(name):
        module = module_of(words)
        if module and any(os.path.exists(os.path.join(cwd, one)) for one in (module, f"{module}.py")):
            yield cwd
        script = next((word for word in words if _is_script(os.path.join(cwd, word))), "")
        if script and not module:
            yield os.path.join(cwd, script)


def module_of(words: Sequence[str]) -> str:
    """Return the top-level module that the option `-m` among the words of a command names; empty if there is no such
    option."""
    return next((value.partition(".")[0] for option, value in pairwise(words) if option == "-m"), "")


def _is_script(path: str) -> bool:
    """Return whether an interpreter can run the path: a file, or a folder with a program in it."""
    if os.path.isdir(path):
        return any(os.path.isfile(os.path.join(path, name)) for name in ("__main__.py", "package.json"))
    return os.path.isfile(path) and not path.endswith((".env", ".db", ".sqlite", ".sqlite3"))
