"""DCGM's statistics of processes, beside our own numbers and never in their books.

- `address`: of an nv-hostengine
- `structs`: the structures of DCGM's interface, the same in 3.x and 4.x
- `library`: finds and loads libdcgm, calls it, and says what an error means and what to do
- `session`: one connection: DCGM inside this process, or an nv-hostengine
- `answers`: what DCGM says of a process, without its blanks
- `collector`: asks in a thread of its own
"""
