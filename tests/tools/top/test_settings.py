"""The settings of the view."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.config import load as config
from gpuledger.config.options import Config
from gpuledger.errors import ConfigError
from gpuledger.tools.top.exporter import OPTIONS, Settings


def settings(*flags: str) -> Settings:
    """From flags such as `connect=n1`."""
    given = dict(flag.split("=", 1) for flag in flags)
    return config.load_as(Settings, OPTIONS, {key: [text] for key, text in given.items()}, {})


def test_the_table_and_the_record_agree() -> None:
    """Every option has a field; no key is part of another, which no file could hold."""
    keys = [option.key for option in OPTIONS]
    fields = [*Config.__dataclass_fields__, *Settings.__annotations__]

    assert [option.name for option in OPTIONS] == fields
    assert [key for key in keys for other in keys if other.startswith(f"{key}.")] == []


def test_a_printed_configuration_gives_the_same_one_again(tmp_path: Path) -> None:
    """And a file of the exporter's is good for both."""
    chosen = settings("connect=n1:9400", "exporter.token-file=/t", "tick.interval=2s")
    path = tmp_path / "top.yml"
    path.write_text(config.dump(chosen, OPTIONS))

    assert settings(f"config.file={path}") == chosen
    assert chosen.access().token_file == "/t"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["exporter.user=eve"], "--exporter.user and --exporter.password-file belong together"),
        (["exporter.user=eve", "exporter.password-file=/p", "exporter.token-file=/t"], "exclude each other"),
    ],
)
def test_contradictions(flags: list[str], says: str) -> None:
    """One line."""
    with pytest.raises(ConfigError, match=says):
        settings(*flags).access()
