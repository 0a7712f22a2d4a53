"""Stdin, stdout and stderr of a process that was started without one of them (`<&-`)."""

import os
import sys

__all__ = ["open_closed"]


def open_closed() -> None:
    """Open /dev/null in the place of each standard stream that is closed, which Python has as None.

    Otherwise the next file that is opened gets the number of the stream, a database for instance, and what is meant for
    stdout is written into it. Called before anything else is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free number is the one that is missing
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
