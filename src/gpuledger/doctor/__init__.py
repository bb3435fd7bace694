"""What this host needs, checked one thing at a time: each check says ok, warning or problem, and how to fix it.

Most checks look at a tick that was read as `serve` reads it, so that they see what `serve` would see.

- `finding`: what a check says; `bounded`: checks that may hang
- `driver`, `gpus`, `memory`: the driver, each GPU, and the process list against the memory in use
- `host`, `clock`: PID namespace, rights in /proc, cgroups; the time
- `names`, `dcgm`: everybody who is asked for names or numbers
- `port`, `journal`, `upstream`: what `serve` opens
- `redact`, `bundle`: the archive for a bug report
"""
