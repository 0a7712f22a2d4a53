"""Whether this process takes requests: it runs, its peers find it, and it does not drain."""

from gateway.cluster.ownership import Cluster

__all__ = ["ServingState"]


class ServingState:
    """`cluster` is None where the gateway has no peers."""

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        self._is_running = False
        self._is_draining = False

    @property
    def is_running(self) -> bool:
        """True from the end of the start to the beginning of the end."""
        return self._is_running

    @property
    def is_draining(self) -> bool:
        """True if it hands its sessions to other replicas and takes no new ones."""
        return self._is_draining

    def may_serve(self) -> bool:
        """True if new requests are welcome."""
        is_found = self._cluster is None or self._cluster.is_reachable
        return self._is_running and is_found and not self._is_draining

    def start(self) -> None:
        """It runs."""
        self._is_running = True

    def stop(self) -> None:
        """It runs no more."""
        self._is_running = False

    def start_draining(self) -> None:
        """No session is claimed from now on."""
        self._is_draining = True
        if self._cluster is not None:
            self._cluster.start_leaving()

    def stop_draining(self) -> None:
        """Sessions that nobody owns may be served here again."""
        self._is_draining = False
        if self._cluster is not None:
            self._cluster.stop_leaving()
