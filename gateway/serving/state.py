"""Whether this process takes requests: it runs, its peers find it, and it does not drain."""

from gateway.cluster.ownership import Cluster

__all__ = ["ServingState"]


class ServingState:
    """`cluster` is None where the gateway has no peers."""

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        self.is_running = False  # true from the end of the start to the beginning of the end
        self.is_draining = False  # true while it hands its sessions to other replicas, and takes no new ones

    def may_serve(self) -> bool:
        """True if new requests are welcome."""
        is_found = self._cluster is None or self._cluster.is_reachable
        return self.is_running and is_found and not self.is_draining

    def start(self) -> None:
        """It runs."""
        self.is_running = True

    def stop(self) -> None:
        """It runs no more."""
        self.is_running = False

    def start_draining(self) -> None:
        """No session is claimed from now on."""
        self.is_draining = True
        if self._cluster is not None:
            self._cluster.start_leaving()

    def stop_draining(self) -> None:
        """Sessions that nobody owns may be served here again."""
        self.is_draining = False
        if self._cluster is not None:
            self._cluster.stop_leaving()
