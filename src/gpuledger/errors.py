"""Every error gpuledger raises on purpose.

```
GpuledgerError
├── UsageError            the user gave something wrong: exit code 2, one line
│   ├── ConfigError       a flag, variable, key or value
│   ├── RecordingError    a recording that cannot be read or written
│   └── ListenError       an address that cannot be listened on
├── JournalError          a journal that cannot be read or written; the books do without it
└── DriverError           the driver or its library cannot be used now; tried again later
```

Each message is one line that names the thing, what is wrong with it and what would be right.
"""


class GpuledgerError(Exception):
    """The root of the tree."""


class UsageError(GpuledgerError):
    """What the user gave cannot work; the command ends with exit code 2."""


class ConfigError(UsageError):
    """A flag, an environment variable, a key or a value of the configuration is wrong."""


class RecordingError(UsageError):
    """A recording is missing, damaged, or of a version this program does not know."""


class ListenError(UsageError):
    """A listen address is malformed, taken or not of this host."""


class JournalError(GpuledgerError):
    """A journal is damaged, too large, or not of this boot or version."""


class DriverError(GpuledgerError):
    """The NVIDIA driver or its library cannot be used now."""
