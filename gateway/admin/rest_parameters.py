"""Parameters of REST requests, and what an operator is told about a wrong one."""

from collections.abc import Mapping
from typing import Final, TypeVar

from starlette.requests import Request

__all__ = ["SESSION", "Problem", "choice", "number"]

SESSION: Final = ("session", "path", "How its id begins: 4 characters or more, as listed")

T = TypeVar("T")


class Problem(Exception):
    """A request that gets no further (RFC 9457): status, and what the operator reads."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def choice(request: Request, name: str, among: Mapping[str, T], default: T) -> T:
    text = request.query_params.get(name, "")
    if text and text not in among:
        raise Problem(400, f"{name}: must be one of {', '.join(among)}")
    return among[text] if text else default


def number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise Problem(400, f"{name}: must be a number from 1 to {most}")
    return int(text)
