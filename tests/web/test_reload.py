"""Values from files: loaded again when the files change, kept if that fails."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import pytest

from gpuledger.web.reload import RETRY_S, Reloaded, file_state


class World:
    """A file whose state and text a test sets, and a clock."""

    def __init__(self) -> None:
        self.state, self.text, self.now, self.loads = 0, "first", 0.0, 0

    def load(self) -> str:
        """The content of the file; `bad` is invalid."""
        self.loads += 1
        if self.text == "bad":
            raise ValueError("it is bad")
        return self.text

    def reloaded(self) -> Reloaded[str]:
        """The value that is reloaded."""
        return Reloaded("web.yml", lambda: self.state, self.load, lambda: self.now)

    def change(self, text: str) -> None:
        """Write the file."""
        self.state, self.text = self.state + 1, text


def test_changes_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    """The next call returns the new value; without a change nothing is loaded."""
    caplog.set_level(logging.INFO)
    world = World()
    thing = world.reloaded()
    assert [thing.get(), thing.get()] == ["first", "first"]
    assert world.loads == 1

    world.change("second")

    assert [thing.get(), thing.get()] == ["second", "second"]
    assert world.loads == 2
    assert caplog.messages == ["web.yml changed and was reloaded"]


def test_a_bad_one_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The last good thing stays; the log says it once for each reason, and once when it is good again."""
    caplog.set_level(logging.INFO)
    world = World()
    thing = world.reloaded()

    for _ in range(3):
        world.change("bad")
        assert [thing.get(), thing.get()] == ["first", "first"]
    assert world.loads == 4
    world.change("second")
    assert thing.get() == "second"

    assert caplog.messages == [
        "reloading web.yml failed: it is bad; the last valid version is still used",
        "web.yml is valid again and was reloaded",
    ]


def test_a_failure_is_tried_again() -> None:
    """What failed for another reason than the file is not given up."""
    world = World()
    thing = world.reloaded()
    world.change("bad")
    thing.get()
    world.text = "second"  # the same file: this process could not read it

    world.now = RETRY_S - 1
    assert thing.get() == "first"
    world.now = RETRY_S
    assert thing.get() == "second"


def test_a_bad_start() -> None:
    """There is nothing to keep, so the caller hears of it."""
    world = World()
    world.change("bad")

    with pytest.raises(ValueError, match="it is bad"):
        world.reloaded()


def test_no_thread_waits() -> None:
    """While one thread loads, others get what there was before."""
    begun, go_on = threading.Event(), threading.Event()
    world = World()

    def load() -> str:
        if world.state:
            begun.set()
            assert go_on.wait(10)
        return f"state {world.state}"

    thing = Reloaded("web.yml", lambda: world.state, load)
    world.change("")
    loading = threading.Thread(target=thing.get)
    loading.start()
    assert begun.wait(10)

    assert thing.get() == "state 0"
    go_on.set()
    loading.join()
    assert thing.get() == "state 1"


def test_every_kind_of_change_is_seen(tmp_path: Path) -> None:
    """Written, replaced by another with the same size and time, removed, made unreadable; also behind a link."""
    file, other, link = tmp_path / "file", tmp_path / "other", tmp_path / "link"
    file.write_text("one")
    link.symlink_to(file)
    states = [file_state([str(link)])]

    file.write_text("more")
    states.append(file_state([str(link)]))
    other.write_text("than")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)
    states.append(file_state([str(link)]))
    time.sleep(0.02)  # some kernels have timestamps of 10 ms
    file.chmod(0o600)
    states.append(file_state([str(link)]))
    file.unlink()
    states.append(file_state([str(link)]))

    assert len(set(states)) == len(states)
    assert file_state([str(link)]) == states[-1]
