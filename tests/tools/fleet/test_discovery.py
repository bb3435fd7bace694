"""The exporters of a fleet as targets for HTTP service discovery."""

from __future__ import annotations

import json

from gpuledger.errors import PrometheusError
from gpuledger.tools.fleet.discovery import QUERY, Discovery, targets
from gpuledger.tools.prometheus.answer import Answer, Series
from gpuledger.web.http import Request

REQUEST = Request("GET", "/sd", {}, {}, "HTTP/1.1", keep_alive=True)
H200, A100 = "NVIDIA H200", "NVIDIA A100"


def info(instance: str, name: str, gpus: float) -> Series:
    """GPUs of one model on one node."""
    return Series({"instance": instance, "name": name}, gpus)


def test_a_group_for_each_exporter() -> None:
    """In order, with the number of GPUs and their models; an instance without a port gets ours."""
    found = json.loads(targets([info("b:9400", H200, 8), info("a", A100, 4), info("b:9400", A100, 2)]))

    assert found == [
        {"targets": ["a:9400"], "labels": {"__meta_gpuledger_gpus": "4", "__meta_gpuledger_gpu_models": A100}},
        {
            "targets": ["b:9400"],
            "labels": {"__meta_gpuledger_gpus": "10", "__meta_gpuledger_gpu_models": f"{A100},{H200}"},
        },
    ]


def test_a_prometheus_that_is_down() -> None:
    """503 before the first answer, so that no reader drops its targets; later the last targets stay."""
    answers: list[Answer | None] = [None, Answer((info("a:9400", H200, 1),)), None]

    def query(promql: str) -> Answer:
        assert promql == QUERY
        answer = answers.pop(0)
        if answer is None:
            raise PrometheusError("cannot reach it", "is it running?", "unreachable")
        return answer

    discovery = Discovery(query, 15.0)
    assert not discovery.step()
    first = discovery.page(REQUEST)
    assert (first.status, first.body) == (503, b"no targets: cannot reach it; is it running?\n")
    assert discovery.step()
    second = discovery.page(REQUEST)
    assert not discovery.step()
    assert second.status == 200
    assert discovery.page(REQUEST) == second
