"""What the counted events cost: machines with their numbers, the copy cost model, and its fit to measurements.

```
machines.toml -> machines (checked by machine_file) -> model: counts x machine -> ns
                                 ^
   published, a host's times -> calibrate
```
`memmodel.cost.calibrate` is not imported here: a model run needs no fit.
"""

from memmodel.cost.machines import DIRECTIONS, Machine, load_machine, machine_names
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
from memmodel.cost.published import PublishedCell, published_copy_table

__all__ = [
    "DIRECTIONS",
    "CopyCounts",
    "CopyTime",
    "Machine",
    "PublishedCell",
    "clear_ns",
    "direction_codes",
    "engine_cycles",
    "load_machine",
    "machine_names",
    "price",
    "published_copy_table",
    "stretch_ns",
    "throughput_gib_per_s",
]
