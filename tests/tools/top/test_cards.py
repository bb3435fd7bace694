"""The lines above the table."""

from __future__ import annotations

from gpuledger.tools.top.cards import Screen, gpu_lines, problem_lines, server_lines, title
from gpuledger.tools.top.text import ASCII, UNICODE, plain
from gpuledger.web.snapshot.schema import ServerRow, Snapshot
from tests.tools.top.sources import watched
from tests.web.snapshot.pictures import NOW, busy, gpu, picture, process, shown_as

SMALL, LARGE = Screen(columns=80, glyphs=ASCII), Screen(columns=200, glyphs=UNICODE)


def cards(shown: Snapshot, screen: Screen = SMALL, rows: int = 8) -> list[str]:
    """The GPUs as text."""
    return [plain(line).rstrip() for line in gpu_lines(shown, shown.gpus, screen, rows)]


def test_a_card() -> None:
    """Name, memory of its total, utilization, power of its limit, temperature."""
    assert cards(shown_as(picture(gpu(), node="n")))[:3] == [
        "GPU 0  NVIDIA H200  50C",
        "  mem   ......................................................  80.0 / 160.0 GiB",
        "  busy  ############............  50 %   power ###########...........  350/700 W",
    ]


def test_memory_that_is_shared_with_the_system() -> None:
    """The card says that the memory is the system's."""
    (_, memory, *_) = cards(shown_as(picture(gpu(memory={"total_bytes": 128 << 30, "used_bytes": 32 << 30,
                                                         "system_bytes": 32 << 30}))))  # fmt: skip

    assert memory.endswith("  32.0 / 128.0 GiB of the system")


def test_many_gpus_are_a_line_each() -> None:
    """Eight fit above the table of a small screen."""
    lines = cards(shown_as(picture(*(gpu(n) for n in range(8)))))

    assert len(lines) == 8
    assert lines[7].startswith("7  ")
    assert "80.0/160.0G  50% 350/700 W  50C" in lines[7]


def test_more_gpus_than_rows_are_counted() -> None:
    """And how to see them."""
    lines = cards(shown_as(picture(*(gpu(n) for n in range(16)))))

    assert len(lines) == 8
    assert lines[-1] == "9 more; choose a GPU with [ and ]"


def test_cards_give_way_on_request_and_on_narrow_screens() -> None:
    """One line each."""
    shown = shown_as(picture(gpu()))

    assert len(cards(shown, Screen(columns=80, glyphs=ASCII, compact=True))) == 1
    assert len(cards(shown, Screen(columns=50, glyphs=ASCII))) == 1


def test_what_is_wrong_with_a_gpu_is_on_its_card() -> None:
    """Slowed down, errors, memory that is inferred or unknown; a clock that is low for nothing is no news."""
    shown = shown_as(busy())
    text = "\n".join(cards(shown))

    assert "XID 79  slowed: hw slowdown" in text
    assert "idle" not in text
    assert "~4.00 inferred  2.00 unknown" in text
    assert "XID 79" in "\n".join(cards(shown, Screen(columns=80, glyphs=ASCII, compact=True)))


def test_a_gpu_that_does_not_answer_says_why() -> None:
    """As a card and as a line."""
    shown = shown_as(picture(gpu(up=False, reason="GPU is lost")))

    assert cards(shown) == ["GPU 0  NVIDIA H200  50C", "  GPU is lost", ""]
    assert cards(shown, Screen(columns=50, glyphs=ASCII)) == ["0  GPU is lost"]


def test_a_gpu_without_values_has_dashes() -> None:
    """Unknown values are not 0."""
    silent = gpu(memory={}, utilization_ratio=None, power_watts=None, temperatures_celsius={})
    lines = cards(shown_as(picture(silent)))

    assert "- / - GiB" in lines[1]
    assert "- %" in lines[2]
    assert "-/700 W" in lines[2]


def test_instances_have_their_profile() -> None:
    """They are distinguishable from their GPU."""
    lines = cards(
        shown_as(picture(gpu(uuid="MIG-1", mig_profile="1g.10gb"))), Screen(columns=80, glyphs=ASCII, compact=True)
    )

    assert lines[0].startswith("0/1g.10gb ")


def test_no_gpu_has_a_line() -> None:
    """Except while the driver is down, which has its own line."""
    down = {"up": False, "reason": "no library"}

    assert cards(shown_as(picture())) == ["no GPU"]
    assert cards(shown_as(picture(driver=down))) == []


