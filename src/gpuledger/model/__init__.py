"""The immutable records that flow between stages. Names of numbers end with the unit.

`None` means that the GPU or driver does not report a value.
"""

from gpuledger.model.owners import EVIDENCE as EVIDENCE
from gpuledger.model.owners import MPS_OF_ROOT as MPS_OF_ROOT
from gpuledger.model.owners import MPS_OF_USER as MPS_OF_USER
from gpuledger.model.owners import NOBODY as NOBODY
from gpuledger.model.owners import OUTSIDE as OUTSIDE
from gpuledger.model.owners import SHORT_ID as SHORT_ID
from gpuledger.model.owners import Allocation as Allocation
from gpuledger.model.owners import Facts as Facts
from gpuledger.model.owners import Holder as Holder
from gpuledger.model.owners import HostUse as HostUse
from gpuledger.model.owners import Owner as Owner
from gpuledger.model.owners import Owners as Owners
from gpuledger.model.owners import ProviderHealth as ProviderHealth
from gpuledger.model.owners import job_id as job_id
from gpuledger.model.readings import DIVIDED as DIVIDED
from gpuledger.model.readings import NO_INDEX as NO_INDEX
from gpuledger.model.readings import Account as Account
from gpuledger.model.readings import Accounting as Accounting
from gpuledger.model.readings import Activity as Activity
from gpuledger.model.readings import ActivityPart as ActivityPart
from gpuledger.model.readings import Device as Device
from gpuledger.model.readings import Driver as Driver
from gpuledger.model.readings import Labelled as Labelled
from gpuledger.model.readings import MemoryAccount as MemoryAccount
from gpuledger.model.readings import Percentages as Percentages
from gpuledger.model.readings import Reading as Reading
from gpuledger.model.readings import Resident as Resident
from gpuledger.model.readings import Sample as Sample
from gpuledger.model.readings import Slot as Slot
from gpuledger.model.tick import BUSY as BUSY
from gpuledger.model.tick import IDLE_REASONS as IDLE_REASONS
from gpuledger.model.tick import LOW as LOW
from gpuledger.model.tick import NO_PROCESS as NO_PROCESS
from gpuledger.model.tick import PARKED as PARKED
from gpuledger.model.tick import UNKNOWN_STATE as UNKNOWN_STATE
from gpuledger.model.tick import AllocationUse as AllocationUse
from gpuledger.model.tick import ContainerUse as ContainerUse
from gpuledger.model.tick import DcgmHealth as DcgmHealth
from gpuledger.model.tick import DcgmStats as DcgmStats
from gpuledger.model.tick import Health as Health
from gpuledger.model.tick import JournalHealth as JournalHealth
from gpuledger.model.tick import Learned as Learned
from gpuledger.model.tick import LearnedBehaviour as LearnedBehaviour
from gpuledger.model.tick import OtlpHealth as OtlpHealth
from gpuledger.model.tick import ProcessUse as ProcessUse
from gpuledger.model.tick import Stage as Stage
from gpuledger.model.tick import Tick as Tick
from gpuledger.model.tick import Upstream as Upstream
from gpuledger.model.tokens import PhaseEnergy as PhaseEnergy
from gpuledger.model.tokens import TokenCounts as TokenCounts
from gpuledger.model.tokens import TokenRates as TokenRates
from gpuledger.model.tokens import TokenServer as TokenServer
