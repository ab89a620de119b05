"""The one Numba decorator, its disk cache, and the few machine operations that Python cannot spell.

``@kernel`` marks what mechanisms call, ``@inlined`` what kernels call. With ``NUMBA_DISABLE_JIT=1`` both leave plain
Python, and each intrinsic below is its NumPy body: the whole model runs under a debugger.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import caching, cgutils, codegen, compiler, config, registry, types
from platformdirs import user_cache_path

__all__ = [
    "JIT_ENABLED",
    "copy_bytes",
    "count_trailing_zeros",
    "inlined",
    "kernel",
    "never_inline",
    "outlined",
    "prefetch",
    "stream_bytes",
    "stream_fence",
]

F = TypeVar("F", bound=Callable[..., Any])

JIT_ENABLED = not config.DISABLE_JIT


def intrinsic(function: F) -> Any:
    """Numba's decorator, typed: `function` gives the code that stands for a call of it."""
    return extending.intrinsic(function)


DIGEST_BYTES = 32
_PACKAGE = Path(__file__).parent
# Everything that compiled code may inline. Numba's own cache looks at the kernel's own file only, and so misses edits
# in a helper or a constant elsewhere.
_CODE = ("jit.py", "sources/ftrace*.py", "state/*.py", "kernels/*.py", "workloads/*.py")


@functools.cache
def _digest() -> str:
    """Name of the cache folder: the code that kernels may inline, the compiler, and the options that change code."""
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__} {sys.version}".encode())
    for pattern in _CODE:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.name.encode() + path.read_bytes())
    for name in sorted(os.environ):
        if name.startswith("NUMBA_"):  # NUMBA_BOUNDSCHECK, NUMBA_OPT, ...: a warm cache must not answer for another
            digest.update(f"{name}={os.environ[name]}".encode())
    return digest.hexdigest()[:24]


@functools.cache
def _say_compiling() -> None:
    print("memmodel: compiling kernels for this machine; this is done once", file=sys.stderr, flush=True)


class _Locator:
    """Where the compiled kernels of this very code lie."""

    def __init__(self, py_file: str) -> None:
        self._py_file = py_file

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator":
        return cls(py_file)

    def ensure_cache_path(self) -> None:
        """Nothing: the folder is made when there is something to write, and compiling goes on where it cannot be."""

    def get_cache_path(self) -> str:
        return str(user_cache_path("memmodel") / "kernels" / _digest())

    def get_source_stamp(self) -> str:
        return _digest()

    def get_disambiguator(self) -> str:
        return hashlib.sha256(Path(self._py_file).read_bytes()).hexdigest()[:10]


class _CacheImpl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _SignatureFiles:
    """One file a signature, named by it: processes that compile at the same time write the same file.

    Numba's index numbers its data files, and two processes that race can leave a number with the other's code.
    """

    def __init__(self, folder: str, base: str) -> None:
        self._folder, self._base = Path(folder), base

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._base}.{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"

    def load(self, key: Any) -> Any:
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        # A file cut short or damaged is compiled again; unpickled it could raise anything.
        if hashlib.sha256(data).digest() != digest:
            return None
        try:
            return pickle.loads(data)
        except (AttributeError, ImportError):  # code of a module that this process cannot import
            return None

    def save(self, key: Any, data: Any) -> None:
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        pickled = caching.dumps(data)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(hashlib.sha256(pickled).digest() + pickled)
            temporary.replace(path)
        except OSError:  # no writable cache folder: compile again next time
            with contextlib.suppress(OSError):
                temporary.unlink()

    def flush(self) -> None:
        for path in self._folder.glob(f"{self._base}.*"):
            path.unlink(missing_ok=True)


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _CacheImpl

    def __init__(self, py_func: Callable[..., Any]) -> None:
        super().__init__(py_func)
        self._cache_file = _SignatureFiles(self.cache_path, self._impl.filename_base)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            _say_compiling()
        return found


# error_model="numpy": no branch for a zero divisor; nogil: sweeps run kernels on threads. Without _nrt=False every call
# of a worker counts references of all arrays of the state: random free + alloc 2.1x slower. Kernels allocate nothing.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: F) -> F:
    """Compile `function` as an entry point: releases the GIL, cached on disk, called from mechanisms and studies."""
    compiled: Any = numba.njit(function, **_OPTIONS)
    if JIT_ENABLED:
        compiled._cache = _Cache(function)
    return compiled  # type: ignore[no-any-return]


class _PartLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code that is only linked into kernels: not optimised before, nor made into machine code of its own."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _PartCompiler(compiler.Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> Any:
        flags, target = self.state.flags, self.state.targetctx
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        self.state.library = _PartLibrary(target.codegen(), f"part.{uuid.uuid4().hex}")
        return super().define_pipelines()


class _Part(registry.CPUDispatcher):  # type: ignore[misc]
    """A function that kernels call, and Python cannot."""

    def add_overload(self, cres: Any) -> None:
        cres = cres._replace(entry_point=object())  # only a name for callers, which link the library
        cres.target_context.insert_user_function(cres.entry_point, cres.fndesc, [cres.library])
        self.overloads[tuple(cres.signature.args)] = cres

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} is compiled as a part of kernels only")


