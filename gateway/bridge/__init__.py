"""Where the eras differ. One file per idea; each knows its own part of the protocol's two ways."""
