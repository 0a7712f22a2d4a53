"""What runs as hostile servers, and beside them. Standard library only: the files are copied to where they run."""
