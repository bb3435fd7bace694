"""Everything that reads what others wrote, given damaged and swollen versions of the real thing.

The tests of each module ask for any input with hypothesis; here inputs start from real ones and grow large, which finds
what takes too long and what takes too much memory. `python -m tests.fuzz --minutes 10` goes on with new inputs.
"""
