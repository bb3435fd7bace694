"""What the driver reports about the health of a GPU, its links and its fabric."""

from __future__ import annotations

import pytest

from tests.driver.conftest import Bench
from tests.fakedriver import Value

GB200: dict[str, Value] = {
    "architecture": "blackwell",
    "power_module_mw": 900_000,
    "power_smoothing": 1,
    "nvlink_version": 5,
    "nvlink_tx_kib": 18_000,
    "nvlink_rx_kib": 36_000,
    "nvlink_errors": 2,
    "c2c_links": 5,
    "c2c_down": 1,
    "c2c_errors": 3,
    "fabric_state": 3,
    "fabric_clique": 7,
}


def test_an_h200(bench: Bench) -> None:
    """As measured: no module, no fabric and no power smoothing, but memory power and all counters of errors."""
    reading = bench.reading()

    assert (reading.power_module_mw, reading.power_memory_mw) == (None, 36_000)
    assert reading.power_smoothing_enabled is None
    assert (reading.fabric_states, reading.fabric_cluster, reading.fabric_failed) == ((), "", None)
    assert (reading.c2c_links, reading.c2c_errors) == ((), ())
    assert reading.memory_unrepairable is False
    assert reading.sram_threshold_exceeded is False
    assert not any(count for _, count in (*reading.sram_errors, *reading.sram_volatile_errors))
    assert not any(asked for _, asked in reading.recovery_actions)
    assert len(reading.recovery_actions) == 7


def test_a_gb200(bench: Bench) -> None:
    """Module, links to the CPU, NVLink 5 and the fabric."""
    bench.scenario.gpus[0].extra = dict(GB200)
    bench.write()

    reading = bench.reading()

    assert (reading.power_module_mw, reading.power_smoothing_enabled) == (900_000, True)
    assert reading.nvlinks == (("up", 18), ("down", 0))
    assert (reading.nvlink_transmit_bytes, reading.nvlink_receive_bytes) == (18_000 * 1024, 36_000 * 1024)
    errors = dict(reading.nvlink_errors)
    assert len(errors) == 11
    assert set(errors.values()) == {18 * 2}
    assert {"receive", "recovery", "recovery_failed", "symbol"} < errors.keys()
    assert reading.c2c_links == (("up", 4), ("down", 1))
    assert reading.c2c_errors == (("crc", 15), ("replay", 15), ("replay_b2b", 15))
    assert reading.fabric_states == (("not_started", 0), ("in_progress", 0), ("completed", 1))
    assert (reading.fabric_cluster, reading.fabric_clique) == ("c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1", 7)
    assert reading.fabric_failed is False


def test_faults(bench: Bench) -> None:
    """Each is read from its own place."""
    bench.scenario.gpus[0].extra = {
        "recovery_action": 4,
        "unrepairable": 1,
        "sram_corrected": 1,
        "sram_parity": 2,
        "sram_secded": 3,
        "sram_l2": 5,
        "sram_exceeded": 1,
    }
    bench.write()

    reading = bench.reading()

    assert [action for action, asked in reading.recovery_actions if asked] == ["drain_and_reset"]
    assert reading.memory_unrepairable is True
    assert reading.sram_errors == (("corrected", 1), ("uncorrected_parity", 2), ("uncorrected_secded", 3))
    assert reading.sram_uncorrected[0] == ("l2", 5)
    assert reading.sram_threshold_exceeded is True


@pytest.mark.parametrize(
    ("health", "conditions"),
    [
        (0, {}),
        (0b10, {"degraded_bandwidth": 0}),
        (0b01_10_10_01, {"degraded_bandwidth": 1, "route_recovery": 0, "route_unhealthy": 0,
                         "access_timeout_recovery": 1}),
        (1 << 8, {"incorrect_configuration": 0}),
        (4 << 8, {"incorrect_configuration": 1}),
    ],
)  # fmt: skip
def test_the_health_of_the_fabric(bench: Bench, health: int, conditions: dict[str, int]) -> None:
    """Two bits for each condition, and four for the configuration; what the fabric does not report is absent."""
    bench.scenario.gpus[0].extra = {"fabric_state": 3, "fabric_health": health}
    bench.write()

    assert dict(bench.reading().fabric_conditions) == conditions


@pytest.mark.parametrize(("state", "status", "failed"), [(2, 0, False), (2, 16, False), (3, 0, False), (3, 16, True)])
def test_the_registration_with_the_fabric(bench: Bench, state: int, status: int, failed: bool) -> None:
    """Cluster and clique are known, and an error counts, once it has ended."""
    bench.scenario.gpus[0].extra = {"fabric_state": state, "fabric_status": status}
    bench.write()

    reading = bench.reading()

    assert reading.fabric_failed is failed
    assert (reading.fabric_clique is not None) == bool(reading.fabric_cluster) == (state == 3)


def test_another_meaning_of_the_same_number(bench: Bench) -> None:
    """Driver 580.65 counts time where others have power smoothing: the type of the value tells them apart."""
    bench.scenario.driver = "580.65.06"
    bench.scenario.gpus[0].extra = {"power_smoothing": 1}
    bench.write()

    assert bench.reading().power_smoothing_enabled is None


def test_power_smoothing_is_asked_for_once(bench: Bench) -> None:
    """An answer takes 150 us, so that a GPU without it is not asked again until it reopens."""
    assert bench.reading().power_smoothing_enabled is None
    bench.scenario.gpus[0].extra = {"power_smoothing": 1}
    bench.write()

    assert bench.reading(ticks=11).power_smoothing_enabled is None


def test_an_older_driver(bench: Bench) -> None:
    """A driver without the calls: nothing is there, nothing is 0, and nothing has failed."""
    calls = ("GpuFabricInfoV", "SramEccErrorStatus", "UnrepairableMemoryFlag_v1")
    bench.write(*(f"missing nvmlDeviceGet{call}" for call in calls), "error nvmlDeviceGetFieldValues code=3")

    reading = bench.reading()

    assert reading.up
    assert (reading.memory_unrepairable, reading.sram_threshold_exceeded, reading.power_memory_mw) == (None, None, None)
    assert (reading.sram_errors, reading.recovery_actions, reading.fabric_states) == ((), (), ())
