"""Walk over random machines with all mechanisms mixed, and check the laws of memory after every step.

Allocation, compaction, CMA, migration, hardware errors and memory_failure, drawn from one seed. Every machine takes
some steps, then the next one boots. Where a law breaks the machine, the seed and the step are printed, and the exit
status is 1.

    python scripts/walk_the_laws.py [--steps 100000] [--seed 0] [--machine 7.3-7 ...]
"""

import sys
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.mechanisms.walks import MACHINES, Walk

MOST_REFUSED = 0.3


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--steps", default=100_000, show_default=True, help="Steps in all.")
@click.option("--seed", default=0, show_default=True, help="Of the first machine; each further one has the next.")
@click.option("--per-machine", default=1000, show_default=True, help="Steps on each machine.")
@click.option("--machine", "names", multiple=True, type=click.Choice(list(MACHINES)), help="All if not given.")
def main(steps: int, seed: int, per_machine: int, names: tuple[str, ...]) -> None:
    counts: Counter[str] = Counter()
    began, done = time.perf_counter(), 0
    for name in cycle(names or MACHINES):
        if done >= steps:
            break
        walk = Walk(MACHINES[name], seed)
        try:
            walk.run(min(per_machine, steps - done))
        except Exception as error:
            print(f"BROKEN: machine {name}, seed {seed}, step {walk.n_steps} ({walk.last}), after {done} steps")
            print(f"{type(error).__name__}: {error}")
            sys.exit(1)
        counts.update(walk.counts)
        done, seed = done + walk.n_steps, seed + 1
    refused = counts["refused"] / max(done, 1)
    print(f"{done} steps in {time.perf_counter() - began:.0f} s, seeds up to {seed - 1}: all laws hold after each")
    print(f"machines: {', '.join(names or MACHINES)}; {refused:.1%} of the steps were refused and changed nothing")
    for what, number in sorted(counts.items()):
        print(f"{what}: {number}")
    if refused > MOST_REFUSED:
        print(f"IDLE: more than {MOST_REFUSED:.0%} were refused")
        sys.exit(1)


if __name__ == "__main__":
    main()
