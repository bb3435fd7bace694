"""The live view, with real keys on textual's own test screen."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from rich.color import ColorType
from textual.pilot import Pilot

from gpuledger.tools.exporterclient import ExporterClient
from gpuledger.tools.prometheus.client import Access
from gpuledger.tools.top.app import Top
from gpuledger.tools.top.columns import BY_NAME, View
from gpuledger.tools.top.feed import Feed, State
from gpuledger.tools.top.keys import KEYS
from gpuledger.tools.top.widgets import Page
from gpuledger.web.http import Request, Response
from gpuledger.web.snapshot.codec import decode
from tests.tools.top.sources import Told
from tests.waiting import free_port
from tests.web.clients import serving
from tests.web.snapshot.pictures import GIB, HOSTILE, NOW, Picture, busy, gpu, picture, process

Keys = Pilot[None]


class Still(Feed):
    """A feed whose state is set by the test."""

    def __init__(self, one: Picture | None = None) -> None:
        super().__init__(Told({}), 1.0)
        self.asked = 0
        self.state = State() if one is None else State(decode(one))

    def start(self, changed: Callable[[], None]) -> None:
        """At once."""
        self._changed = changed
        changed()

    def tell(self, one: Picture | None = None, lost: str = "") -> None:
        """Set the snapshot, or the reason why it is lost."""
        self.state = State(self.state.snapshot if one is None else decode(one), lost)
        self._changed()

    def retry(self) -> None:
        """Counted."""
        self.asked += 1


def screen(app: Top) -> list[str]:
    """What is on it, line by line."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def on(
    one: Picture | None,
    scene: Callable[[Keys, Top, Still], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    view: View | None = None,
) -> None:
    """Play a scene on that picture."""

    async def play() -> None:
        feed = Still(one)
        app = Top(feed, view)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await scene(pilot, app, feed)

    asyncio.run(play())


def rows_of(app: Top) -> list[str]:
    """The lines of the table below its titles."""
    lines = screen(app)
    first = next(at for at, line in enumerate(lines) if line.startswith("GPU ") and "MEM GiB" in line)
    return [line for line in lines[first + 1 : -1] if line]


def column(app: Top, word: int = 1) -> list[str]:
    """A word of every row."""
    return [line.split()[word] for line in rows_of(app)]


def pid(app: Top) -> int | None:
    """The pid of the row under the cursor."""
    row = app.table.chosen
    return row.pid if row is not None else None


async def press(pilot: Keys, *keys: str) -> None:
    """Keys one after the other, and what they lead to."""
    await pilot.press(*keys)
    await pilot.pause()


def test_a_small_screen() -> None:
    """Title, GPUs, sums, titles of columns, rows, keys: in 24 lines of 80."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        while not screen(app)[-1]:  # the footer is drawn last
            await pilot.pause()
        lines = screen(app)
        assert lines[0].startswith("gpuledger 1.2.3  n1  ")
        assert lines[1] == "GPU 0  NVIDIA H200  50°C"
        assert lines[4] == "GPU 1  NVIDIA H200  50°C  XID 79  slowed: hw slowdown"
        assert lines[7].startswith("7 by process  75.0 GiB + ~4.00 inferred")
        assert column(app) == ["11", "12", "13", "21", "–", "22", "23"]  # noqa: RUF001
        assert lines[-1].startswith("?Help")
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80

    on(busy(), scene)


def test_advice_is_complete_on_a_small_screen() -> None:
    """The fix of the first problem is readable at 80x24, beside four GPUs, one of them unused, and the table."""

    async def scene(_: Keys, app: Top, __: Still) -> None:
        lines = screen(app)
        assert " ".join(line.strip() for line in lines[1:5]) == f"GPU 3: {what} fix: {fix}"
        assert lines[7].rstrip().endswith(" unused 1h00m")
        assert len(rows_of(app)) >= 7

    what = "20.6 GiB are in use, but the driver lists no process for them; inferred for 1 container that may hold them"
    fix = "`sudo fuser -v /dev/nvidia*` lists the processes that have the device open: in a VM, in another container"
    problem = {"level": "warning", "about": "GPU 3", "what": what, "fix": fix}
    row = {"gpu": 2, "uuid": "GPU-2", "gpu_uuid": "GPU-2", "state": "no_process", "idle_since": NOW - 3600}
    four = [gpu(n, in_use=n != 2, allocated_to=["ml/notebook"]) for n in range(4)]
    many = [process(n) for n in range(1, 31)]
    on(picture(*four, processes=many, problems=[problem], allocations=[row]), scene)


def test_eight_gpus_leave_room_for_the_table() -> None:
    """A line each."""

    async def scene(_: Keys, app: Top, __: Still) -> None:
        lines = screen(app)
        assert lines[1].startswith("docker: is down")
        assert [line[0] for line in lines[2:10]] == list("01234567")
        assert len(rows_of(app)) == 11

    eight, many = [gpu(n) for n in range(8)], [process(n) for n in range(1, 301)]
    on(
        picture(
            *eight, processes=many, problems=[{"level": "problem", "about": "docker", "what": "is down", "fix": ""}]
        ),
        scene,
    )


def test_sorting() -> None:
    """Keys of htop: P, M, I, < and >; ours for watts and energy."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await press(pilot, "P")
        assert column(app)[:3] == ["11", "12", "13"]
        await press(pilot, "I")
        assert column(app)[:3] == ["13", "12", "11"]
        await press(pilot, "E")
        assert column(app)[:4] == ["11", "12", "23", "13"]
        await press(pilot, "W")
        assert column(app)[:3] == ["11", "12", "21"]
        await press(pilot, "less_than_sign", "less_than_sign")
        assert "MEM GiB▼" in "".join(screen(app))
        await press(pilot, "greater_than_sign")
        assert "SM%▼" in "".join(screen(app))

    on(busy(), scene)


