"""`gpuledger doctor`: checks of this host, and the problems of a tick that was read as `serve` reads it.

- `finding`: one line of the report
- `checks`: pure checks of a tick and of the permissions on this host
- `preflight`: checks that open something: ports, the journal, the dcgm-exporter
- `bundle`: the archive for a bug report, without names and secrets
"""
