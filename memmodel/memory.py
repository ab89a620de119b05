"""The user's object: one machine's physical memory, with labelled views."""

import contextlib
import hashlib
import json
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, MemmodelError
from memmodel.geometry import Geometry
from memmodel.kernels.buddy import count_blocks, count_free, free_ranges
from memmodel.mechanisms.buddy import folio_rows, whole_number
from memmodel.sources.procfs import format_buddyinfo, format_pagetypeinfo
from memmodel.sources.records import MIGRATETYPE_NAMES, Snapshot
from memmodel.state.build import (
    PfnMap,
    empty_memory,
    from_arrays,
    made_up_spans,
    overwrite,
    size_memory,
    with_contents,
)
from memmodel.state.from_placement import from_placement, geometry_of
from memmodel.state.layout import Memory, MigrateType, Params, Vmstat, ZoneType
from memmodel.state.machine import Machine
from memmodel.state.placement import place
from memmodel.state.sizing import Sysctls
from memmodel.units import parse_bytes

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["PhysicalMemory", "load"]

FORMAT = 5
UNREADABLE = (
    *(AttributeError, EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError),
    *(zipfile.BadZipFile, zlib.error),
)
MAX_NODES, MAX_CPUS, MAX_SEED = 255, 4096, (1 << 128) - 1


class Origin(NamedTuple):
    """What a memory was made from."""

    differences: tuple[str, ...] = ()
    """Where the files of its snapshot contradict each other, a line each."""
    assumed: tuple[str, ...] = ()
    """What no file gave, a line each."""
    files: Mapping[str, str] = MappingProxyType({})
    """SHA-256 of each file."""


