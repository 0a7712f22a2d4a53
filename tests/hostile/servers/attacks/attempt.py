"""What attacks share: a place of their own, what changes meanwhile, and what they say of themselves."""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Facts = dict[str, Any]


def own_path(name: str) -> str:
    """A path in the session's own folder."""
    return os.path.join(tempfile.gettempdir(), f"{name}-{os.getpid()}")


def any_of(done: Sequence[str], none: str, between: str = ", ") -> str:
    """What was got.

    Raises:
        PermissionError: nothing.
    """
    if not done:
        raise PermissionError(none)
    return between.join(done)


def which_of(acts: Iterable[tuple[str, Callable[[], object]]], none: str) -> str:
    """The names of the acts that the kernel let pass.

    Raises:
        PermissionError: nothing.
    """
    done = []
    for name, act in acts:
        with contextlib.suppress(OSError):
            act()
            done.append(name)
    return any_of(done, none)


@contextlib.contextmanager
def flipping(flip: Callable[[], object]) -> Iterator[None]:
    """A second thread does that, again and again."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                flip()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1)


def results_of(attempts: Iterable[Callable[[], str]]) -> str:
    """What the attempts got that came to something, one after the other.

    Raises:
        OSError: of the last one that failed, if none did.
    """
    found, failed = [], OSError("no address")
    for attempt in attempts:
        try:
            found.append(attempt())
        except OSError as error:
            failed = error
    if not found:
        raise failed
    return "\n".join(found)


def in_threads(count: int, run: Callable[[], None]) -> None:
    """As many as can be had, to their end."""
    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        with contextlib.suppress(RuntimeError):
            thread.start()
    for thread in threads:
        with contextlib.suppress(RuntimeError):
            thread.join(30)
