"""From text to memory: small captures of real machines, and a made-up dump of 16 GiB."""

import tempfile
from pathlib import Path

import memmodel as mm
from memmodel.sources.freelists import write_free_lists
from memmodel.sources.procfs import parse_buddyinfo
from memmodel.state.placement import place

from . import RunOnce, half_free, need_memory, one_zone, warm_kernels

FOLDER = Path(__file__).parents[2] / "tests" / "data"
CAPTURES = ["gt_snap_612.txt.xz", "gt_snap_73_pb7.txt.xz", "snap_612_x86", "snap_73_arm64_16k", "snap_73_two_nodes"]


class Capture(RunOnce):
    """Files of a real machine: a dump of the free lists, kpageflags with /proc text, /proc text alone."""

    params = (
        ["gt_snap_612.txt.xz", "gt_snap_73_pb7.txt.xz", "snap_612_x86", "snap_73_arm64_16k", "snap_73_two_nodes"],
    )
    param_names = ("capture",)

    def setup(self, capture):
        warm_kernels()
        self.path = FOLDER / capture
        if not self.path.exists():
            raise NotImplementedError(f"{self.path} is not there")
        self.snapshot = mm.read_snapshot(self.path)

    def time_read_snapshot(self, capture):
        mm.read_snapshot(self.path)

    def time_from_snapshot(self, capture):
        mm.PhysicalMemory.from_snapshot(self.snapshot)


class MadeUp(RunOnce):
    """A large machine, half of its single pages free at random, as the files that a user could have of it."""

    params = (["buddyinfo and pagetypeinfo", "dump"],)
    param_names = ("files",)
    size = "16GiB"

    def setup(self, files):
        self.folder = tempfile.TemporaryDirectory(prefix="memmodel-bench-")
        warm_kernels()
        need_memory(6 << 30)
        mem = one_zone(self.size)
        half_free(mem)
        texts = mem.to_procfs()
        self.paths = [Path(self.folder.name, name) for name in texts]
        for path in self.paths:
            path.write_text(texts[path.name])
        self.snapshot = mm.read_snapshot(*self.paths)
        if files == "dump":
            self.paths = [Path(self.folder.name, "gt_snap.txt")]
            write_free_lists(self.paths[0], [place(self.snapshot).free_lists])
            self.snapshot = mm.read_snapshot(*self.paths)

    def teardown(self, files):
        self.folder.cleanup()

    def time_read_snapshot(self, files):
        mm.read_snapshot(*self.paths)

    def time_from_snapshot(self, files):
        mm.PhysicalMemory.from_snapshot(self.snapshot)


class Buddyinfo:
    """A buddyinfo of 64 nodes: what a monitor's archive holds by the thousand."""

    def setup(self):
        row = " ".join(f"{n:6}" for n in range(11))
        self.text = "".join(
            f"Node {node}, zone {zone:>8} {row}\n" for node in range(64) for zone in ("DMA32", "Normal")
        )

    def time_parse(self):
        parse_buddyinfo(self.text, "buddyinfo")
