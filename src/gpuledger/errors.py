"""Every exception that gpuledger raises deliberately.

```
GpuledgerError
├── UsageError            invalid input from the user: one line on stderr, exit code 2
│   ├── ConfigError       a flag, variable, key or value
│   ├── RecordingError    a recording that cannot be read or written
│   └── ListenError       an address that cannot be listened on
├── JournalError          a journal or fingerprints that cannot be read or written; the books continue without
├── SnapshotError         JSON that is not a snapshot, or of an unsupported version
├── DriverGoneError       the driver was unloaded or replaced; retried later
├── GpuLostError          one GPU fell off the bus or needs a reset; retried later
├── DcgmError             DCGM is missing or a call to it failed; retried later
├── HttpError             no usable HTTP response; kinds: size, half, http, timeout, tls
│   └── ConnectError      no connection; kinds: permission, missing, refused, unreachable
├── AnswerError           a malformed answer; the caller adds the name of the server
├── ProviderError         a name provider gives no answer; its last names are used for five minutes
├── ReviewError           the API server did not review a token; its user sees nothing
├── UpstreamError         no usable metrics from the dcgm-exporter; `kind` is the label `reason`
├── PrometheusError       no usable answer from Prometheus; `kind` is the label `reason`
└── LostError             `top` has no new snapshot
```

Each error has a `Problem`: what failed, how to fix it, and a `kind` that code can compare.
"""

from gpuledger.model.problem import Problem


class GpuledgerError(Exception):
    """Base class. `str(error)` is one line: what failed, and after a semicolon how to fix it."""

    def __init__(self, what: str, fix: str = "", kind: str = "") -> None:
        self.problem = Problem(what, fix, kind)
        super().__init__(str(self.problem))

    @property
    def kind(self) -> str:
        """The stable word for this kind of error; see `Problem.kind`."""
        return self.problem.kind


class UsageError(GpuledgerError):
    """Invalid input from the user; the command exits with code 2."""


class ConfigError(UsageError):
    """An invalid flag, environment variable, key or value."""


class RecordingError(UsageError):
    """A recording is missing, damaged, or of an unsupported version."""


class ListenError(UsageError):
    """A listen address is malformed, in use, or not an address of this host."""


class JournalError(GpuledgerError):
    """A journal, or the file of fingerprints, is damaged, too large, or from another boot or version."""


class SnapshotError(GpuledgerError):
    """JSON is not a snapshot of gpuledger, or of an unsupported version."""


class DriverGoneError(GpuledgerError):
    """The driver was unloaded or replaced; it has to be opened again."""


class GpuLostError(GpuledgerError):
    """One GPU fell off the bus, needs a reset, or answers no call."""


class DcgmError(GpuledgerError):
    """DCGM is missing, or a call to it failed."""


class HttpError(GpuledgerError):
    """A server sent no usable HTTP response.

    Kinds: `size` (too large), `half` (the connection ended early), `http` (malformed), `timeout`, `tls`.
    """


class ConnectError(HttpError):
    """There is no connection to a server. Kinds: `permission`, `missing`, `refused`, `unreachable`."""


class AnswerError(GpuledgerError):
    """An answer is malformed. The message is a predicate without a subject: the caller adds the server's name."""


class ProviderError(GpuledgerError):
    """A name provider gives no usable answer.

    Kinds: those of HttpError and ConnectError, `auth` (credentials are refused), `format` (a malformed answer).
    """


class ReviewError(GpuledgerError):
    """A token or a right could not be reviewed. The message is shown to the client."""


class UpstreamError(GpuledgerError):
    """The dcgm-exporter gives no usable metrics; `kind` is a value of the label `reason`."""


class PrometheusError(GpuledgerError):
    """Prometheus gives no usable answer; `kind` is a value of the label `reason`."""


class LostError(GpuledgerError):
    """`top` gets no snapshot."""
