"""Attacks on a gateway that runs: direct, behind nginx and behind HAProxy, with honest clients beside them."""
