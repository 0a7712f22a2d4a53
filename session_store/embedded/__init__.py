"""Build store backends that one gateway process uses. The author of a backend begins with `backend` and
`records_port`."""
