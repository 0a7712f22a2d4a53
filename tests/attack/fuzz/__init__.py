"""Fuzzing of what strangers reach first: where a request ends, and what a message is.

`python -m tests.attack.fuzz --minutes 10` goes on for so long; `make fuzz` for one minute.
"""
