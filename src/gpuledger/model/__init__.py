"""The records that stages pass on: frozen, with integers that have their unit in the name.

`None` means that the GPU or driver does not report a value; no default stands in for it.
"""

from gpuledger.model.owners import EVIDENCE, NOBODY, OUTSIDE, Facts, Granted, Holder, Owner, Owners, ProviderHealth
from gpuledger.model.readings import (
    Account,
    Accounting,
    Activity,
    Device,
    Driver,
    Labelled,
    MemoryAccount,
    Reading,
    Resident,
    Sample,
)
from gpuledger.model.tick import (
    ContainerUse,
    DcgmHealth,
    DcgmStats,
    Health,
    JournalHealth,
    Learned,
    LearnedBehaviour,
    ProcessUse,
    Stage,
    Tick,
    Upstream,
)

__all__ = [
    "EVIDENCE",
    "NOBODY",
    "OUTSIDE",
    "Account",
    "Accounting",
    "Activity",
    "ContainerUse",
    "DcgmHealth",
    "DcgmStats",
    "Device",
    "Driver",
    "Facts",
    "Granted",
    "Health",
    "Holder",
    "JournalHealth",
    "Labelled",
    "Learned",
    "LearnedBehaviour",
    "MemoryAccount",
    "Owner",
    "Owners",
    "ProcessUse",
    "ProviderHealth",
    "Reading",
    "Resident",
    "Sample",
    "Stage",
    "Tick",
    "Upstream",
]
