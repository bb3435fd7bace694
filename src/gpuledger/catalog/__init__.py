"""Every metric, declared once: name, type, unit, help, origin, labels and where its value comes from.

docs/metrics.md, the renderers and the tests all read this table. A family belongs to one kind of thing
(the exporter, a GPU, a MIG instance, a process); the labels of that kind come first on each of its series.
"""

from gpuledger.catalog.family import Family, Kind, Moment, Of, Series, Type, Value
from gpuledger.catalog.table import CATALOG, things

__all__ = ["CATALOG", "Family", "Kind", "Moment", "Of", "Series", "Type", "Value", "things"]
