"""`/api/v1`: what it answers is what it says it answers."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuledger.books import Books
from gpuledger.model import Driver, Tick
from gpuledger.model.problem import Problem
from gpuledger.recording.replay import Replay
from gpuledger.web import api as module
from gpuledger.web.api import ROOT, describe
from gpuledger.web.parts import inflated
from gpuledger.web.streams import RETRY, Stream
from tests.builders import World
from tests.web.asked import Asked, node
from tests.web.snapshot.nodes import HOSTILE

DESCRIPTION: dict[str, Any] = json.loads(
    describe("openapi.json", (Path(module.__file__).parent / "openapi.json").read_text())
)
FIRST: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "openapi_v1.json").read_text())
"""The description as first published: clients were written against it. Fingerprints are those of file version 2."""
DEMO = Path(__file__).parents[2] / "src" / "gpuledger" / "demo.jsonl.gz"


def demo() -> list[Tick]:
    """The bundled recording."""
    replay, books = Replay(DEMO, paced=False), Books()
    return [books.book(replay.read()) for _ in range(40)]


def silent() -> list[Tick]:
    """A driver that says little."""
    world, books = World(), Books()
    return [books.book(world.tick(7, energy_mj=None, samples=False)) for _ in range(3)]


WORLDS: dict[str, Callable[[], list[Tick]]] = {
    "demo": demo,
    "troubled": node,
    "hostile": lambda: node(names=(HOSTILE, "\udcff", "")),
    "silent": silent,
    "no driver": lambda: [Tick(1, Driver(up=False, problem=Problem("Driver Not Loaded")))],
}


def strict(schema: Any) -> Any:
    """The same schema, in which a field that is not described is an error."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in made and "type" in made:
        made["additionalProperties"] = False
    return made


def validator(path: str) -> jsonschema.Draft202012Validator:
    """For the response of a path; unknown fields are errors."""
    return validator_of(strict(copy.deepcopy(DESCRIPTION)), path)


def validator_of(described: dict[str, Any], path: str) -> jsonschema.Draft202012Validator:
    """For the response of a path in a description."""
    schema = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": described["components"]})


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["snapshot", "history", "fingerprints", "", "openapi.json"])
def test_answers_are_as_described(world: str, name: str) -> None:
    """Every field of every answer is in the description, with its type; there is no other."""
    told = Asked(*WORLDS[world]()).json(name)

    if name == "openapi.json":
        assert told == DESCRIPTION
    else:
        validator(f"{ROOT}/{name}").validate(told)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["snapshot", "history", "fingerprints", ""])
def test_clients_of_the_first_description_still_work(world: str, name: str) -> None:
    """Responses validate against the first published schema; fields may have been added."""
    validator_of(FIRST, f"{ROOT}/{name}").validate(Asked(*WORLDS[world]()).json(name))


def test_every_described_field_remains() -> None:
    """No field of the first description is gone, and its type is the same or narrower."""
    first, now = FIRST["components"]["schemas"], DESCRIPTION["components"]["schemas"]

    for name in ("Snapshot", "Problem", "Gpu", "Process", "Container", "Fingerprints", "Scaling"):
        assert first[name]["properties"].keys() <= now[name]["properties"].keys()


def test_scaling_is_as_described() -> None:
    """Where there is a driver."""
    validator(f"{ROOT}/scaling").validate(Asked(*silent()).json("scaling"))


def test_every_path_is_described() -> None:
    """And every path that is described is there; the index names them all."""
    asked = Asked(*silent())
    real = {path for path in asked.app._pages if path.startswith("/api/")}

    assert set(DESCRIPTION["paths"]) == real
    assert {one["path"] for one in asked.json("")["resources"]} == real
    assert all(set(item) == {"get"} for item in DESCRIPTION["paths"].values())


def test_a_snapshot_is_encoded_once() -> None:
    """Once for all requests and streams of a tick; nothing is encoded without a request."""
    asked = Asked(*silent())
    assert asked.api._cached == {}
    first = asked.api._newest()
    picture = asked.json("snapshot")

    assert asked.api._newest() is first
    assert first is not None
    assert json.loads(b"".join(inflated([first]))) == picture
    asked.api.publish(silent()[0])
    assert asked.api._newest() is not first


def test_fingerprints_are_encoded_once() -> None:
    """Once a tick, however many clients read them: a thousand take 14 ms."""
    asked = Asked(*silent())
    parts = []
    for _ in range(2):
        asked.get("fingerprints")
        parts.append(asked.api._cached["/api/v1/fingerprints", None][1])

    assert parts[0] is parts[1]


def test_the_history_is_written_once_a_tick() -> None:
    """However many ask for it at once, and anew when there is more."""
    first, second = node()[:2]
    asked = Asked(first)

    parts = []
    for _ in range(2):
        asked.get("history")
        parts.append(asked.api._cached["/api/v1/history", None][1])
    assert parts[0] is parts[1]
    asked.api.publish(second)
    assert len(asked.json("history")["gpus"]["times"]) == 2


def test_compressed_on_request() -> None:
    """And not to be stored by caches."""
    asked = Asked(*silent())
    packed = asked.get("snapshot", accept_encoding="gzip")

    assert gzip.decompress(bytes(packed.body)) == asked.get("snapshot").body  # type: ignore[arg-type]
    assert dict(packed.headers) | {"Content-Encoding": "gzip", "Cache-Control": "no-store"} == dict(packed.headers)


def test_before_the_first_tick() -> None:
    """There is no picture yet, and an empty past."""
    asked = Asked()

    assert (asked.get("snapshot").status, asked.get("fingerprints").status) == (503, 503)
    assert asked.json("history")["gpus"]["times"] == []


def test_watts_are_smooth() -> None:
    """Taken over the last seconds, not from one tick to the next."""
    world, books = World(), Books()
    ticks = [books.book(world.tick(7, mj=mj, work={7: 50})) for mj in [0, *[50_000, 150_000] * 10]]
    asked = Asked(*ticks)

    (process,) = asked.json("snapshot")["processes"]
    assert process["watts"] == pytest.approx(100, abs=20)


def test_events_are_pictures() -> None:
    """The stream has the last tick at once, as the snapshot has it; it is not kept open for HEAD."""
    asked = Asked(*silent())
    answer = asked.get("events")
    assert isinstance(answer.body, Stream)
    greeting, *event = islice(answer.body, 4)

    assert (answer.live, dict(answer.headers)["Content-Type"]) == (True, "text/event-stream")
    assert greeting == b"".join(inflated([RETRY]))
    assert json.loads(b"".join(event).removeprefix(b"data: ")) == asked.json("snapshot")
    assert asked.get("events", "HEAD").body == b""
    assert asked.api.streams.open == 1
    asked.api.close()
    assert list(answer.body) == [greeting]


@pytest.mark.parametrize(("connections", "streams"), [(64, 16), (1000, 16), (8, 2), (3, 0)])
def test_streams_leave_connections_to_scrapers(connections: int, streams: int) -> None:
    """A quarter of the connections at most; further clients get 503 and may poll the snapshot."""
    asked = Asked(*silent(), max_connections=connections)
    answers = [asked.get("events") for _ in range(streams + 1)]

    assert [answer.status for answer in answers] == [200] * streams + [503]
    assert dict(answers[-1].headers)["Retry-After"] == "10"
