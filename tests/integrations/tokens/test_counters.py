"""Token counters of each kind of server, as the servers write them."""

from __future__ import annotations

import pytest

from gpuledger.integrations.exposition import Parser
from gpuledger.integrations.tokens.counters import MOST_MODELS, read_counts
from gpuledger.model import TokenCounts

VLLM = """# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1200.0
vllm:prompt_tokens_total{engine="1",model_name="meta-llama/Llama-3.1-8B"} 300.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 80.0
vllm:generation_tokens_total{engine="1",model_name="meta-llama/Llama-3.1-8B"} 20.0
"""
SGLANG = """sglang:prompt_tokens_total{model_name="Qwen/Qwen3",tp_rank="0"} 8.128902e+06
sglang:generation_tokens_total{model_name="Qwen/Qwen3",tp_rank="0"} 7.557572e+06
"""
TGI = """# TYPE tgi_request_input_length histogram
tgi_request_input_length_bucket{le="+Inf"} 3
tgi_request_input_length_sum 512
tgi_request_input_length_count 3
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="+Inf"} 3
tgi_request_generated_tokens_sum 96
tgi_request_generated_tokens_count 3
"""
TRITON = """# TYPE nv_llm_input_token_len histogram
nv_llm_input_token_len_sum{model="tensorrt_llm",response_metric_type="total_input_tokens",version="1"} 700
# TYPE nv_llm_output_token_len histogram
nv_llm_output_token_len_sum{model="tensorrt_llm",response_metric_type="total_output_tokens",version="1"} 70
"""
TRITON_VLLM = (
    'vllm:prompt_tokens_total{model="phi",version="1"} 5\nvllm:generation_tokens_total{model="phi",version="1"} 6\n'
)
DYNAMO = """# TYPE dynamo_frontend_input_sequence_tokens histogram
dynamo_frontend_input_sequence_tokens_sum{model="Qwen/Qwen3"} 900
# TYPE dynamo_frontend_output_tokens_total counter
dynamo_frontend_output_tokens_total{model="Qwen/Qwen3"} 90
"""


def counts(text: str) -> tuple[TokenCounts, ...]:
    """The tokens in a scrape."""
    parser = Parser()
    parser.feed(text.encode())
    return read_counts(parser.end())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, TokenCounts("vllm", "meta-llama/Llama-3.1-8B", 1500, 100)),
        (SGLANG, TokenCounts("sglang", "Qwen/Qwen3", 8_128_902, 7_557_572)),
        (TGI, TokenCounts("tgi", "", 512, 96)),
        (TRITON, TokenCounts("triton", "tensorrt_llm", 700, 70)),
        (TRITON_VLLM, TokenCounts("vllm", "phi", 5, 6)),
        (DYNAMO, TokenCounts("dynamo", "Qwen/Qwen3", 900, 90)),
    ],
    ids=["vllm", "sglang", "tgi", "triton", "triton with vllm", "dynamo"],
)
def test_each_kind_of_server(text: str, expected: TokenCounts) -> None:
    """Prompt and output tokens are read from each, summed over its ranks."""
    assert counts(text) == (expected,)


def test_a_worker_is_not_counted_twice() -> None:
    """Where a process exposes the counters of its engine and of Dynamo's frontend, the engine's count."""
    assert [count.engine for count in counts(VLLM + DYNAMO)] == ["vllm"]


def test_what_is_no_count_is_ignored() -> None:
    """A tenant's server may write anything: NaN, infinity, negative and huge numbers do not count."""
    values = ("NaN", "+Inf", "-1", "1e300", "1.1e15")
    bad = [f'vllm:generation_tokens_total{{model_name="{value}"}} {value}\n' for value in values]

    assert counts("".join(bad) + "other 1\n") == ()


def test_names_are_bounded_and_harmless() -> None:
    """No control characters, no endless names, and no endless number of models; the rest is summed."""
    many = [f'vllm:generation_tokens_total{{model_name="m{n}"}} 1\n' for n in range(MOST_MODELS + 10)]
    evil = 'vllm:generation_tokens_total{model_name="a\\n\x1b[31m' + "x" * 5000 + '"} 1\n'

    found = counts("".join(many))
    assert len(found) == MOST_MODELS + 1
    assert sum(count.output for count in found) == MOST_MODELS + 10
    (name,) = [count.model for count in counts(evil)]
    assert name.isprintable()
    assert len(name) == 200
