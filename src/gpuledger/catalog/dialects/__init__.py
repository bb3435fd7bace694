"""The same tick under the names of other exporters, so that dashboards and alerts written for them go on working.

`table.py` names all dialects. A module a dialect holds its families; `holders.py` and `division.py` say whose a
device is and how much of it is whose.
"""

from gpuledger.catalog.dialects.table import DIALECTS, Choices, Dialect, speak

__all__ = ["DIALECTS", "Choices", "Dialect", "speak"]