class PhysicalMemory(Machine):
    """Physical memory of a machine as Linux sees it after boot: all free, or as `from_snapshot` found it.

    Parameters
    ----------
    geometry
        Page size, orders, features.
    size
        Of the whole machine: bytes, or text such as "4GiB"; split evenly over `nodes`.
    nodes
        NUMA nodes.
    cpus
        CPUs, each with per-CPU lists and a memory_failure queue.
    contents
        Whether pages have bytes (takes `size` bytes more).
    movablecore
        Bytes of ZONE_MOVABLE, taken from the top of the nodes.
    sysctls
        Settings of vm.*, as the kernel works them out if not given.
    seed
        Root of random numbers that are asked for without a seed (`inject_poison`); drawn and kept if not given.

    Raises
    ------
    InputError
        If the memory cannot be split so, or is larger than rows can be counted.

    Examples
    --------
    >>> import memmodel as mm
    >>> mem = mm.PhysicalMemory(mm.Geometry(), size="64MiB")
    >>> folios = mm.alloc_pages(mem, order=9, count=2)
    >>> mem.pfn(folios)
    array([4096, 4608])
    """

    def __init__(  # noqa: PLR0913 - a machine, by keyword only
        self,
        geometry: Geometry,
        size: int | str,
        *,
        nodes: int = 1,
        cpus: int = 1,
        contents: bool = False,
        movablecore: int | str = 0,
        sysctls: Sysctls | None = None,
        seed: int | None = None,
    ) -> None:
        nodes, cpus = whole_number(nodes, "nodes", 1, MAX_NODES), whole_number(cpus, "cpus", 1, MAX_CPUS)
        seed = secrets.randbits(64) if seed is None else whole_number(seed, "seed", 0, MAX_SEED)
        movable = parse_bytes(movablecore, "movablecore") if movablecore else 0
        spans = made_up_spans(geometry, parse_bytes(size), nodes, movable)
        state, pfns = empty_memory(geometry, spans, cpus)
        state.zones["present"] = state.zones["managed"] = state.zones["end"] - state.zones["start"]
        free_ranges(state, state.zones["start"].copy(), state.zones["end"].copy())
        state = size_memory(state, geometry, sysctls or Sysctls())
        super().__init__(geometry, with_contents(state) if contents else state, pfns, cpus)
        self.seed = seed
        self.origin = Origin()

    @classmethod
    def from_snapshot(
        cls,
        snapshot: Snapshot,
        geometry: Geometry | None = None,
        *,
        kernel: str | None = None,
        contents: bool = False,
        seed: int = 0,
    ) -> Self:
        """The memory of a real machine.

        Exact from a dump of the free lists. From kpageflags and pagetypeinfo free blocks are merged as far as they go
        and block types follow from the counts; the order within a list is not known and taken as ascending. From
        buddyinfo and pagetypeinfo alone places are drawn so that both texts come out. `mem.assumed` says what no file
        gives, `mem.differences` where the files contradict each other.

        Parameters
        ----------
        snapshot
            As `read_snapshot` gives it.
        geometry
            If not given, the orders and page size of the snapshot, with the features of `kernel`.
        kernel
            Its name, in place of a geometry. If neither is given, the one that the snapshot names, else the default.
        contents
            Whether pages have bytes (all zero).
        seed
            Of the places that no file gives.

        Raises
        ------
        InputError
            If the snapshot does not hold enough, or the geometry has other orders than it.
        """
        placement = place(snapshot, seed=seed)
        assumed = placement.assumed
        if geometry is None:
            geometry = geometry_of(placement.free_lists)
            kernel = kernel or snapshot.kernel
            if kernel is not None:
                geometry = geometry.replace(kernel=kernel)
            else:
                assumed = (*assumed, f"rules of kernel {geometry.kernel}: no file says which one it was")
        state, pfns = from_placement(geometry, placement)
        cpus = state.pcp.size // state.zones.size
        differences = (*snapshot.differences, *placement.differences)
        origin = Origin(differences, assumed, dict(snapshot.files))
        return cls._of(geometry, with_contents(state) if contents else state, pfns, cpus, seed, origin)

    @classmethod
    def _of(cls, geometry: Geometry, state: Memory, pfns: PfnMap, cpus: int, seed: int, origin: Origin) -> Self:
        mem = cls.__new__(cls)
        Machine.__init__(mem, geometry, state, pfns, cpus)
        mem.seed, mem.origin = seed, origin
        return mem

    def with_state(self, geometry: Geometry, state: Memory, pfns: PfnMap) -> Self:
        """A memory of another state, with this one's CPUs, seed and origin."""
        return self._of(geometry, state, pfns, self.cpus, self.seed, self.origin)

    @property
    def differences(self) -> tuple[str, ...]:
        """Where the files of the snapshot that it came from contradict each other, a line each."""
        return self.origin.differences

    @property
    def assumed(self) -> tuple[str, ...]:
        """What none of those files gave, a line each."""
        return self.origin.assumed

    @property
    def files(self) -> Mapping[str, str]:
        """SHA-256 of each of those files."""
        return self.origin.files

    def __repr__(self) -> str:
        differences = self.state.pcp["free_diff"].reshape(-1, self.cpus).sum(axis=1)
        free_pages = (self.state.zones["free_pages"] + differences).tolist()  # as exact as zone_page_state_snapshot()
        zones = ", ".join(
            f"{label} {free_pages[i]}/{int(self.state.zones[i]['managed'])} pages free"
            for i, label in enumerate(self.zone_labels)
        )
        return f"<PhysicalMemory {self.geometry.arch} {self.geometry.page_size_bytes >> 10}KiB: {zones}>"

    def pfn(self, folios: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """First page frame numbers of folios, shape ``(folios,)``.

        Raises
        ------
        InputError
            If a handle is stale.
        """
        return self.pfns.pfn(folio_rows(self, folios)[0].astype(np.int64))

    @property
    def contents(self) -> npt.NDArray[np.uint8]:
        """The bytes, uint8, shape ``(rows, page size)``; no rows in a memory without contents."""
        return self.state.contents

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes that the state takes: `pages` (all that grows with memory), `folios` and `contents` apart.

        Room in the folio table that was never used has no memory behind it and does not count.
        """
        arrays = {name: array.nbytes for name, array in self._arrays().items()}
        del arrays["folios"]
        contents, folios = arrays.pop("contents"), int(self.state.slots[1]) * self.state.folios.itemsize
        return {"pages": sum(arrays.values()), "folios": folios, "contents": contents}

    @property
    def digest(self) -> str:
        """SHA-256 of geometry, state and seed: equal for memories that behave alike from here on."""
        digest = hashlib.sha256(json.dumps({**self._meta(), "origin": None}, sort_keys=True).encode())
        for name, array in sorted(self._saved().items()):
            used = array[: int(self.state.slots[1])] if name == "folios" else array
            digest.update(name.encode())
            for part in _without_padding(used):
                digest.update(np.ascontiguousarray(part).view(np.uint8).data)
        return digest.hexdigest()

    def vmstat(self) -> dict[str, int]:
        """Counters by their names in /proc/vmstat, so far.

        kswapd_woken, pcp_refills, buddy_splits and extfrag_events are the model's own.
        """
        return {counter.name.lower(): int(self.state.vmstat[counter]) for counter in Vmstat}

    def zone_name(self, zone: int) -> str:
        """The name that /proc prints."""
        return ZoneType(int(self.state.zones[zone]["zone_type"])).label

    @property
    def zone_labels(self) -> list[str]:
        """Node and name of each zone: "0:Normal"."""
        return [f"{zone['node']}:{self.zone_name(i)}" for i, zone in enumerate(self.state.zones)]

    # -- labelled views --------------------------------------------------------------------------------------------

    def buddyinfo(self) -> "xr.DataArray":
        """Free blocks by zone and order, isolated ones too, as /proc/buddyinfo counts them."""
        return self.pagetypeinfo().sum("migratetype", keep_attrs=True)

    def pagetypeinfo(self) -> "xr.DataArray":
        """Free blocks by zone, migratetype and order."""
        return self._view("free blocks", count_free(self.state), ("zone", "migratetype", "order"))

    def pageblocks(self) -> "xr.DataArray":
        """Pageblocks by zone and migratetype; a block counts for the zone that its first page lies in."""
        return self._view("pageblocks", count_blocks(self.state), ("zone", "migratetype"))

    def unusable_free_index(self) -> "xr.DataArray":
        """Thousandths of the free memory that a request cannot use, by zone and order."""
        from memmodel.results import fragmentation

        return fragmentation.unusable_free_index(self)

    def fragmentation_index(self) -> "xr.DataArray":
        """Why a request fails, in thousandths, by zone and order: -1000 where it would not."""
        from memmodel.results import fragmentation

        return fragmentation.fragmentation_index(self)

    def extfrag_for_order(self) -> "xr.DataArray":
        """Percent of the free memory in blocks below an order, by zone and order."""
        from memmodel.results import fragmentation

        return fragmentation.extfrag_for_order(self)

    def proactive_score(self, order: int | None = None) -> "xr.Dataset":
        """The scores that proactive compaction goes by, by zone and node; `order` is that of a PMD if not given.

        Raises
        ------
        InputError
            If the order is none.
        """
        from memmodel.results import fragmentation

        return fragmentation.proactive_score(self, order)

    def _view(self, name: str, counts: npt.NDArray[np.int64], dims: tuple[str, ...]) -> "xr.DataArray":
        import xarray as xr

        coords: dict[str, Any] = {
            "zone": self.zone_labels,
            "migratetype": list(MIGRATETYPE_NAMES),
            "order": np.arange(self.geometry.max_page_order + 1),
        }
        attrs = {"units": "1", "long_name": name}
        return xr.DataArray(counts, {dim: coords[dim] for dim in dims}, dims, name.replace(" ", "_"), attrs)

    def to_procfs(self) -> dict[str, str]:
        """The text of /proc/buddyinfo and /proc/pagetypeinfo for this state, by file name."""
        keys = [(int(zone["node"]), self.zone_name(i)) for i, zone in enumerate(self.state.zones)]
        free = count_free(self.state)
        shown = [t for t in MigrateType if t < MigrateType.CMA or self._configured(t)]
        return {
            "buddyinfo": format_buddyinfo(dict(zip(keys, free.sum(axis=1), strict=True))),
            "pagetypeinfo": format_pagetypeinfo(
                self.geometry.pageblock_order,
                dict(zip(keys, free, strict=True)),
                dict(zip(keys, count_blocks(self.state), strict=True)),
                shown,
            ),
        }

    def _configured(self, migratetype: MigrateType) -> bool:
        return self.geometry.cma if migratetype == MigrateType.CMA else self.geometry.memory_isolation

    # -- copies and files ------------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: array for name, array in self.state._asdict().items() if name != "params"}

    def copy(self) -> Self:
        """A memory of its own, equal in everything."""
        state = from_arrays(self.state.params, self._arrays())
        return self._of(self.geometry, state, self.pfns, self.cpus, self.seed, self.origin)

    def restore(self, start: "PhysicalMemory") -> None:
        """Become equal to `start` again: what `copy` gives, without new arrays. For many points from one start state.

        Raises
        ------
        InputError
            If `start` is not the memory of an equal machine.
        """
        same = self.geometry == start.geometry and self.cpus == start.cpus
        if not same or self.state.pages.size != start.state.pages.size or self.pfns.n_pages != start.pfns.n_pages:
            raise InputError("a memory is restored from one of the same geometry, size, nodes and cpus")
        if self.contents.shape != start.contents.shape:
            raise InputError("a memory is restored from one with contents if it has them, and without if not")
        self.state = overwrite(self.state, start.state)
        self.pfns, self.seed, self.origin = start.pfns, start.seed, start.origin
        self._zonelists.clear()
        self.requests.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._meta(), {name: np.asarray(array) for name, array in self._saved().items()})

    def _meta(self) -> dict[str, Any]:
        params = [int(number) for number in self.state.params]
        return {
            "format": FORMAT,
            "geometry": self.geometry.as_dict(),
            "params": params,
            "cpus": self.cpus,
            "seed": self.seed,
            "origin": {**self.origin._asdict(), "files": dict(self.origin.files)},
        }

    def _saved(self) -> dict[str, npt.NDArray[Any]]:
        pfns = {f"pfns_{name}": getattr(self.pfns, name) for name in ("starts", "ends", "rows")}
        return self._arrays() | pfns

    def save(self, path: str | Path) -> None:
        """Write the whole state to an .npz file, all or nothing.

        Raises
        ------
        InputError
            If the name does not end in .npz, or the file cannot be written.
        """
        target = Path(path)
        if target.suffix != ".npz":
            raise InputError(f"{path}: a state is saved as .npz")
        temporary = target.with_name(f".{target.name}.partial")
        content: dict[str, Any] = {"meta": np.array(json.dumps(self._meta())), **self._saved()}
        try:
            with temporary.open("wb") as file:
                np.savez(file, **content)
            temporary.replace(target)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _without_padding(array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """What of an array says something: bytes between the fields of records differ from one reading to the next."""
    names = array.dtype.names or ()
    if sum(array.dtype[name].itemsize for name in names) in (0, array.dtype.itemsize):
        return [array]
    return [np.asarray(array[name]) for name in names]


def load(path: str | Path) -> PhysicalMemory:
    """Read a state that `PhysicalMemory.save` wrote.

    Raises
    ------
    InputError
        If the file is not such a state.
    """
    try:
        file = Path(path).open("rb")  # NumPy does not close what it cannot read
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    try:
        with file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        meta = json.loads(str(arrays.pop("meta")))
        if meta["format"] != FORMAT:
            raise InputError(f"state format {meta['format']}; this version reads {FORMAT}")
        mem = _rebuild(meta, arrays)
        mem.check()
    except MemmodelError as error:
        raise InputError(f"{path}: {error}") from None
    except UNREADABLE as error:
        raise InputError(f"{path}: not a saved memmodel state ({type(error).__name__})") from None
    return mem


def _rebuild(meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> PhysicalMemory:
    pfns = PfnMap(*(arrays.pop(f"pfns_{name}") for name in ("starts", "ends", "rows")))
    params = Params(*(np.uint64(number) for number in meta["params"]))
    said = meta["origin"]
    origin = Origin(tuple(said["differences"]), tuple(said["assumed"]), said["files"])
    state = from_arrays(params, arrays, copy=False)
    return PhysicalMemory._of(Geometry(**meta["geometry"]), state, pfns, meta["cpus"], meta["seed"], origin)
