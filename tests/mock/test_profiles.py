"""`gpuledger serve` on NVIDIA's mock of NVML: every profile, and the failures that it can inject.

MOCK_NVML is the directory with `libnvidia-ml.so.1` and `configs/`. MOCK=write writes the table of docs/models.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.running import Running, serving, surroundings

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
PROFILES = ("t4", "l40s", "a100", "h100", "b200", "gb200", "gb300")
STUCK_S = 30
"""Much more than the seconds after which a counter is stuck."""
COLUMNS: tuple[tuple[str, str], ...] = (
    ("activity (GPM)", "gpu_sm_active_ratio"),
    ("memory temperature", 'gpu_temperature_celsius{.*sensor="memory"'),
    ("SRAM ECC", "gpu_sram_ecc_errors_total"),
    ("remapped rows", "gpu_remapped_rows_total"),
    ("NVLinks up", 'gpu_nvlink_links{.*state="up"} [1-9]'),
    ("NVLink errors", "gpu_nvlink_errors_total"),
    ("fabric", "gpu_fabric_state"),
    ("C2C links", "gpu_c2c_links"),
    ("recovery action", "gpu_recovery_action_required"),
    ("unrepairable memory", "gpu_memory_unrepairable"),
    ("module power", "gpu_module_power_watts"),
    ("memory power", "gpu_memory_power_watts"),
    ("power smoothing", "gpu_power_smoothing_enabled"),
)
"""Columns of the table, with a pattern of the series."""


def folder() -> Path:
    """The directory of the mock."""
    path = Path(os.environ.get("MOCK_NVML", ""))
    if not os.environ.get("MOCK_NVML") or not (path / "libnvidia-ml.so.1").exists():
        raise AssertionError("set MOCK_NVML to the directory of the built mock; see docs/models.md")
    return path


@contextmanager
def mocked(
    profile: str, tmp_path: Path, change: Callable[[dict[str, Any]], object] = lambda _: None
) -> Iterator[Running]:
    """The exporter on a profile, after a change of it."""
    content = yaml.safe_load((folder() / "configs" / f"mock-nvml-config-{profile}.yaml").read_text())
    change(content)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(content))  # YAML of PyYAML has serial numbers that Go reads as numbers
    variables = {"LD_LIBRARY_PATH": str(folder()), "MOCK_NVML_CONFIG": str(config), "MOCK_NVML_OVERRIDES_TTL": "100ms"}
    with serving("serve", "--tick.interval=250ms", "--environment=none", env=surroundings() | variables) as server:
        yield server


def problems(server: Running) -> list[str]:
    """What the page reports, each with its subject."""
    return [f"{one['about']}: {one['what']}" for one in json.loads(server.get("/api/v1/snapshot"))["problems"]]


def row(profile: str, body: str) -> str:
    """The row of the table for a profile."""
    name = re.search(r'^gpu_info{gpu="0",.*?,name="(.*?)".*architecture="(.*?)"', body, re.MULTILINE)
    assert name is not None
    gpus = len(re.findall(r"^gpu_up{", body, re.MULTILINE))
    cells = ["yes" if re.search(f"^{pattern}", body, re.MULTILINE) else "-" for _, pattern in COLUMNS]
    return f"| {profile} | {name[1]} | {name[2]} | {gpus} | {' | '.join(cells)} |"


def head() -> str:
    """The head of the table."""
    names = ["profile", "name", "architecture", "GPUs", *(name for name, _ in COLUMNS)]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile(profile: str, tmp_path: Path) -> None:
    """All GPUs are read without a failed call, and the page describes them. The counter of energy is stuck in all."""
    with mocked(profile, tmp_path) as server:
        body = server.metrics('^gpu_energy_source_info{gpu="0".*source="power"} 1$', within_s=STUCK_S)
        told = problems(server)
        code, _, errors = server.stop()

    assert code == 0
    assert "level=warn" not in errors
    assert "level=error" not in errors
    assert set(re.findall(r"^gpu_up{.*} (\S+)$", body, re.MULTILINE)) == {"1"}
    assert set(re.findall(r"^gpuledger_ledger_residual_joules{.*} (\S+)$", body, re.MULTILINE)) <= {"0", "0.0"}
    assert not re.search(r"^gpuledger_driver_errors_total{.*} [1-9]", body, re.MULTILINE)
    assert {what.partition(": ")[2].partition(" stands still")[0] for what in told} == {"the energy counter"}
    page = PAGE.read_text()
    if os.environ.get("MOCK") == "write":
        others = [line for line in page.splitlines() if line.startswith(f"| {profile} |")]
        PAGE.write_text(page.replace(others[0], row(profile, body)) if others else page)
    assert head() in PAGE.read_text()
    assert row(profile, body) in PAGE.read_text().splitlines()


def fail(mode: str, **more: Any) -> Callable[[dict[str, Any]], None]:
    """A failure of the first GPU."""
    return lambda config: config["devices"][0].update(failure={"mode": mode, **more})


@pytest.mark.parametrize("mode", ["lost", "fallen_off_bus"])
def test_a_gpu_that_is_lost(mode: str, tmp_path: Path) -> None:
    """After some calls, or from the first one on: it is down, the others are not, and the page has a remedy."""
    for after_calls in (500, 0):
        with mocked("h100", tmp_path, fail(mode, after_calls=after_calls)) as server:
            body = server.metrics('^gpu_up{gpu="0".*} 0$', within_s=STUCK_S)
            told = problems(server)

        assert len(re.findall(r"^gpu_up{.*} 1$", body, re.MULTILINE)) == 7
        assert any(what.startswith("GPU 0: cannot be read") for what in told)


def test_memory_errors_with_an_xid(tmp_path: Path) -> None:
    """The GPU stays; its errors and the XID are counted."""
    with mocked("gb200", tmp_path, fail("ecc_uncorrectable", after_calls=100, xid={"code": 64})) as server:
        body = server.metrics('^gpu_xid_errors_total{gpu="0".*xid="64"} 1$', within_s=STUCK_S)
        server.metrics('^gpu_ecc_errors_total{gpu="0".*error="uncorrected"} [1-9]', within_s=STUCK_S)
        told = problems(server)

    assert 'gpu_up{gpu="0"' in body
    assert "GPU 0: reported XID 64, 1 time" in told
    assert any(re.match("GPU 0: [0-9]+ uncorrected memory errors", what) for what in told)


def test_faults_that_are_configured(tmp_path: Path) -> None:
    """On-chip memory, fabric, rows and clocks: each is reported as what it is."""

    def change(config: dict[str, Any]) -> None:
        gpu = config["device_defaults"]
        gpu["ecc"]["sram"] = {
            "aggregate": {"correctable": 4, "uncorrectable_parity": 5, "uncorrectable_secded": 6},
            "uncorrectable_sources": {"l2": 7, "microcontroller": 8},
            "threshold_exceeded": True,
        }
        gpu["fabric"]["health"] = {"degraded_bandwidth": True}
        gpu["remapped_rows"]["failure_occurred"] = True
        gpu["clocks_throttle_reasons"]["hw_thermal_slowdown"] = True

    with mocked("gb200", tmp_path, change) as server:
        body = server.metrics('^gpu_sram_ecc_threshold_exceeded{gpu="0".*} 1$')
        told = [what for what in problems(server) if what.startswith("GPU 0: ")]

    for error, count in (("corrected", 4), ("uncorrected_parity", 5), ("uncorrected_secded", 6)):
        assert re.search(f'^gpu_sram_ecc_errors_total{{gpu="0".*error="{error}"}} {count}$', body, re.MULTILINE)
    for unit, count in (("l2", 7), ("mcu", 8), ("sm", 0)):
        assert re.search(
            f'^gpu_sram_ecc_uncorrected_by_unit_total{{gpu="0".*chip_unit="{unit}"}} {count}$', body, re.MULTILINE
        )
    assert re.search('^gpu_fabric_condition_active{gpu="0".*condition="degraded_bandwidth"} 1$', body, re.MULTILINE)
    assert "GPU 0: more uncorrected errors of the on-chip memory than NVIDIA accepts" in told
    assert "GPU 0: the NVLink fabric limits the GPU: degraded bandwidth" in told
    assert "GPU 0: a memory row could not be remapped" in told
    assert any(what.startswith("GPU 0: slowed down by heat") for what in told)


def test_gpus_without_memory_of_their_own(tmp_path: Path) -> None:
    """The mock reports 0 bytes then: total and used memory are those of the system, and no process holds the rest."""

    def change(config: dict[str, Any]) -> None:
        config["device_defaults"]["memory"] = {"total_bytes": 0, "used_bytes": 0, "free_bytes": 0, "reserved_bytes": 0}

    with mocked("gb200", tmp_path, change) as server:
        body = server.metrics('^gpu_memory_source_info{gpu="0".*source="system"} 1$')
        told = [what for what in problems(server) if "memory" in what]

    total = re.search(r'^gpu_memory_total_bytes{gpu="0".*} (\d+)$', body, re.MULTILINE)
    assert total is not None
    assert int(total[1]) == int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert not re.search("^gpu_memory_(free|reserved|unknown|overhead)_bytes", body, re.MULTILINE)
    assert told == []


def test_a_gpu_that_is_lost_and_returns(tmp_path: Path) -> None:
    """While the exporter runs; no total is smaller afterwards."""
    overrides = tmp_path / "overrides.yaml"

    def joules(body: str) -> float:
        found = re.search(r'^gpu_energy_joules_total{gpu="0".*} (\S+)$', body, re.MULTILINE)
        assert found is not None
        return float(found[1])

    with mocked("h100", tmp_path) as server:
        before = joules(server.metrics('^gpu_energy_source_info{gpu="0".*source="power"} 1$', within_s=STUCK_S))
        overrides.write_text(json.dumps({"version": 1, "devices": {"0": {"failure": {"mode": "lost"}}}}))
        server.metrics('^gpu_up{gpu="0".*} 0$', within_s=STUCK_S)
        overrides.unlink()
        after = joules(server.metrics('^gpu_up{gpu="0".*} 1$', within_s=60))

    assert after >= before
