"""Metrics of other exporters that gpuledger queries: dcgm-exporter and servers of language models."""

from __future__ import annotations

from dataclasses import dataclass

DCGM_FIELD = "DCGM_FI_"
"""Beginning of all names of dcgm-exporter."""
DCGM_UTILIZATION = f"{DCGM_FIELD}DEV_GPU_UTIL"
DCGM_MEMORY_ACTIVITY = f"{DCGM_FIELD}DEV_MEM_COPY_UTIL"
"""Names of dcgm-exporter 4.8; 4.9 has others (`dialects/dcgmnames.py`)."""
DCGM_SHARING = "gpu_sharing_info"
"""Names the pods of a shared GPU, in gpuledger's dcgm dialect."""
DYNAMO_REQUESTS = "dynamo_component_requests_total"
"""Exists for each worker of Dynamo, whose tokens only the frontend counts if their engine has no counters."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A kind of server: its counters of prompt and output tokens, and its label for the model."""

    name: str
    prompt: str
    output: str
    model: str = "model_name"
    """Some servers use another label for the model; empty if there is none."""
    is_frontend: bool = False
    """Whether the counters are those of a process in front of the servers, which has no GPU."""


ENGINES = (
    Engine("vllm", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    Engine("sglang", "sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
    Engine("tgi", "tgi_request_input_length_sum", "tgi_request_generated_tokens_sum", ""),
    Engine("triton", "nv_llm_input_token_len_sum", "nv_llm_output_token_len_sum", "model"),
    Engine("dynamo", "dynamo_frontend_input_sequence_tokens_sum", "dynamo_frontend_output_tokens_total", "model",
           is_frontend=True),
)  # fmt: skip
"""TGI counts the tokens of a request when the request ends; the other servers count while they work."""
MODEL_LABELS = ("model_name", "model")
"""Labels for the model, the best first: Triton's own vLLM backend writes `model`."""
