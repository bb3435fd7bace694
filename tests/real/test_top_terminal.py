"""`gpuledger top` in a real terminal: tmux is one, and can be asked what is on it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, surroundings
from tests.real.daemons import run

pytestmark = pytest.mark.needs("tmux", "pgrep")


class Terminal:
    """A window of tmux with one command in it."""

    def __init__(self, folder: Path, columns: int, rows: int, command: str) -> None:
        self._socket, self._code = folder / "tmux", folder / "code"
        self._env = surroundings(TERM="xterm-256color", LANG="C.UTF-8")
        line = f"{command}; echo $? > {self._code}; echo it has ended; sleep 60"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), line)

    def tmux(self, *words: str) -> str:
        """Ask tmux for something."""
        asked = ["tmux", "-S", str(self._socket), *words]
        done = subprocess.run(asked, env=self._env, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout

    def screen(self) -> str:
        """What is on it now."""
        return self.tmux("capture-pane", "-p")

    def until(self, *wanted: str, within_s: float = 30) -> list[str]:
        """The screen, once all of these are on it."""
        deadline = time.monotonic() + within_s
        while not all(re.search(one, text := self.screen(), re.MULTILINE) for one in wanted):
            assert time.monotonic() < deadline, f"{wanted} is not all on\n{text}"
            time.sleep(0.05)
        return text.splitlines()

    def press(self, *keys: str) -> None:
        """Type."""
        self.tmux("send-keys", *keys)

    def pid(self) -> int:
        """Of the command, below tmux's shell."""
        shell = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        return int(run("pgrep", "-P", shell).split()[0])

    def ended(self) -> int:
        """Its exit code, once the terminal is as it was before."""
        self.until("^it has ended")
        assert "OWNER" not in self.screen()
        return int(self._code.read_text())


@contextmanager
def terminal(columns: int, rows: int, *words: str) -> Iterator[Terminal]:
    """With the demo's recording in it."""
    with tempfile.TemporaryDirectory(prefix="tmux-") as folder:
        command = shlex.join([*COMMAND, "top", *(words or ("--demo",))])
        window = Terminal(Path(folder), columns, rows, command)
        try:
            yield window
        finally:
            window.tmux("kill-server")


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
def test_the_demo(columns: int, rows: int) -> None:
    """GPU, owners and keys are on it; keys do what they say; q leaves the terminal as it was."""
    with terminal(columns, rows) as window:
        lines = window.until(r"ml/llama-fin.*/trainer", r"^\?Help .*qQuit")
        assert lines[0].startswith("gpuledger ")
        assert "RECORDING" in lines[0]
        if rows == 24:
            assert re.search(r"^0  █+.*·+  [0-9.]+/140\.4G +\d+% +\d+/700 W \d+°C$", lines[1])
        else:
            assert lines[1].startswith("GPU 0  NVIDIA H200  ")
            assert re.search(r"mem +█+.*·+  [0-9.]+ / 140\.4 GiB$", lines[2])
            assert re.search(r"busy .* % +power .*/700 W$", lines[3])
        (heads,) = [line for line in lines if line.split()[:3] == ["GPU", "PID", "OWNER"]]
        assert ("IMAGE" in heads) == (columns == 200)
        assert len(lines) == rows
        window.press("t")
        window.until("by pod, with processes ", "ml/llama-finetune-0 ", "└ trainer")
        window.press("t", "g", "g")
        window.until("by pod ", "ml/llama-finetune-0 ")
        window.press("W")
        window.until("WATTS▼")
        window.press("\\", "trainer")
        window.until("^filter: trainer", "^1 by pod +filter: trainer")
        window.press("Escape")
        window.until("[3-6] by pod ", r"^\?Help")
        window.press("?")
        window.until("quit", "sort by memory")
        window.press("End")
        window.until("Omitted on purpose", "kill, renice", "command lines +They often contain passwords")
        window.press("Escape")
        window.until("by pod ")
        window.press("Down", "Enter")
        window.until("GiB listed by the driver", "kJ estimated|kJ measured|energy")
        window.press("Escape")
        window.until("by pod ")
        window.press("h")
        window.until("busy .* memory .* power .*700 W", "last ")
        window.press("q")
        window.until("by pod ")
        window.press("?", "j", "k", "q", "h", "j", "q", "Enter", "j", "q", "M")  # faster than pages are made
        window.until("by pod ", "MEM GiB▼")
        window.press("q")
        assert window.ended() == 0


@pytest.mark.parametrize("way", ["C-c", "SIGTERM"])
def test_other_ends(way: str) -> None:
    """Ctrl-C and SIGTERM leave the terminal as it was, too."""
    with terminal(80, 24) as window:
        window.until("ollama")
        if way == "C-c":
            window.press(way)
        else:
            os.kill(window.pid(), signal.SIGTERM)
        assert window.ended() == 0


def test_an_exporter_that_is_not_there() -> None:
    """Says so, and waits for it."""
    with terminal(80, 24, "--connect", "127.0.0.1:1") as window:
        window.until(r"^cannot reach http://127\.0\.0\.1:1: Connection refused")
        window.press("q")
        assert window.ended() == 0
