"""Assembles seccomp filters: decisions by the number of a system call and by its arguments, as classic BPF. Pure.

A filter is a table from system call to decision. The kernel runs it on each system call, but remembers which calls are
allowed whatever their arguments are, and does not run it for those (Linux 5.11).
"""

import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

__all__ = ["ALLOW", "KILL_PROCESS", "NOTIFY", "Decision", "Match", "Return", "assemble", "refuse"]

_LOAD, _AND, _RETURN, _JUMP, _IF_EQUAL, _IF_AT_LEAST = 0x20, 0x54, 0x06, 0x05, 0x15, 0x35
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_LOW_HALF: Final = 0 if sys.byteorder == "little" else 4
_FAR: Final = 255  # a conditional jump goes no farther
_MOST: Final = 4_096  # instructions that the kernel takes

Code: TypeAlias = list[tuple[int, int, int, int]]
"""Instructions: operation, jump if true, jump if false, constant. Jumps are relative, so code can be joined."""


@dataclass(frozen=True, slots=True)
class Return:
    """The end of a filter: what the kernel does with the call."""

    action: int


@dataclass(frozen=True, slots=True)
class Match:
    """A decision by one argument, counted from 0.

    Only the low 32 bits are looked at, so the argument must be one that the kernel itself takes as 32 bits.
    """

    argument: int
    cases: Mapping[int, "Decision"]
    otherwise: "Decision"
    mask: int = 0xFFFF_FFFF


Decision: TypeAlias = Return | Match

ALLOW: Final = Return(0x7FFF_0000)
NOTIFY: Final = Return(0x7FC0_0000)
KILL_PROCESS: Final = Return(0x8000_0000)


def refuse(errno: int) -> Return:
    """The call fails with this error."""
    return Return(0x0005_0000 | errno)


def assemble(arch: int, decisions: Mapping[int, Decision], *, last: int, beyond: Decision) -> bytes:
    """A filter for one machine: an array of `struct sock_filter`. A call that is not in the table is allowed up to the
    number `last`, and beyond it decided by `beyond`. A call of another machine (32 bits) kills the process."""
    by_number = _search(_ranges(decisions, last, beyond))
    code: Code = [(_LOAD, 0, 0, _ARCH), (_IF_EQUAL, 1, 0, arch), _return(KILL_PROCESS), (_LOAD, 0, 0, _NUMBER)]
    code += by_number
    if len(code) > _MOST:
        raise ValueError(f"a filter of {len(code)} instructions is too long")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _ranges(decisions: Mapping[int, Decision], last: int, beyond: Decision) -> list[tuple[int, Decision]]:
    """The first number of each range of calls that are decided alike, in order."""
    edges = sorted({0, last + 1, *decisions, *(number + 1 for number in decisions)})
    decided = [(edge, decisions.get(edge, ALLOW if edge <= last else beyond)) for edge in edges]
    return [decided[0], *(each for before, each in pairwise(decided) if each[1] != before[1])]


def _search(ranges: list[tuple[int, Decision]]) -> Code:
    """Find the range of the number in the accumulator, halving what is left."""
    if len(ranges) == 1:
        return _decide(ranges[0][1])
    middle = len(ranges) // 2
    return _branch(_IF_AT_LEAST, ranges[middle][0], _search(ranges[middle:]), _search(ranges[:middle]))


def _decide(decision: Decision) -> Code:
    if isinstance(decision, Return):
        return [_return(decision)]
    code = _decide(decision.otherwise)
    for value, then in reversed(list(decision.cases.items())):
        code = _branch(_IF_EQUAL, value, _decide(then), code)
    load: Code = [(_LOAD, 0, 0, _ARGUMENTS + 8 * decision.argument + _LOW_HALF)]
    return [*load, *([(_AND, 0, 0, decision.mask)] if decision.mask != 0xFFFF_FFFF else ()), *code]


def _branch(test: int, constant: int, then: Iterable[tuple[int, int, int, int]], otherwise: Code) -> Code:
    """`otherwise` stands first. Both end with a return."""
    if len(otherwise) <= _FAR:
        return [(test, len(otherwise), 0, constant), *otherwise, *then]
    return [(test, 0, 1, constant), (_JUMP, 0, 0, len(otherwise)), *otherwise, *then]


def _return(decision: Return) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, decision.action)
