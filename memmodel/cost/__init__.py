"""What the counted events cost: machines with their numbers, the copy cost model, and its fit to measurements.

```
machines.toml -> machines (checked by machine_file) -> model: copies x machine -> ns
                                 ^                        migration, offload: moves by phase -> ns -> waiting
   published, a host's times -> calibrate                 demotion: two rates, as a fluid and THP by THP
```
`memmodel.cost.calibrate` and `calibrate_migration` are not imported here: a model run needs no fit. `tlb_batch` needs
no machine.
"""

from memmodel.cost.machines import DIRECTIONS, Machine, load_machine, machine_names
from memmodel.cost.migration import MigrationCounts, MigrationTime, pages_per_s, price_migration
from memmodel.cost.model import (
    CopyCounts,
    CopyTime,
    clear_ns,
    direction_codes,
    engine_cycles,
    price,
    stretch_ns,
    throughput_gib_per_s,
)
from memmodel.cost.offload import DmaChannels, Threads
from memmodel.cost.published import PublishedCell, published_copy_table
from memmodel.cost.waiting import (
    FolioPhases,
    WaiterTime,
    bandwidth_share,
    folio_phases,
    receivers_ns,
    waiter_ns,
)

__all__ = [
    "DIRECTIONS",
    "CopyCounts",
    "CopyTime",
    "DmaChannels",
    "FolioPhases",
    "Machine",
    "MigrationCounts",
    "MigrationTime",
    "PublishedCell",
    "Threads",
    "WaiterTime",
    "bandwidth_share",
    "clear_ns",
    "direction_codes",
    "engine_cycles",
    "folio_phases",
    "load_machine",
    "machine_names",
    "pages_per_s",
    "price",
    "price_migration",
    "published_copy_table",
    "receivers_ns",
    "stretch_ns",
    "throughput_gib_per_s",
    "waiter_ns",
]