def test_grouping() -> None:
    """Round through all of them."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        for key, grouping, count in (
            ("g", "container", 6),
            ("g", "pod", 6),
            ("g", "namespace", 2),
            ("g", "user", 4),
            ("g", "process", 7),
        ):
            await press(pilot, key)
            assert any(line.startswith(f"{count} by {grouping} ") for line in screen(app))
            assert len(rows_of(app)) == count

    on(busy(), scene)


def test_a_tree() -> None:
    """Pods with their processes below them; again: processes."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await press(pilot, "t")
        lines = rows_of(app)
        assert any(line.startswith("6 by pod, with processes ") for line in screen(app))
        assert [" ".join(line.split()[:4]) for line in lines[:3]] == [
            "0-1 – ml/train-0 –",  # noqa: RUF001
            "0 11 └ main",
            "1 12 └ main",
        ]
        await press(pilot, "down", "enter")
        assert screen(app)[0] == "ml/train-0/main"
        await press(pilot, "escape", "f5")
        assert len(rows_of(app)) == 7

    on(busy(), scene)


def test_filtering_while_typing() -> None:
    """Keys that do something else are letters now; Esc takes it back, Enter keeps it."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await press(pilot, "backslash", *"chat")
        assert column(app) == ["13"]
        assert screen(app)[-1].startswith("filter: chat")
        await press(pilot, "escape")
        assert len(rows_of(app)) == 7
        await press(pilot, "f4", *"ollama", "enter")
        assert column(app) == ["21"]
        assert screen(app)[-1].startswith("?Help")
        await press(pilot, "f4", *"xq", "backspace", "backspace", "q", "enter")
        assert any("filter: ollamaq" in line for line in screen(app))
        assert app.is_running
        await press(pilot, "f4", "ctrl+u", *"eve", "f10")
        assert column(app) == ["13"]
        await press(pilot, "enter", "a")
        assert len(rows_of(app)) == 7

    on(busy(), scene)


def test_searching() -> None:
    """The cursor goes to the first match, n and N to the others, around the end; Esc goes back to the top."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        table = app.table
        await press(pilot, "slash", *"train")
        assert pid(app) == 11
        await press(pilot, "enter", "n")
        assert pid(app) == 12
        await press(pilot, "n")
        assert pid(app) == 11
        await press(pilot, "N")
        assert pid(app) == 12
        await press(pilot, "escape")
        assert (pid(app), table.search) == (11, "")
        await press(pilot, "f3", *"zzz", "enter", "n")
        assert pid(app) == 11

    on(busy(), scene)