def test_the_title_says_what_is_looked_at() -> None:
    """A recording is called one."""
    shown = shown_as(picture(gpu(), recording=True))

    text = plain(title(shown, source="http://n1:9400", interval="every 2s"))
    assert text.startswith("gpuledger 1.2.3  RECORDING  n1  ")
    assert text.endswith("every 2s  http://n1:9400  driver 580.1  CUDA 13.0")
    assert "RECORDING" not in plain(title(shown_as(picture(gpu()))))
    assert plain(title(shown_as(picture(time=1e17)))).startswith("gpuledger 1.2.3  n1  driver")


def test_all_that_is_wrong_has_a_line() -> None:
    """Lost, names missing with what to do, processes not shown; what is merely worth knowing has none."""
    wrong = [
        {"level": "problem", "about": "docker", "what": "permission denied", "fix": "join its group"},
        {"level": "warning", "about": "GPU 0", "what": "reported XID 79", "fix": ""},
        {"level": "note", "about": "processes", "what": "many", "fix": "raise it"},
    ]
    two = [process(1), process(2, active=False)]
    shown = shown_as(picture(gpu(), processes=two, problems=wrong, dropped_processes=7000, process_count=8))

    assert [plain(line) for line in problem_lines(shown, LARGE, "cannot reach it")] == [
        "cannot reach it; showing the last snapshot",
        "docker: permission denied  fix: join its group",
        "GPU 0: reported XID 79",
        "7 processes have no row",
    ]
    narrow = Screen(columns=30, glyphs=ASCII)
    assert [plain(line) for line in problem_lines(shown, narrow, rows=3)] == [
        "docker: permission denied",
        "  fix: join its group",
        "and 2 more",
    ]


def test_a_wide_card_has_a_chart() -> None:
    """Of the load."""
    shown, history = watched(*(picture(gpu(utilization_ratio=n / 10), time=NOW + n) for n in range(10)))

    text = "\n".join(plain(line) for line in gpu_lines(shown, shown.gpus, LARGE, 8, history))
    assert "▁▁▂▂▃▄▅▆▆▇  90 %" in text


def test_an_allocated_gpu_that_is_not_used() -> None:
    """Its owner, and for how long it is not used; without an idle ledger in an older exporter, without the time."""
    idle = gpu(in_use=False, allocated_to=["ml/notebook/main"])
    row = {"gpu": 0, "uuid": "GPU-0", "gpu_uuid": "GPU-0", "state": "no_process", "idle_since": NOW - 7380}
    new, old = shown_as(picture(idle, allocations=[row])), shown_as(picture(idle))

    assert "allocated to ml/notebook/main, not used for 2h03m" in cards(new, LARGE)[0]
    assert cards(old, LARGE)[0].endswith("allocated to ml/notebook/main, not used")
    line = Screen(columns=80, glyphs=ASCII, compact=True)
    assert cards(new, line)[0].endswith(" unused 2h03m")
    assert cards(old, line)[0].endswith(" unused")


def test_servers_of_language_models() -> None:
    """The busiest first, each with tokens and joules; one that is down with the reason; the rest is counted."""
    busy_server = ServerRow(
        server="ml/chat-0", owner="ml/chat-0/main", up=True, models=("llama",), output_tokens_per_second=512.0,
        prompt_tokens_per_second=2048.0, joules_per_output_token=1.2345, joules_per_token=0.24691, parked_watts=121.4,
        prefill_joules=0.1, prefill_error_joules=0.01, decode_joules=0.8, decode_error_joules=0.05,
    )  # fmt: skip
    quiet = ServerRow(server="ml/code-0", owner="ml/code-0", up=True, models=("qwen",), output_tokens_per_second=0.0)
    down = ServerRow(server="pid:7", reason="cannot reach it")
    shown = Snapshot(servers=(down, quiet, busy_server))
    screen = Screen(columns=200, glyphs=ASCII)

    phases = "prefill 0.1+-0.01 J  decode 0.8+-0.05 J"
    assert [plain(line) for line in server_lines(shown, screen, 3)] == [
        f"ml/chat-0/main  llama  512 + 2048 tokens/s  1.23 J/output token  0.247 J/token  parked 121 W  {phases}",
        "ml/code-0  qwen  0 + - tokens/s  - J/output token  - J/token  parked - W",
        "pid:7    cannot reach it",
    ]
    assert plain(server_lines(shown, screen, 2)[-1]) == "2 more servers of language models"
    assert server_lines(Snapshot(), screen, 4) == []
