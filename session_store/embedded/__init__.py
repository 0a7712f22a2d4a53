"""What a backend of one gateway process is made of. To write one, begin at `backend` and `records`."""