def test_details_of_a_row() -> None:
    """Of the chosen one, with every field; the arrows scroll, Esc goes back."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await press(pilot, "down", "enter")
        lines = screen(app)
        assert lines[0] == "ml/train-0/main"
        assert "process 12 on GPU 1" in lines
        assert any("4.00 kJ estimated: sm_time" in line for line in lines)
        await press(pilot, "pagedown", "j")
        assert screen(app)[0] != "ml/train-0/main"
        await press(pilot, "escape")
        assert screen(app)[0].startswith("gpuledger")

    on(busy(), scene)


def test_help_names_every_key_and_column() -> None:
    """Also those that must be scrolled to."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await press(pilot, "question_mark")
        text = "\n".join(screen(app))
        assert all(f"{key.names} " in text for key in KEYS)
        assert all(one.about in text for one in BY_NAME.values())
        await press(pilot, "q")
        assert not isinstance(app.screen, Page)
        assert app.is_running

    on(busy(), scene, size=(100, 60))


def test_choosing_gpus() -> None:
    """By number, again for all; by the one after."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await press(pilot, "1")
        assert column(app) == ["12", "22"]
        assert not any(line.startswith("GPU 0 ") for line in screen(app))
        await press(pilot, "1")
        assert len(rows_of(app)) == 7
        await press(pilot, "right_square_bracket")
        assert "GPU 0" in screen(app)[4]
        await press(pilot, "right_square_bracket")
        assert column(app) == ["12", "22"]
        await press(pilot, "left_square_bracket", "left_square_bracket")
        assert column(app) == ["12", "22"]

    on(busy(), scene)


def test_compact_and_exited() -> None:
    """One line per GPU; without exited processes."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await press(pilot, "c")
        assert [line[0] for line in screen(app)[1:3]] == ["0", "1"]
        await press(pilot, "x")
        assert "23" not in column(app)

    on(busy(), scene)


def test_history_goes_on_while_it_is_looked_at() -> None:
    """Charts of what came since the start."""

    async def scene(pilot: Keys, app: Top, feed: Still) -> None:
        await press(pilot, "h")
        assert screen(app)[0] == "GPU 0  NVIDIA H200  last 0m00s"
        feed.tell(picture(gpu(utilization_ratio=1.0), time=NOW + 65))
        await pilot.pause()
        assert screen(app)[0] == "GPU 0  NVIDIA H200  last 1m05s"
        assert "busy 100 %" in screen(app)[1]

    on(picture(gpu()), scene)


def test_a_pause_freezes_the_screen() -> None:
    """The newest snapshot is shown after the pause."""

    async def scene(pilot: Keys, app: Top, feed: Still) -> None:
        await press(pilot, "space")
        feed.tell(picture(gpu(), processes=[process(99)]))
        await pilot.pause()
        assert screen(app)[0].startswith("PAUSED")
        assert "99" not in column(app)
        await press(pilot, "space")
        assert not screen(app)[0].startswith("PAUSED")
        assert column(app) == ["99"]

    on(busy(), scene)


def test_a_lost_connection_is_shown_and_recovers() -> None:
    """The last snapshot stays; R reads at once."""

    async def scene(pilot: Keys, app: Top, feed: Still) -> None:
        feed.tell(lost="cannot reach n1")
        await pilot.pause()
        assert screen(app)[1] == "cannot reach n1; showing the last snapshot"
        assert len(rows_of(app)) == 7
        await press(pilot, "r")
        assert feed.asked == 1
        feed.tell(busy())
        await pilot.pause()
        assert screen(app)[1].startswith("GPU 0")

    on(busy(), scene)


def test_before_anything_is_known() -> None:
    """The source, and the reason why there is no snapshot."""

    async def scene(pilot: Keys, app: Top, feed: Still) -> None:
        assert screen(app)[0] == "gpuledger  connecting to http://n1:9400 ..."
        await press(pilot, "enter", "down", "h", "escape", "right_square_bracket", "slash", "x", "enter", "n")
        feed.tell(lost="cannot reach n1")
        await pilot.pause()
        assert screen(app)[1] == "cannot reach n1"

    on(None, scene)


def test_the_cursor_stays_with_its_row() -> None:
    """Whatever the order becomes; when the row is gone, at its place."""
    many = [process(n, memory_bytes=n * GIB) for n in range(1, 301)]

    async def scene(pilot: Keys, app: Top, feed: Still) -> None:
        assert column(app)[0] == "300"
        await press(pilot, "end")
        assert column(app)[-1] == "1"
        await press(pilot, "up", "k")
        assert pid(app) == 3
        await press(pilot, "I")
        assert pid(app) == 3
        assert column(app)[0] == "3"
        feed.tell(picture(gpu(), processes=many[5:]))
        await pilot.pause()
        assert pid(app) == 8
        await press(pilot, "pagedown", "pagedown", "pageup", "j", "home")
        assert pid(app) == 6
        feed.tell(picture(gpu()))
        await pilot.pause()
        assert app.table.chosen is None
        assert rows_of(app) == []

    on(picture(gpu(), processes=many), scene)


