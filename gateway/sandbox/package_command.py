"""Parse command lines: the commands within a shell's `-c` and behind `env`, and those that start a published package by
npx or uvx. Pure: no I/O.

Each option of npx and uvx must be known here. A command with another option is run unchanged: npx or uvx then fetch the
package anew for each session, into the session's own folder.
"""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageCommand:
    """A command of npx or uvx that starts the program of a package."""

    kind: Literal["npm", "uv"]
    head: tuple[str, ...]
    """The words of the command up to the name of the package or program, which is the last of them."""
    args: tuple[str, ...]
    """The arguments of the program."""
    package: str
    """The package with its version, as in the command; several ones are separated by spaces."""
    program: str = ""
    """The program's name. Empty for npm, which reads it from the package."""
    within: tuple[str, ...] = ()
    """The words that start Python with the package installed. Empty for npm."""
    is_pinned: bool
    """True if the command names an exact version of each package."""


def parse(argv: Sequence[str]) -> PackageCommand | None:
    """Return the parts of a command of npx (`npm exec`) or uvx (`uv tool run`). Return None for any other command, and
    if this module does not know an option or the form of a package in the command."""
    if not argv:
        return None
    first, rest = argv[0], tuple(argv[1:])
    if "/" in first and not first.startswith("/"):  # a program of the working directory
        return None
    match PurePosixPath(first).name:
        case "npx":
            return _npx((first,), rest)
        case "npm" if rest[:1] in (("exec",), ("x",)) and "--" in rest:
            return _npx((first, rest[0]), rest[1:])
        case "uvx":
            return _uvx((first,), rest)
        case "uv" if rest[:2] == ("tool", "run"):
            return _uvx((first, *rest[:2]), rest[2:])
    return None


def _options(
    words: tuple[str, ...], flags: frozenset[str], valued: dict[str, str]
) -> tuple[dict[str, list[str]], int] | None:
    """Split the options from the rest of a command. Return the values of the options by canonical name, and the number
    of words that belong to options. Return None for an unknown option, and if no word follows the options.

    `flags` are the options without a value. `valued` maps each option with a value to its canonical name.
    """
    values: dict[str, list[str]] = {}
    rest = iter(enumerate(words))
    for place, word in rest:
        if word == "--" or not word.startswith("-"):
            length = place + 1 if word == "--" else place
            return (values, length) if length < len(words) else None
        if word in flags:
            continue
        name, equals, value = word.partition("=")
        if name not in valued:
            return None
        if not equals:
            _, value = next(rest, (0, ""))
        values.setdefault(valued[name], []).append(value)
    return None


# -- npm

_NPX_FLAGS: Final = frozenset({"--prefer-offline", "--prefer-online", "--quiet", "--silent", "--yes", "-q", "-s", "-y"})
_NPX_VALUED: Final = {"--package": "package", "-p": "package"}
_NPM_PACKAGE: Final = re.compile(r"(?P<name>(@[a-z0-9~-][\w.~-]*/)?[a-zA-Z0-9~-][\w.~-]*)(@(?P<version>[^/:@]+))?")
"""Matches a package in a registry, optionally with a version, range or tag. Does not match a folder, archive or
repository."""
_NPM_EXACT: Final = re.compile(r"\d+\.\d+\.\d+(-[\w.-]+)?(\+[\w.-]+)?")


def _npx(launcher: tuple[str, ...], words: tuple[str, ...]) -> PackageCommand | None:
    parsed = _options(words, _NPX_FLAGS, _NPX_VALUED)
    if parsed is None:
        return None
    options, length = parsed
    packages = options.get("package") or [words[length]]
    found = [_NPM_PACKAGE.fullmatch(package) for package in packages]
    if not all(found):
        return None
    return PackageCommand(
        kind="npm",
        head=(*launcher, *words[: length + 1]),
        args=words[length + 1 :],
        package=" ".join(packages),
        is_pinned=all(one and _NPM_EXACT.fullmatch(one["version"] or "") for one in found),
    )


# -- uv

