"""`gpuledger fingerprints export` and `import`, as a user would run them."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuledger.cli import build, fingerprints, main
from gpuledger.config.load import load
from gpuledger.shares.fingerprint import Fingerprint, Workload
from gpuledger.shares.units import GPM
from gpuledger.storage.fingerprints import WorkloadState, pack
from gpuledger.storage.journalfile import JournalFile
from tests.cli.running import gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where the exporter has its journal; there is none yet."""
    return tmp_path / "journal"


@pytest.fixture
def run(journal: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command with the settings of the exporter: exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["fingerprints", f"--journal.path={journal}", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def workload(name: str, seconds: float) -> WorkloadState:
    """A workload that was observed for this time."""
    labels: Workload = (("gpu_model", "NVIDIA H200"), ("process_name", name))
    fingerprint = Fingerprint(seconds=seconds, duty_s=seconds, duty2_s=seconds)
    fingerprint.learn(1.0, GPM.deviations([0.5] * 7, 0.8, 1.0), seconds, is_alone=True)
    return pack([(labels, fingerprint)])[0]


def store(journal: Path, *workloads: WorkloadState) -> None:
    """What an exporter has learned."""
    file = JournalFile(str(journal))
    file.write_fingerprints(workloads)
    file.close()


def stored(journal: Path) -> dict[str, float]:
    """Seconds by program."""
    workloads = JournalFile(str(journal)).read_fingerprints()
    return {state.workload["process_name"]: round(state.seconds, 3) for state in workloads or ()}


def test_what_one_node_learned_is_known_on_another(run: Run, journal: Path, tmp_path: Path) -> None:
    """Export, import where there is no journal yet, export again: the same file."""
    store(journal, workload("b", 20.0), workload("a", 10.0))
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert run("export", first) == (0, "", "")
    for file in tmp_path.glob("journal*"):
        file.unlink()

    code, output, errors = run("import", first)

    assert (code, errors) == (0, "")
    assert output == f"{journal}.fingerprints: 2 added, 0 replaced, 0 left\n"
    assert stored(journal) == {"a": 10, "b": 20}
    assert run("export", second) == (0, "", "")
    assert second.read_bytes() == first.read_bytes()
    assert not journal.exists()


def test_standard_output_and_input(run: Run, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gpuledger fingerprints export - | ssh node gpuledger fingerprints import -`."""
    store(journal, workload("a", 10.0))
    code, text, _ = run("export", "-")
    assert code == 0
    store(journal, workload("b", 10.0))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    assert run("import", "-") == (0, f"{journal}.fingerprints: 1 added, 0 replaced, 0 left\n", "")
    assert stored(journal) == {"a": 10, "b": 10}


def test_an_import_is_merged(run: Run, journal: Path, tmp_path: Path) -> None:
    """The fingerprint with more seconds wins; a second import changes nothing."""
    file = tmp_path / "fleet.json"
    store(journal, workload("a", 30.0), workload("b", 5.0), workload("c", 9.0))
    run("export", file)
    store(journal, workload("a", 10.0), workload("b", 20.0))

    assert run("import", file) == (0, f"{journal}.fingerprints: 1 added, 1 replaced, 1 left\n", "")
    assert stored(journal) == {"a": 30, "b": 20, "c": 9}
    assert run("import", file)[1] == f"{journal}.fingerprints: 0 added, 0 replaced, 3 left\n"


def test_a_full_file_drops_the_oldest(run: Run, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reports it."""
    file = tmp_path / "fleet.json"
    store(journal, workload("c", 30.0))
    run("export", file)
    store(journal, workload("a", 30.0), workload("b", 30.0))
    monkeypatch.setattr("gpuledger.storage.fingerprints.MOST_WORKLOADS", 2)

    line = f"{journal}.fingerprints: 1 added, 0 replaced, 0 left; 1 dropped, because the file is full\n"
    assert run("import", file) == (0, line, "")
    assert stored(journal) == {"b": 30, "c": 30}


def test_an_import_is_refused_while_an_exporter_runs(run: Run, journal: Path, tmp_path: Path) -> None:
    """An export is not: the file is replaced atomically."""
    file = tmp_path / "fleet.json"
    store(journal, workload("a", 10.0))
    exporter = JournalFile(str(journal))
    exporter.lock()

    assert run("export", file)[0] == 0
    code, _, errors = run("import", file)
    exporter.close()

    assert code == 2
    assert errors == (
        f"gpuledger: --journal.path: {journal} is in use by a running gpuledger; "
        "stop gpuledger, or import on a node where it does not run\n"
    )
    assert run("import", file)[0] == 0


def test_the_journal_of_the_configuration_file(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of the exporter, with other settings in it."""
    store(journal, workload("a", 10.0))
    settings = tmp_path / "gpuledger.yml"
    settings.write_text(f"tick.interval: 5s\njournal:\n  path: {journal}\n")

    assert main(["fingerprints", "export", "-", "--config.file", str(settings)]) == 0
    assert [entry["workload"]["process_name"] for entry in json.loads(capsys.readouterr().out)["workloads"]] == ["a"]


BEFORE = gzip.compress(b'{"gpuledger":"fingerprints","version":1,"workloads":[]}')
"""The file of an exporter before an upgrade."""
WROTE = "name a file that `gpuledger fingerprints export` wrote"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("export x.json",
         "{folder}/journal.fingerprints does not exist; the exporter writes it once it has observed a workload alone"),
        ("import no.json", "cannot read no.json: No such file or directory; name a readable file"),
        ("import .", "cannot read .: Is a directory; name a readable file"),
        ("import text", f"cannot import text: not JSON; {WROTE}"),
        ("import list", f"cannot import list: the file is not an object; {WROTE}"),
        ("import large", "cannot import large: larger than 0 MiB; name a smaller file"),
        ("import old", f"cannot import old: format version 1, but this gpuledger reads version 2; {WROTE}"),
        ("import good --journal.path=no/journal",
         ("--journal.path: cannot lock {folder}/no/journal: No such file or directory; "
          "create its directory, or run as the user of the exporter")),
        ("import good --journal.path=damaged",
         "cannot read {folder}/damaged.fingerprints: truncated; delete it, and the exporter will learn again"),
        ("export x.json --journal.path=damaged",
         "cannot read {folder}/damaged.fingerprints: truncated; delete it, and the exporter will learn again"),
        ("import good --journal.path=before",
         ("cannot read {folder}/before.fingerprints: format version 1, but this gpuledger reads version 2; "
          "delete it, and the exporter will learn again")),
        ("export x.json --journal.path=before",
         ("cannot read {folder}/before.fingerprints: format version 1, but this gpuledger reads version 2; "
          "delete it, and the exporter will learn again")),
        ("export x.json --journal.path=", "--journal.path is not set; set it to the journal of the exporter"),
        ("export", "the following arguments are required: FILE; see gpuledger fingerprints --help"),
        ("export a b", "unexpected argument 'b'; see gpuledger fingerprints --help"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    words: str, line: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, what failed, and how to fix it; no file is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fingerprints, "LARGEST_BYTES", 1000)
    (tmp_path / "text").write_text("gpu_up 1\n")
    (tmp_path / "list").write_text("[]")
    (tmp_path / "large").write_text(" " * 1001)
    (tmp_path / "good").write_text('{"gpuledger": "fingerprints export", "version": 2, "workloads": []}')
    (tmp_path / "old").write_text('{"gpuledger": "fingerprints export", "version": 1, "fingerprints": []}')
    (tmp_path / "before.fingerprints").write_bytes(BEFORE)
    (tmp_path / "damaged.fingerprints").touch()

    assert run(*words.split()) == (2, "", f"gpuledger: {line.format(folder=tmp_path)}\n")
    assert not (tmp_path / "x.json").exists()


def test_another_action_is_one_line(run: Run) -> None:
    """Its words are those of the Python it runs on."""
    code, _, errors = run("delete", "x")

    assert code == 2
    assert errors.startswith("gpuledger: argument ACTION: invalid choice: 'delete' (choose from ")
    assert errors.count("\n") == 1


def test_an_exporter_knows_a_workload_after_a_restart(journal: Path, tmp_path: Path) -> None:
    """It writes the file when it stops, refuses an import while it runs, and shows the workload after a restart."""
    flags = ("--tick.interval=100ms", "--environment=none", f"--journal.path={journal}")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        gpu = Gpu(0, uuid="GPU-a", watts=300, energy_mj=5_000_000, extra={"gpm.sm": 90.0, "gpm.dram": 40.0})
        scenario = Scenario([gpu], [Process(0, process.pid, sm=90)])
        env = surroundings(scenario.write(tmp_path / "scenario"))
        with serving(*flags, env=env) as server:
            server.metrics('"power_ratio"', "/api/v1/fingerprints", within_s=20)
            server.stop()
        process.kill()
    idle = surroundings(Scenario([gpu]).write(tmp_path / "idle"))
    file = tmp_path / "fingerprints.json"
    with serving(*flags, env=idle) as server:
        body = server.metrics('"process_name"', "/api/v1/fingerprints")
        exported = gpuledger("fingerprints", "export", str(file), flags[-1])
        imported = gpuledger("fingerprints", "import", str(file), flags[-1])
        _, _, errors = server.stop()

    assert f"fingerprints restored from {journal}.fingerprints, number of workloads: 1" in errors
    (entry,) = json.loads(file.read_text())["workloads"]
    assert entry["workload"] == json.loads(body)["fingerprints"][0]["workload"]
    assert (exported.returncode, imported.returncode) == (0, 2)
    assert "is in use by a running gpuledger" in imported.stderr


def test_fingerprints_of_an_earlier_version_start_empty(journal: Path, tmp_path: Path) -> None:
    """After an upgrade: one line in the log; the file of the earlier version is replaced once something is learned."""
    path = journal.with_name("journal.fingerprints")
    path.write_bytes(BEFORE)
    env = surroundings(Scenario([Gpu(0, uuid="GPU-a")]).write(tmp_path / "idle"))
    with serving("--tick.interval=100ms", "--environment=none", f"--journal.path={journal}", env=env) as server:
        body = server.metrics('"fingerprints"', "/api/v1/fingerprints")
        _, _, errors = server.stop()

    assert json.loads(body)["fingerprints"] == []
    (line,) = [line for line in errors.splitlines() if "restore" in line]
    assert (
        f"cannot restore fingerprints from {path}: format version 1, but this gpuledger reads version 2; "
        "fingerprints start empty"
    ) in line


def test_there_is_no_file_without_a_journal() -> None:
    """Without --journal.path the exporter has books that write nothing."""
    assert build._journal(load({}, {})) is None
