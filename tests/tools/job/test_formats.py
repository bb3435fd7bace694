"""A job as one line."""

from __future__ import annotations

from gpuledger.tools.job.formats import LONGEST_SHORT, short
from gpuledger.tools.job.use import DeviceUse, JobUse
from gpuledger.tools.prices import Prices

GIB = 1 << 30


def test_the_short_form() -> None:
    """All totals of a usual job in far less than 200 characters."""
    devices = [
        DeviceUse(end=7200.0, busy_s=5400.0, idle_s=1800.0, unknown_s=0.0, joules=3.6e6, memory_bytes=n * GIB,
                  idle_since=7200.0 - 60 * n)
        for n in (10, 20)
    ]  # fmt: skip
    use = JobUse("211", "prometheus", tuple(devices), has_peak=True)

    assert short(use, Prices(gpu_hour=2.5, currency="EUR")) == (
        "2 GPUs, 4.00 GPU-h, busy 75%, 2.000 kWh, peak memory 20.0 GiB, idle tail 10m00s, cost 10.00 EUR, "
        "if always busy 7.50 EUR\n"
    )


def test_it_is_one_line_of_ascii_and_does_not_break_sacct() -> None:
    """Whatever the currency is, and if nothing is known."""
    use = JobUse("211", "journal", (DeviceUse(end=1.0, joules=1.0),))

    assert short(use, Prices()) == "1 GPU, - GPU-h, busy -, 0.000 kWh, idle tail -\n"
    line = short(use, Prices(kwh=1.0, currency="€|\n" * 100))
    assert len(line) == LONGEST_SHORT + 1
    assert line.isascii()
    assert "|" not in line
    assert line.count("\n") == 1