_UVX_FLAGS: Final = frozenset({"--native-tls", "--no-config", "--no-index", "--quiet", "--system-certs", "-q"})
_UVX_VALUED: Final = {
    "--default-index": "index",
    "--exclude-newer": "exclude-newer",
    "--extra-index-url": "index",
    "--find-links": "index",
    "--from": "from",
    "--index": "index",
    "--index-strategy": "index-strategy",
    "--index-url": "index",
    "--prerelease": "prerelease",
    "--python": "python",
    "--resolution": "resolution",
    "--with": "with",
    "-f": "index",
    "-i": "index",
    "-p": "python",
    "-w": "with",
}
_PYPI_PACKAGE: Final = re.compile(
    r"(?P<name>[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)(\[[\w., -]*\])?(?P<version>(@|===?|[<>~!]=?)[\w.*+!,<>=~ -]+)?"
)
"""Matches a package in an index, optionally with extras and versions. Does not match a path, URL or repository."""
_PYPI_EXACT: Final = re.compile(r"(@|===?)v?\d[\w.+!]*")


def _uvx(launcher: tuple[str, ...], words: tuple[str, ...]) -> PackageCommand | None:
    parsed = _options(words, _UVX_FLAGS, _UVX_VALUED)
    if parsed is None:
        return None
    options, length = parsed
    given, target = words[:length], words[length]
    sources, beside = options.get("from"), options.get("with", [])
    source = sources[-1] if sources else target
    main = _PYPI_PACKAGE.fullmatch(source)
    packages = [main, *(_PYPI_PACKAGE.fullmatch(one) for value in beside for one in value.split(","))]
    is_here = any(map(_is_local, options.get("index", ()))) or any(map(_is_relative, options.get("python", ())))
    if main is None or not all(packages) or is_here or "--" in given:
        return None
    program = target if sources else main["name"]
    if re.fullmatch(r"python[\d.]*|pythonw", program) or "/" in program:
        return None
    own = given if sources else (*given, "--from", target)
    return PackageCommand(
        kind="uv",
        head=(*launcher, *given, target),
        args=words[length + 1 :],
        package=" ".join([source, *beside]),
        program=program,
        within=(*launcher, *own, "python"),
        is_pinned=all(one and _PYPI_EXACT.fullmatch(one["version"] or "") for one in packages),
    )


def _is_local(index: str) -> bool:
    """Return whether an index of packages is a folder or file, which sessions might write, and not at a URL."""
    return not re.match(r"([\w.-]+=)?https?://", index)


def _is_relative(python: str) -> bool:
    return python.startswith(".") or ("/" in python and not python.startswith("/"))


_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh"})
_WORDS_IN_FRONT = frozenset({"exec", "command", "nohup", "time", "if", "then", "else", "do", "while", "!", "{", "}"})
_ENDS = frozenset(";|&()<>\n")
_MOST_CHARS = 65_536


def commands_of(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the command `argv` itself, and the commands within it (`sh -c`, `env`). The target of a redirection counts
    as a command."""
    return [tuple(argv), *_within(tuple(argv))]


def placed_commands(argv: Sequence[str], folder: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the command `argv` and those within it (`commands_of`), each with the folder in which it runs. The first
    one runs in `folder`; a `cd` changes the folder of later commands."""
    for command in commands_of(argv):
        yield command, folder
        if command[:1] == ("cd",) and len(command) == 2:
            folder = posixpath.normpath(posixpath.join(folder, command[1]))


def _within(argv: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not argv:
        return
    name = PurePosixPath(argv[0]).name
    if name == "env":
        inner = _without_front(argv[1:])
        if inner:
            yield from commands_of(inner)
    elif name in _SHELLS:
        text = next((after for word, after in pairwise(argv[1:]) if _is_command_option(word)), "")
        for command in _split(text):
            yield from commands_of(command)


def _is_command_option(word: str) -> bool:
    """Return whether a shell's option is `-c`, alone or after other letters, as in `-lc`."""
    return word.startswith("-") and not word.startswith("--") and word.endswith("c")


def _split(text: str) -> Iterator[tuple[str, ...]]:
    reader = shlex.shlex(text[:_MOST_CHARS].replace("\n", " ; "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    try:
        for token in reader:
            if set(token) <= _ENDS:
                yield from filter(None, (_without_front(words),))
                words = []
            else:
                words.append(token)
    except ValueError:  # a quotation without an end: the words before it are known
        pass
    yield from filter(None, (_without_front(words),))


def _without_front(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words from the program on, without the variables, options of `env` and shell keywords before it."""
    for number, word in enumerate(words):
        if word not in _WORDS_IN_FRONT and not word.startswith("-") and "=" not in word:
            return tuple(words[number:])
    return ()
