"""Build store backends that one gateway process uses. To write a backend, begin with `backend` and `records`."""
