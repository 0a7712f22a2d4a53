"""Results that are there at once, or come later: one body of code for both, without a coroutine where nothing waits.

A function that returns `Soon[T]` is a plain function. It does its work, and returns the result or a coroutine for the
rest. Its caller has to await the coroutine. What it raises may come from the function or from the coroutine.
"""

from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeGuard, TypeVar

__all__ = ["Soon", "arrived", "if_there", "is_there", "then"]

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")

Soon: TypeAlias = T | Coroutine[Any, Any, T]
"""The result, or a coroutine that returns it. A `Soon[None]` that is not None is the coroutine."""


def is_there(result: Soon[T]) -> TypeGuard[T]:
    """Whether this is the result, not a coroutine."""
    return type(result) is not CoroutineType


def if_there(result: Soon[T]) -> T | None:
    """The result if it is there. Otherwise None, and the rest is not done."""
    if is_there(result):
        return result
    _close(result)  # type: ignore[arg-type]  # not the result, so a coroutine
    return None


def _close(coroutine: "CoroutineType[Any, Any, Any]") -> None:
    """Close a coroutine that has not begun, and those that it would have awaited: nobody else can reach them."""
    frame = coroutine.cr_frame
    awaited = frame.f_locals["result"] if frame is not None and coroutine.cr_code in _WAIT_FOR_RESULT else None
    coroutine.close()
    if type(awaited) is CoroutineType:
        _close(awaited)


async def arrived(result: Soon[T]) -> T:
    """The result, which is awaited if need be."""
    return result if is_there(result) else await result  # type: ignore[misc]  # not the result, so a coroutine


def then(result: Soon[T], go_on: Callable[Concatenate[T, P], Soon[U]], /, *args: P.args, **kwargs: P.kwargs) -> Soon[U]:
    """What `go_on` returns for the result: at once if nothing has to be awaited."""
    return go_on(result, *args, **kwargs) if is_there(result) else _later(result, go_on, *args, **kwargs)


async def _later(
    result: Soon[T], go_on: Callable[Concatenate[T, P], Soon[U]], /, *args: P.args, **kwargs: P.kwargs
) -> U:
    return await arrived(go_on(await arrived(result), *args, **kwargs))


_WAIT_FOR_RESULT: Final = (arrived.__code__, _later.__code__)
