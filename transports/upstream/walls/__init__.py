"""Build the walls around a server's process (its sandbox): what it may read, write, run, connect to and use up.

The gateway describes the walls (`wall_specification.py`). The process builds them itself, between fork and exec, so
that all its descendants are behind them too. These modules also run in the fork server, without site packages: they
import small standard modules and each other only.
"""
