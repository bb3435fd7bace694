"""`gpuledger top` as scripts use it, as a real process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger.cli import main
from gpuledger.cli.top import TopSettings
from gpuledger.config import load as config
from gpuledger.errors import ConfigError
from gpuledger.tools.top.text import cells
from gpuledger.web.http import Request, Response
from gpuledger.web.snapshot.codec import decode
from tests.cli.running import COMMAND, gpuledger, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.web.clients import serving
from tests.web.snapshot.pictures import busy

FAST = "--interval=100ms"
SLOWER = "--interval=500ms"  # samples of work come every 200 ms


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A host with two GPUs, and this very process on the first."""
    gpus = [Gpu(0, uuid="GPU-a", watts=300), Gpu(1, uuid="GPU-b", watts=80)]
    processes = [Process(0, os.getpid(), memory=1 << 30, sm=40)]
    return surroundings(Scenario(gpus, processes).write(tmp_path / "scenario"))


def test_once_is_text(env: dict[str, str]) -> None:
    """The host's GPUs and this process, without codes; exit code 0."""
    done = gpuledger("top", "--once", SLOWER, env=env | {"COLUMNS": "80"})

    assert (done.returncode, done.stderr) == (0, "")
    assert "GPU 0 " in done.stdout
    assert "300/" in done.stdout
    (row,) = (line for line in done.stdout.splitlines() if f" {os.getpid()} " in line)
    assert "1.00" in row.split()
    assert "40" in row.split()
    assert all(cells(line) <= 80 and line.isprintable() for line in done.stdout.splitlines())


def test_cpu_and_memory_of_the_host(env: dict[str, str]) -> None:
    """Values of this process; a recording has neither, and cannot be sorted by them."""
    done = gpuledger("top", "--json", SLOWER, env=env)

    (process,) = json.loads(done.stdout)["processes"]
    assert process["host_memory_bytes"] > 10 << 20
    assert process["cpu_ratio"] >= 0
    text = gpuledger("top", "--once", "--group", "tree", "--sort", "cpu", SLOWER, env=env | {"COLUMNS": "130"}).stdout
    assert "CPU%" in text
    assert "HOST GiB" in text
    refused = gpuledger("top", "--once", "--demo", "--sort", "cpu", env=env)
    assert refused.returncode == 2
    assert "--sort cpu: only the processes of this host have it" in refused.stderr


def test_json_is_the_snapshot(env: dict[str, str]) -> None:
    """The JSON is of the second reading, so that it contains shares."""
    done = gpuledger("top", "--json", SLOWER, env=env)

    one = json.loads(done.stdout)
    assert done.returncode == 0
    assert [gpu["power_watts"] for gpu in one["gpus"]] == [300, 80]
    (process,) = one["processes"]
    assert (process["pid"], process["sm_ratio"]) == (os.getpid(), 0.4)
    assert process["watts"] is not None


def test_without_a_driver_it_says_so_and_exits_with_1() -> None:
    """The snapshot is printed nevertheless."""
    done = gpuledger("top", "--once", FAST)
    as_json = gpuledger("top", "--json", FAST)

    assert (done.returncode, as_json.returncode) == (1, 1)
    assert done.stderr == as_json.stderr
    assert done.stderr.startswith("gpuledger: the driver cannot be read: ")
    assert done.stderr.count("\n") == 1
    assert json.loads(as_json.stdout)["driver"]["up"] is False


def test_an_exporter() -> None:
    """The snapshot of an exporter, as text and as JSON."""
    with serving(lambda _: Response(200, [], json.dumps(busy()).encode())) as server:
        url = f"http://127.0.0.1:{server.addresses[0][1]}"
        text = gpuledger("top", "--once", "--connect", url, "--group", "pod", "--sort", "watts")
        one = gpuledger("top", "--json", "--connect", url)

    assert (text.returncode, text.stderr, one.returncode) == (0, "", 0)
    rows = [line.split()[2] for line in text.stdout.splitlines()[-6:]]
    assert rows[0] == "ml/train-0"
    assert decode(json.loads(one.stdout)) == decode(busy())


