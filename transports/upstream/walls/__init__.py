"""Build the walls around a server's process (its sandbox): what it may read, write, run, reach and use up.

The gateway describes the walls (`spec.py`). The process itself builds them, between fork and exec, so that everything
below it is behind them too. These modules also run in the fork server, without site packages: they import small
standard modules and each other only.
"""