def _part(function: F, **options: Any) -> F:
    """Compile `function` where kernels call it: each kernel is optimised once, with all its parts.

    Optimising each part as well took three quarters of a cold start.
    """
    compiled: Any = numba.njit(function, pipeline_class=_PartCompiler, **options, **_OPTIONS)
    if JIT_ENABLED:
        compiled.__class__ = _Part
    return compiled  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """Compile `function` for use inside kernels: it becomes part of them (and of their cache).

    LLVM left to itself calls the larger ones: bulk order-0 allocation 8 instead of 60 M pages/s.
    """
    return _part(function, forceinline=True)


def outlined(function: F) -> F:
    """Compile `function` for calls from kernels: what runs once in many operations, and is large.

    Its first statement is ``never_inline()``: LLVM left to itself would copy it into every caller, and optimise each.
    """
    # Without forceinline=False a function inherits it from the one that is being compiled when it is first met.
    return _part(function, forceinline=False)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    base = builder.bitcast(data, cgutils.voidptr_t)
    return builder.gep(base, [offset])


if JIT_ENABLED:

    @intrinsic
    def never_inline(typing_context: Any) -> Any:
        """Mark the function that this stands in as one that is called, not copied into its callers."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def copy_bytes(typing_context: Any, array: Any, target: Any, source: Any, n_bytes: Any) -> Any:
        """Copy inside one contiguous byte array, as libc's memcpy does.

        Slice assignment compiled to 1.3-1.8 GiB/s and a word loop to 3.6; llvm.memcpy calls libc.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data, dst, src, length = arguments
            cgutils.raw_memcpy(
                builder,
                _pointer(context, builder, signature.args[0], data, dst),
                _pointer(context, builder, signature.args[0], data, src),
                length,
                1,
            )
            return context.get_dummy_value()

        return types.void(array, types.uint64, types.uint64, types.uint64), codegen

    @intrinsic
    def stream_bytes(typing_context: Any, array: Any, target: Any, source: Any) -> Any:
        """Copy 256 bytes (64-byte aligned) with stores that do not bring the target's lines into the caches."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data, dst, src = arguments
            line = ir.VectorType(ir.IntType(64), 8)
            mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
            to = builder.bitcast(_pointer(context, builder, signature.args[0], data, dst), line.as_pointer())
            of = builder.bitcast(_pointer(context, builder, signature.args[0], data, src), line.as_pointer())
            loads = []
            for i in range(4):
                step = [ir.Constant(ir.IntType(64), i)]
                load = builder.load(builder.gep(of, step))
                load.align = 64
                loads.append(load)
            for i, value in enumerate(loads):
                store = builder.store(value, builder.gep(to, [ir.Constant(ir.IntType(64), i)]), align=64)
                store.set_metadata("nontemporal", mark)
            return context.get_dummy_value()

        return types.void(array, types.uint64, types.uint64), codegen

    @intrinsic
    def stream_fence(typing_context: Any) -> Any:
        """Order the streamed stores before whatever follows."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
        """Begin to load the record at `index`, which will be written soon."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data, row = arguments
            offset = builder.mul(row, ir.Constant(ir.IntType(64), signature.args[0].dtype.size))
            pointer = _pointer(context, builder, signature.args[0], data, offset)
            word = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            builder.call(function, [pointer, *(ir.Constant(word, n) for n in (1, 3, 1))])  # write, keep, data
            return context.get_dummy_value()

        return types.void(array, types.uint64), codegen

    @intrinsic
    def count_trailing_zeros(typing_context: Any, word: Any) -> Any:
        """Index of the lowest set bit of a uint64 that is not zero."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

        return types.uint64(types.uint64), codegen

else:  # the same operations on NumPy arrays

    def never_inline() -> None:  # noqa: D103
        pass

    def copy_bytes(array: Any, target: Any, source: Any, n_bytes: Any) -> None:  # noqa: D103
        flat = array.reshape(-1)
        flat[int(target) : int(target + n_bytes)] = flat[int(source) : int(source + n_bytes)]

    def stream_bytes(array: Any, target: Any, source: Any) -> None:  # noqa: D103
        copy_bytes(array, target, source, 256)

    def stream_fence() -> None:  # noqa: D103
        pass

    def prefetch(array: Any, index: Any) -> None:  # noqa: D103
        pass

    def count_trailing_zeros(word: Any) -> Any:  # noqa: D103
        number = int(word)
        return np.uint64((number & -number).bit_length() - 1)
