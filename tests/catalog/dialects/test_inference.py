"""Listed and inferred memory of containers, under the names and labels of exporters that infer."""

from __future__ import annotations

from gpuledger.catalog.dialects import Choices, families_of
from gpuledger.model import ContainerUse, Device, Driver, Holder, MemoryAccount, Owner, Owners, Reading, Tick
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

GPU = Device(0, "GPU-1")
CUT = Device(1, "GPU-2")
MIGS = tuple(Device(1, f"MIG-{n}", parent_uuid="GPU-2", gpu_instance_id=n) for n in (1, 2))


def test_listed_and_inferred() -> None:
    """A listed container, a candidate for unlisted memory, one on two MIG instances, and one with access only."""
    told, hidden, cut = Owner("web", "aaaaaaaa"), Owner("ollama", "bbbbbbbb"), Owner("train", "cccccccc")
    waiting = Owner("notebook", "eeeeeeee")
    holders = (Holder(GPU, hidden, "maps"), Holder(GPU, told, "allocation"), Holder(GPU, waiting, "allocation"))
    tick = Tick(
        1,
        Driver(up=True),
        (
            Reading(GPU, memory_total_bytes=100, memory_used_bytes=60, memory_free_bytes=40),
            Reading(CUT),
        ),
        memory={
            GPU.uuid: MemoryAccount(known_bytes=20, unknown_bytes=40, inferred_bytes=40, candidates=1),
            CUT.uuid: MemoryAccount(known_bytes=3, unknown_bytes=7),
        },
        containers=(
            ContainerUse(GPU, told, 1, 20, None),
            ContainerUse(GPU, hidden, 0, None, None, inferred_bytes=40),
            *(ContainerUse(mig, cut, 1, n, None) for n, mig in enumerate(MIGS, 1)),
            ContainerUse(GPU, Owner("gone", "dddddddd"), 0, None, None),
        ),
        owners=Owners(holders=holders),
    )  # fmt: skip

    body = b"".join(Renderer(families_of(["inference"], Choices())).chunks(tick, Format.TEXT)).decode()

    assert [line for line in body.splitlines() if not line.startswith("#")] == [
        'container_gpu_memory_bytes{container_name="web",container_id="aaaaaaaa",gpu="0",method="nvidia-smi"} 20',
        'container_gpu_memory_bytes{container_name="ollama",container_id="bbbbbbbb",gpu="0",method="inference"} 40',
        'container_gpu_memory_bytes{container_name="train",container_id="cccccccc",gpu="1",method="nvidia-smi"} 3',
        'container_gpu_detected{container_name="web",container_id="aaaaaaaa",gpu="0"} 1',
        'container_gpu_detected{container_name="train",container_id="cccccccc",gpu="1"} 1',
        'container_gpu_detected{container_name="ollama",container_id="bbbbbbbb",gpu="0"} 1',
        'container_gpu_detected{container_name="notebook",container_id="eeeeeeee",gpu="0"} 1',
        'gpu_memory_total_bytes{gpu="0"} 100',
        'gpu_memory_used_bytes{gpu="0"} 60',
        'gpu_memory_free_bytes{gpu="0"} 40',
        'gpu_memory_known_bytes{gpu="0"} 20',
        'gpu_memory_known_bytes{gpu="1"} 3',
        'gpu_memory_unknown_bytes{gpu="0"} 40',
        'gpu_memory_unknown_bytes{gpu="1"} 7',
        'gpu_inference_active{gpu="0"} 1',
        'gpu_inference_active{gpu="1"} 1',
        'gpu_inference_candidates{gpu="0"} 1',
        'gpu_inference_candidates{gpu="1"} 0',
    ]
