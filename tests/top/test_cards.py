"""What stands above the table."""

from __future__ import annotations

from gpuledger.top.cards import Screen, gpu_lines, problems, title
from gpuledger.top.charts import charts
from gpuledger.top.history import LONGEST, History, Point
from gpuledger.top.line import ASCII, UNICODE, text_of
from gpuledger.top.seen import Seen
from gpuledger.view.snapshot import Picture
from tests.top.pictures import GIB, NOW, busy, gpu, memory, picture, process, seen

SMALL, LARGE = Screen(80, ASCII), Screen(200, UNICODE)


def cards(shown: Seen, screen: Screen = SMALL, rows: int = 8) -> list[str]:
    """The GPUs as text."""
    return [text_of(line).rstrip() for line in gpu_lines(shown, shown.gpus, screen, rows)]


def test_a_card() -> None:
    """Who, memory against all of it, load, power against its limit, heat."""
    assert cards(seen(picture(gpu(), node="n")))[:3] == [
        "GPU 0  NVIDIA H200  50C",
        "  mem   ......................................................  80.0 / 160.0 GiB",
        "  busy  ############............  50 %   power ###########...........  350/700 W",
    ]


def test_many_gpus_are_a_line_each() -> None:
    """Eight fit above the table of a small screen."""
    lines = cards(seen(picture(*(gpu(n) for n in range(8)))))

    assert len(lines) == 8
    assert lines[7].startswith("7  ")
    assert "80.0/160.0G  50% 350/700 W  50C" in lines[7]


def test_more_gpus_than_rows_are_counted() -> None:
    """And how to see them."""
    lines = cards(seen(picture(*(gpu(n) for n in range(16)))))

    assert len(lines) == 8
    assert lines[-1] == "9 more GPUs and instances; [ and ] choose one"


def test_cards_give_way_on_request_and_on_narrow_screens() -> None:
    """One line each."""
    shown = seen(picture(gpu()))

    assert len(cards(shown, Screen(80, ASCII, compact=True))) == 1
    assert len(cards(shown, Screen(50, ASCII))) == 1


def test_what_is_wrong_with_a_gpu_is_on_its_card() -> None:
    """Slowed down, errors, memory that is inferred or unknown; a clock that is low for nothing is no news."""
    shown = seen(busy())
    text = "\n".join(cards(shown))

    assert "XID 79  slowed: hw slowdown" in text
    assert "idle" not in text
    assert "~4.00 inferred  2.00 unknown" in text
    assert "XID 79" in "\n".join(cards(shown, Screen(80, ASCII, compact=True)))


def test_a_gpu_that_does_not_answer_says_why() -> None:
    """As a card and as a line."""
    shown = seen(picture(gpu(up=False, reason="GPU is lost")))

    assert cards(shown) == ["GPU 0  NVIDIA H200  50C", "  GPU is lost", ""]
    assert cards(shown, Screen(50, ASCII)) == ["0  GPU is lost"]


def test_a_gpu_that_says_nothing_has_no_zeros() -> None:
    """Dashes."""
    lines = cards(seen(picture(gpu(memory={}, utilization_ratio=None, power_watts=None, temperatures_celsius={}))))

    assert "- / - GiB" in lines[1]
    assert "- %" in lines[2]
    assert "-/700 W" in lines[2]


def test_instances_have_their_profile() -> None:
    """So that they can be told from their GPU."""
    lines = cards(seen(picture(gpu(uuid="MIG-1", mig_profile="1g.10gb"))), Screen(80, ASCII, compact=True))

    assert lines[0].startswith("0/1g.10gb ")


def test_no_gpu_is_said() -> None:
    """Unless the driver is down, which says more."""
    down = {"up": False, "reason": "no library"}

    assert cards(seen(picture())) == ["no GPU"]
    assert cards(seen(picture(driver=down))) == []


def test_the_title_says_what_is_looked_at() -> None:
    """A recording is called one."""
    shown = seen(picture(gpu(), recording=True))

    text = text_of(title(shown, LARGE, where="http://n1:9400", every="every 2s"))
    assert text.startswith("gpuledger 1.2.3  RECORDING  n1  ")
    assert text.endswith("every 2s  http://n1:9400  driver 580.1  CUDA 13.0")
    assert "RECORDING" not in text_of(title(seen(picture(gpu())), LARGE))
    assert text_of(title(seen(picture(time=1e17)), LARGE)).startswith("gpuledger 1.2.3  n1  driver")


def test_all_that_is_wrong_has_a_line() -> None:
    """Lost, names missing with what to do, processes not shown; what is merely worth knowing has none."""
    wrong = [
        {"level": "problem", "about": "docker", "what": "permission denied", "fix": "join its group"},
        {"level": "warning", "about": "GPU 0", "what": "reported XID 79", "fix": ""},
        {"level": "note", "about": "processes", "what": "many", "fix": "raise it"},
    ]
    two = [process(1), process(2, active=False)]
    shown = seen(picture(gpu(), processes=two, problems=wrong, dropped_processes=7000, process_count=8))

    assert [text_of(line) for line in problems(shown, LARGE, "cannot reach it")] == [
        "cannot reach it; what was last known is shown",
        "docker: permission denied  fix: join its group",
        "GPU 0: reported XID 79",
        "7 processes are not shown one by one",
    ]
    assert [text_of(line) for line in problems(shown, LARGE, fixes=True)][:2] == [
        "docker: permission denied",
        "  fix: join its group",
    ]


def watched(*pictures: Picture) -> tuple[Seen, History]:
    """The last picture and the history of all."""
    history = History()
    for one in pictures:
        history.add(seen(one))
    return seen(pictures[-1]), history


def test_history_is_what_was_seen() -> None:
    """Each picture once, as parts of the whole."""
    first = picture(gpu(memory=memory(used_bytes=40 * GIB), utilization_ratio=None))
    second = picture(gpu(power_watts=None), time=NOW + 60)
    shown, history = watched(first, first, second)

    assert list(history.of(shown.gpus[0])) == [Point(None, 0.25, 0.5), Point(0.5, 0.5, None)]
    assert history.seconds == 60


def test_history_is_bounded_and_forgets_gpus_that_are_gone() -> None:
    """Ten minutes of one a second."""
    _, history = watched(*(picture(gpu(), time=NOW + n) for n in range(LONGEST + 50)))

    assert len(list(history.of(seen(picture(gpu())).gpus[0]))) == LONGEST
    history.add(seen(picture(time=NOW + 9999)))
    assert list(history.of(seen(picture(gpu())).gpus[0])) == []


def test_charts_are_beside_each_other() -> None:
    """With their numbers of now, and how long they go back."""
    shown, history = watched(*(picture(gpu(), gpu(1), time=NOW + n) for n in range(90)))

    lines = [text_of(line) for line in charts(shown.gpus, history, SMALL, 20)]

    assert lines[0] == "GPU 0  NVIDIA H200  last 1m29s"
    assert lines[1].split() == ["busy", "50", "%", "memory", "80.0", "/", "160.0", "GiB", "power", "350/700", "W"]
    assert len(lines) == 2 * (2 + 7 + 1)
    assert text_of(charts([], history, SMALL, 20)[0]) == "no GPU"


def test_a_wide_card_has_a_chart() -> None:
    """Of the load."""
    shown, history = watched(*(picture(gpu(utilization_ratio=n / 10), time=NOW + n) for n in range(10)))

    text = "\n".join(text_of(line) for line in gpu_lines(shown, shown.gpus, LARGE, 8, history))
    assert "▁▁▂▂▃▄▅▆▆▇  90 %" in text
