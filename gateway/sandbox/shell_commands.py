"""The commands within a command: those of a shell's `-c`, and the one behind `env`. Pure: no I/O.

Reads a shell's text only as far as paths and programs are found by it. What a shell would put in place of variables and
patterns is not known here.
"""

import posixpath
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

__all__ = ["commands_of", "placed_commands"]

_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh"})
_WORDS_IN_FRONT = frozenset({"exec", "command", "nohup", "time", "if", "then", "else", "do", "while", "!", "{", "}"})
_ENDS = frozenset(";|&()<>\n")
_MOST_CHARS = 65_536


def commands_of(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """The command itself, and those within it. The target of a redirection is there as a command of its own."""
    return [tuple(argv), *_within(tuple(argv))]


def placed_commands(argv: Sequence[str], folder: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The commands, each with the folder that it runs in: `cd` goes to another one."""
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
    """`-c`, also with other letters, as `-lc`."""
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
    """The words without what stands before a program: variables, options of `env`, keywords of shells."""
    for number, word in enumerate(words):
        if word not in _WORDS_IN_FRONT and not word.startswith("-") and "=" not in word:
            return tuple(words[number:])
    return ()