def test_an_exporter_that_is_not_there_is_exit_code_1() -> None:
    """One line for every kind of failure."""

    def page(_: Request) -> Response:
        return Response(200, [], b'{"version": 9}')

    gone = gpuledger("top", "--once", "--connect", "127.0.0.1:1")
    with serving(page) as server:
        other = gpuledger("top", "--json", "--connect", f"127.0.0.1:{server.addresses[0][1]}")

    assert (gone.returncode, other.returncode) == (1, 1)
    assert (
        gone.stderr == "gpuledger: cannot reach http://127.0.0.1:1: Connection refused; check whether it is running\n"
    )
    assert "snapshot version 9 is not supported, only 1" in other.stderr
    assert (gone.stdout, other.stdout) == ("", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--connect=ftp://x"], "--connect: 'ftp://x' is not the address of an exporter"),
        (
            ["--connect=n1", "--demo"],
            "--connect cannot be combined with a recording; remove --connect, --source or --demo",
        ),
        (["--once", "--json"], "not allowed with argument --once"),
        (["--once", "--sort=pid", "--group=pod"], "--sort pid: --group pod has no such column"),
        (["--once", "--connect=n1", "--exporter.user=x"], "--exporter.user and --exporter.password-file belong"),
        (["--interval=1h", "--once"], "'1h' is out of range"),
    ],
)
def test_invalid_flags_are_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the correction."""
    assert main(["top", *words]) == 2

    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_its_variables_are_no_mistake_of_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPULEDGER_CONNECT may be in a shell's environment for good."""
    monkeypatch.setenv("GPULEDGER_CONNECT", "n1")

    assert main(["serve", "--print-config"]) == 0
    assert main(["top", "--print-config"]) == 0
    assert "\nconnect: n1\n" in capsys.readouterr().out


def on_a_terminal(*words: str, env: dict[str, str]) -> tuple[int, str]:
    """Run a command whose standard output is a terminal: exit code, and what it wrote there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *words], env=env, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # a terminal whose last writer has left
        pass
    process.communicate()
    os.close(ours)
    return process.returncode, text.decode()


def test_a_filter_commands_nothing_either() -> None:
    """A filter is shown without control characters."""
    done = gpuledger("top", "--once", "--demo", FAST, "--filter", "\x1b[2J")

    assert "filter: \\x1b[2J" in done.stdout
    assert "\x1b" not in done.stdout


def test_colours_are_for_terminals() -> None:
    """Only without NO_COLOR; a locale without UTF-8 gets ASCII."""
    utf8 = surroundings(TERM="xterm", COLUMNS="80", PYTHONIOENCODING="utf-8")
    words = ("top", "--once", "--demo", FAST)

    assert "\x1b[" in on_a_terminal(*words, env=utf8)[1]
    assert "\x1b" not in on_a_terminal(*words, env=utf8 | {"NO_COLOR": "1"})[1]
    assert "\x1b" not in gpuledger(*words, env=utf8).stdout
    assert "█" in gpuledger(*words, env=utf8).stdout
    assert gpuledger(*words, env=utf8 | {"PYTHONIOENCODING": "ascii"}).stdout.isascii()


def test_without_a_terminal_it_prints_once(env: dict[str, str]) -> None:
    """As `docker exec` runs it: one line says why, on standard error."""
    done = gpuledger("top", SLOWER, env=env)

    assert (done.returncode, done.stderr) == (
        0,
        "gpuledger: the live view needs a terminal, so this is printed once, as by top --once\n",
    )
    assert f" {os.getpid()} " in done.stdout


def test_without_the_extra_it_prints_once() -> None:
    """On a terminal, as `docker exec -it` runs it in the image, which does not have the extra."""
    hide = "import sys; sys.modules['textual'] = None; from gpuledger.cli import main; sys.exit(main(sys.argv[1:]))"
    pty_of = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    words = [sys.executable, "-c", pty_of, sys.executable, "-c", hide, "top", "--demo", FAST]
    live = subprocess.run(words, env=surroundings(TERM="xterm"), capture_output=True, text=True, check=False)

    assert live.returncode == 0
    assert "the live view needs textual (`pip install '.[top]'` in a checkout; not in the image), so" in live.stdout
    assert "notebook" in live.stdout


@pytest.mark.parametrize("form", ["--once", "--json"])
def test_no_standard_output_at_all(form: str) -> None:
    """The parent process closed it: one line, no traceback."""
    words = " ".join((*COMMAND, "top", "--demo", form))
    done = subprocess.run(["sh", "-c", f"{words} >&-"], capture_output=True, text=True, check=False)

    line = "gpuledger: standard output is closed; redirect it to a file or a pipe\n"
    assert (done.returncode, done.stderr) == (2, line)


def settings(*flags: str) -> TopSettings:
    """From flags such as `connect=n1`."""
    given = dict(flag.split("=", 1) for flag in flags)
    return config.load_as(TopSettings, {key: [text] for key, text in given.items()}, {})


def test_a_printed_configuration_gives_the_same_one_again(tmp_path: Path) -> None:
    """A file of the exporter's settings serves both commands."""
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
    """Each contradiction is one line."""
    with pytest.raises(ConfigError, match=says):
        settings(*flags).exporter_access()