def test_the_mouse() -> None:
    """A title sorts, a second click reverses; a row is chosen, a second click shows its details."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        await pilot.click("Table", offset=(5, 0))
        await pilot.pause()
        assert column(app)[0] == "23"
        await pilot.click("Table", offset=(5, 0))
        await pilot.pause()
        assert column(app)[0] == "11"
        await pilot.click("Table", offset=(5, 2))
        assert pid(app) == 12
        await pilot.click("Table", offset=(5, 2))
        await pilot.pause()
        assert "process 12 on GPU 1" in screen(app)

    on(busy(), scene)


def test_hostile_names_do_nothing() -> None:
    """Neither markup nor escapes, in the table, in the details, in the title."""
    names = [process(n, process_name=name, unit=name) for n, name in enumerate(HOSTILE, 1)]

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        assert any("[bold red]x[/]" in line for line in screen(app))
        await press(pilot, "end", "up", "enter")
        assert all(line.isprintable() for line in screen(app))

    on(picture(gpu(name="[red]"), processes=names, node="\x1b[2J"), scene)


def test_only_colours_of_the_terminal() -> None:
    """The 16 colours that the user chose, so that text is readable on light and on dark backgrounds."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        for keys in (["down"], ["slash", "t"], ["escape", "enter"], ["escape", "h"]):
            await press(pilot, *keys)
            styles = [segment.style for strip in app.screen._compositor.render_strips() for segment in strip]
            colours = [colour for style in styles if style for colour in (style.color, style.bgcolor) if colour]
            assert {colour.type for colour in colours} <= {ColorType.DEFAULT, ColorType.STANDARD}

    on(busy(), scene)


def test_any_size() -> None:
    """Down to almost nothing, and back."""

    async def scene(pilot: Keys, app: Top, _: Still) -> None:
        for size in ((20, 5), (1, 1), (10, 60), (300, 8), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            await press(pilot, "h", "escape", "end", "home", "g")
            assert len(screen(app)) == size[1]
        assert screen(app)[1].startswith("GPU 0")

    on(busy(), scene)


def test_q_quits() -> None:
    """So do F10 and Ctrl-C, from a page too."""
    for keys in (["q"], ["f10"], ["ctrl+c"], ["h", "ctrl+c"], ["slash", "ctrl+c"], ["h", "f10"]):

        async def scene(pilot: Keys, app: Top, _: Still, keys: list[str] = keys) -> None:
            await pilot.press(*keys)
            await pilot.pause()
            assert app._exit

        on(busy(), scene)


def test_a_view_can_be_given() -> None:
    """As on the command line."""

    async def scene(_: Keys, app: Top, __: Still) -> None:
        assert "OWNER▲" in "".join(screen(app))

    on(busy(), scene, view=View(sort="owner", descending=False))


def test_an_exporter_that_goes_and_comes_back() -> None:
    """Over real sockets: a reason, a snapshot, a reason again, a snapshot again."""

    def answer(_: Request) -> Response:
        return Response(200, [], json.dumps(busy()).encode())

    async def until(app: Top, wanted: str, *, there: bool = True) -> None:
        deadline = time.monotonic() + 20
        while any(wanted in line for line in screen(app)) is not there:
            assert time.monotonic() < deadline, screen(app)
            await asyncio.sleep(0.05)

    async def play() -> None:
        address = f"127.0.0.1:{free_port()}"
        app = Top(Feed(ExporterClient(Access(address, timeout_s=5.0)), 0.2))
        async with app.run_test(size=(120, 24)):
            await until(app, f"cannot reach http://{address}: Connection refused")
            for _ in range(2):
                with serving(answer, [address]):
                    app.action_retry()
                    await until(app, "7 by process")
                    await until(app, "cannot reach", there=False)
                await until(app, "cannot reach")
                assert len(rows_of(app)) == 7

    asyncio.run(play())


def test_every_key_has_its_method() -> None:
    """Of the table of keys."""
    for key in KEYS:
        assert not key.action or callable(getattr(Top, f"action_{key.action}"))
