"""Device trees in, outcomes of their reserved memory out: a board's whole source, of which little is about memory."""

import tempfile
from pathlib import Path

import memmodel as mm

PAGE_SIZES = ("4KiB", "16KiB", "64KiB")


def source(n_points):
    """A board with that many devices, and a reserved-memory node for each hundred of them."""
    devices = "\n".join(
        f'dev{n}: device@{n:x} {{ reg = <{n} 16>; clocks = <&clk {n} CLK_{n}>; label = "}}"; }};'
        for n in range(n_points)
    )
    pools = "\n".join(
        f'pool@{n << 22:x} {{ compatible = "shared-dma-pool"; reusable; reg = <0 {n << 22} 0 0x400000>; }};'
        for n in range(max(n_points // 100, 1))
    )
    cells = "#address-cells = <2>; #size-cells = <2>; ranges;"
    return f"/dts-v1/;\n#include <soc.dtsi>\n/ {{\n{devices}\nreserved-memory {{ {cells}\n{pools}\n}};\n}};\n"


class DeviceTree:
    """Reading a source, and asking what becomes of it at three page sizes."""

    n_points = 5000

    def setup(self):
        self.folder = tempfile.TemporaryDirectory(prefix="memmodel-bench-")
        self.path = Path(self.folder.name, "board.dts")
        self.path.write_text(source(self.n_points))
        self.tree = mm.read_device_tree(self.path)
        self.builds = [mm.Geometry(page_size=size, arch="arm64") for size in PAGE_SIZES]
        self.memory = mm.MemoryMap([(0, 4 << 30)])

    def teardown(self):
        self.folder.cleanup()

    def time_read_device_tree(self):
        mm.read_device_tree(self.path)

    def time_reserved_memory(self):
        mm.reserved_memory(self.tree, self.builds, memory=self.memory)
