"""Compare the compiled page allocator with its slow twin (tests/reference) on random machines.

After each operation the page that it gave and all counters are compared, after some hundreds everything. Where they
differ the machine is built again and compared in full after each operation; what led to the difference is printed, and
the exit status is 1.

    python scripts/compare_with_twin.py [--operations 1000000] [--seed 0] [--kernel 6.12.117 ...]
"""

import sys
import time
from itertools import islice
from pathlib import Path
from random import Random

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.reference.allocator_drawn import draw_machine
from tests.reference.allocator_nodes import KERNELS
from tests.reference.allocator_steps import DifferenceError, Pair, random_steps

WHOLE_EVERY = 250


def random_machine(seed: str, kernel: str) -> tuple[Pair, Random]:
    """The machine of a seed, and what draws its steps."""
    random = Random(seed)
    return Pair(draw_machine(random, kernel)), random


def run_machine(seed: str, kernel: str, n_operations: int, whole_every: int) -> Pair:
    """Take that many steps on a random machine."""
    pair, random = random_machine(seed, kernel)
    try:
        for number, step in enumerate(islice(random_steps(random, pair), n_operations), 1):
            pair.take(step, whole=number % whole_every == 0 or number == n_operations)
    except Exception as error:
        error.add_note(f"after {len(pair.steps)} operations")
        raise
    return pair


def show_difference(seed: str, kernel: str, n_operations: int) -> None:
    """Find the difference again at the first operation that leads to it, and print the machine and its history."""
    pair, random = random_machine(seed, kernel)
    print(pair.drawn)
    try:
        for step in islice(random_steps(random, pair), n_operations):
            pair.take(step, whole=True)
    except DifferenceError as difference:
        print(*pair.steps, sep="\n")
        print(f"{len(pair.steps)} operations: {difference}")


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--operations", default=1_000_000, show_default=True, help="Operations in all.")
@click.option("--seed", default=0, show_default=True, help="Of the random machines and operations.")
@click.option("--per-machine", default=2000, show_default=True, help="Operations on each machine.")
@click.option("--kernel", "kernels", multiple=True, type=click.Choice(list(KERNELS)), help="All if not given.")
def main(operations: int, seed: int, per_machine: int, kernels: tuple[str, ...]) -> None:
    kernels = kernels or tuple(KERNELS)
    done, start = dict.fromkeys(kernels, 0), time.perf_counter()
    for number in range(-(-operations // per_machine)):
        kernel, name = kernels[number % len(kernels)], f"{seed}/{number}"
        try:
            run_machine(name, kernel, per_machine, WHOLE_EVERY)
        except DifferenceError:
            print(f"DIFFERS: kernel {kernel}, machine {name}")
            show_difference(name, kernel, per_machine)
            sys.exit(1)
        done[kernel] += per_machine
    total = sum(done.values())
    print(f"{total} operations, {total / (time.perf_counter() - start):.0f} a second, no difference")
    print(*(f"{kernel}: {n_operations}" for kernel, n_operations in done.items()), sep="\n")


if __name__ == "__main__":
    main()
