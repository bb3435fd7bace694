"""What the providers have in common that call a gRPC server."""

from __future__ import annotations

from gpuledger.net.grpc import UnixServer
from gpuledger.owners.names import Names
from gpuledger.owners.providers.provider import Provider
from gpuledger.runtime.deadline import Deadline


class GrpcProvider(Provider):
    """A provider that calls a gRPC server on a unix socket, which needs root."""

    interval_s = 15.0
    server = ""
    """The server in messages."""
    start = ""
    """The command that starts it."""

    def __init__(self, socket_path: str, timeout_s: float = 2.0) -> None:
        self._server = UnixServer(socket_path, self.server, self.start)
        self._timeout_s = timeout_s

    def fetch(self) -> Names:
        """All names; raises ProviderError."""
        try:
            return self.read(Deadline(self._timeout_s))
        except ValueError as error:
            raise self._server.format_error(f"sent an answer that cannot be read: {error}") from None

    def read(self, deadline: Deadline) -> Names:
        """All names; raises ProviderError, and ValueError for a malformed answer."""
        raise NotImplementedError
