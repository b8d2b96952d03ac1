"""Work on the device: programs, their inputs and their results.

A program is recorded once as a CUDA graph and then replayed with one call. A launch costs the host
about 10 us, and a frame of a large model has some 600 of them; a replay costs one.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_T = TypeVar("_T")


class Launcher:
    """Runs programs on a CUDA stream of its own, so with a cuBLAS workspace of its own; on a CPU it
    calls them.

    A program is a function without arguments. Its inputs and state are tensors at fixed addresses,
    and its next run overwrites its result.
    """

    def __init__(self, device: torch.device, *, priority: int = 0) -> None:
        self.device = device
        self.stream = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, object]] = {}
        self._is_sealed = False
        self._inputs: dict[tuple[str, tuple[int, ...]], StaticInput] = {}

    @property
    def records(self) -> bool:
        """Whether programs are recorded, so that their inputs need fixed addresses."""
        return self.stream is not None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Run the block on this stream and GPU, in inference mode. Not for nesting."""
        with torch.inference_mode(), contextlib.ExitStack() as stack:
            if self.stream is not None:
                if torch.cuda.current_device() != self.device.index:
                    # The GPU first: a stream alone would, at its end, initialise the GPU that was
                    # current before.
                    stack.enter_context(torch.cuda.device(self.device))
                # The stream itself: `torch.cuda.stream` does the same in a dozen Python calls.
                stack.enter_context(self.stream)
            yield

    def record_event(self) -> torch.cuda.Event | None:
        """An event after all launches so far, for `wait` of another launcher; None on a CPU."""
        return None if self.stream is None else self.stream.record_event()

    def wait(self, event: torch.cuda.Event | None) -> None:
        """Later launches start after `event`."""
        if self.stream is not None and event is not None:
            self.stream.wait_event(event)

    def put(self, name: str, values: NDArray[np.int64]) -> Tensor:
        """`values` on the device; for recorded programs, at a fixed address for each name and
        shape.
        """
        if not self.records:
            return torch.from_numpy(values)
        key = (name, values.shape)
        if key not in self._inputs:
            self._inputs[key] = self.static_input(values.shape)
        self._inputs[key].put(values)
        return self._inputs[key].tensor

    def static_input(self, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> StaticInput:
        """A new input for this launcher's programs."""
        return StaticInput(shape, self.device, dtype, self.stream)

    def run(self, key: Hashable, program: Callable[[], _T]) -> _T:
        """The result of `program`; equal keys mean equal programs. Call it inside `active`."""
        if self.stream is None:
            return program()
        if key not in self._graphs:
            if self._is_sealed:
                raise RuntimeError(f"{key} was not recorded at the start")
            self._record(key, program)
        graph, result = self._graphs[key]
        graph.replay()
        return cast("_T", result)

    def seal(self) -> None:
        """Allow no more recording: it runs a program once more than asked, which only empty inputs
        permit.
        """
        self._is_sealed = True

    def _record(self, key: Hashable, program: Callable[[], object]) -> None:
        # The work that fills the program's tensors may still run on another stream.
        torch.cuda.synchronize(self.device)
        # The first run compiles kernels and sets up libraries, which must not happen during
        # recording.
        program()
        graph = torch.cuda.CUDAGraph()
        # Waits for the current GPU and records on it; `active` has made this launcher's GPU the
        # current one.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            result = program()
        self._pool = self._pool or graph.pool()
        self._graphs[key] = graph, result


class StaticInput:
    """An input at a fixed address on the device, written before every launch that reads it."""

    def __init__(
        self,
        shape: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        stream: torch.cuda.Stream | None,
    ) -> None:
        """On a GPU, `put` must be called while `stream` is the current stream."""
        self.tensor = torch.zeros(*shape, dtype=dtype, device=device)
        self._stream = stream
        #: Pinned buffers with the events of their last copies, oldest first; as many as were ever
        #: in flight at a time.
        self._hosts: deque[tuple[Tensor, NDArray[Any], torch.cuda.Event]] = deque()

    def put(self, values: NDArray[np.integer[Any]]) -> None:
        """Copy `values`, which have the input's shape, without waiting for the device."""
        if values.shape != self.tensor.shape:
            raise ValueError(f"values have shape {values.shape}, not {tuple(self.tensor.shape)}")
        if self._stream is None:
            self.tensor.copy_(torch.from_numpy(values))
            return
        host, host_values, copied = self._free()
        host_values[...] = values
        self.tensor.copy_(host, non_blocking=True)
        copied.record(self._stream)
        self._hosts.append((host, host_values, copied))

    def _free(self) -> tuple[Tensor, NDArray[Any], torch.cuda.Event]:
        if self._hosts and self._hosts[0][-1].query():  # type: ignore[no-untyped-call]
            return self._hosts.popleft()
        host = torch.empty(self.tensor.shape, dtype=self.tensor.dtype, pin_memory=True)
        return host, host.numpy(), torch.cuda.Event()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A tensor that is being copied to the host; `wait` waits for it."""

    tensor: Tensor
    #: None if the copy is complete.
    ready: torch.cuda.Event | None

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self.ready is None or self.ready.query()  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        if self.ready is not None:
            self.ready.synchronize()
        return self.tensor


class CopyStream:
    """Copies results to the host on a CUDA stream of its own, so that copies and later launches can
    overlap.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        """`priority` is that of the results' stream: gathering a result that is not contiguous
        takes a kernel.
        """
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]

    def start(self, *tensors: Tensor) -> list[HostCopy]:
        """Start copying results of the launches so far on the current stream, into pinned
        memory.
        """
        if self._stream is None:
            return [HostCopy(tensor, None) for tensor in tensors]
        hosts = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors
        ]
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with self._stream:
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
        ready.record(self._stream)
        return [HostCopy(host, ready) for host in hosts]

    def fence(self) -> None:
        """Let later launches overwrite the copied tensors: they wait for the copies."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def bits_of(floats: ArrayLike) -> NDArray[np.int64]:
    """Floats as float64, viewed as int64, so that one array holds floats and integers; `floats_of`
    reads them.
    """
    return np.asarray(floats, np.float64).view(np.int64)


def floats_of(bits: Tensor) -> Tensor:
    """The float64 values that `bits_of` packed."""
    return bits.view(torch.float64)


def batch_sizes(max_size: int) -> list[int]:
    """Sizes to which batches of up to `max_size` are padded: at worst a sixteenth to a quarter
    larger than needed.
    """
    sizes, size = [], 1
    while size < max_size:
        sizes.append(size)
        size += max(1, 1 << max(0, size.bit_length() - 3))
    return [*sizes, max_size]
