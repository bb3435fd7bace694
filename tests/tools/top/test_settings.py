"""The settings of the view."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.config import load as config
from gpuledger.errors import ConfigError
from gpuledger.tools.top.settings import TopSettings


def settings(*flags: str) -> TopSettings:
    """From flags such as `connect=n1`."""
    given = dict(flag.split("=", 1) for flag in flags)
    return config.load_as(TopSettings, {key: [text] for key, text in given.items()}, {})


def test_a_printed_configuration_gives_the_same_one_again(tmp_path: Path) -> None:
    """And a file of the exporter's is good for both."""
    chosen = settings("connect=n1:9400", "exporter.token-file=/t", "tick.interval=2s")
    path = tmp_path / "top.yml"
    path.write_text(config.dump(chosen))

    assert settings(f"config.file={path}") == chosen
    assert chosen.exporter_access().token_file == "/t"


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
        settings(*flags).exporter_access()
