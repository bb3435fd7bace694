"""The declarations of settings."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from gpuledger.catalog.dialects import DIALECTS, SHARED
from gpuledger.catalog.dialects.dcgmnames import NAMES
from gpuledger.cli import COMMANDS, TOOLS, main
from gpuledger.cli.idle import IdleSettings
from gpuledger.cli.job import JobSettings
from gpuledger.cli.top import TopSettings
from gpuledger.config import exporter
from gpuledger.config.settings import GROUPS, options_of
from gpuledger.tools.fleet.settings import FleetSettings
from gpuledger.tools.report.settings import ReportSettings

KINDS = (exporter.Config, FleetSettings, IdleSettings, JobSettings, ReportSettings, TopSettings)


@pytest.mark.parametrize("kind", KINDS)
def test_names_groups_and_keys(kind: type) -> None:
    """A field is named like its key, belongs to a group of the help, and no key is part of another."""
    options = options_of(kind)
    keys = [option.key for option in options]

    assert [option.name.rstrip("_") for option in options] == [re.sub("[.-]", "_", key) for key in keys]
    assert {option.group for option in options} <= set(GROUPS)
    assert [key for key in keys for other in keys if other.startswith(f"{key}.")] == []


def test_dialects_of_the_setting_are_those_of_the_catalog() -> None:
    """The configuration does not import the catalog, so both lists are compared here."""
    assert tuple(DIALECTS) == exporter.DIALECTS
    assert SHARED == exporter.SHARED
    assert NAMES == exporter.DCGM_NAMES


def test_every_command_with_settings_of_its_own_is_a_tool() -> None:
    """A variable of any command is known to all others, and is not reported as misspelt."""
    modules = {name: import_module(f"gpuledger.cli.{name}") for name in COMMANDS}

    assert tuple(sorted(name for name, module in modules.items() if hasattr(module, "SETTINGS"))) == TOOLS


@pytest.mark.parametrize("command", ["fleet", "idle", "job", "report"])
def test_help_lists_what_a_command_is_for_before_how_it_connects(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flags of login and TLS come after the flags of the command itself, and no flag is left without a group."""
    assert command in COMMANDS
    main([command, "--help-all"])
    titles = re.findall(r"^([A-Za-z][\w -]+):$", capsys.readouterr().out, re.MULTILINE)

    groups = [title for title in titles if title not in ("options", "positional arguments", "examples")]
    assert groups == [title for title in GROUPS if title in groups]
    assert groups.index("Prometheus") > 0


def test_every_flag_of_the_exporter_is_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    """Token and OpenTelemetry flags have groups of their own."""
    main(["serve", "--help-all"])
    shown = capsys.readouterr().out

    assert "\nlanguage-model servers:\n  --tokens.scrape" in shown
    assert "\nOpenTelemetry:\n  --otlp.endpoint" in shown
    assert "\nothers:" not in shown
