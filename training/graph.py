"""A training step as one CUDA graph: launched once instead of kernel by kernel.

Otherwise Python bounds a step of thousands of small kernels. A captured step reads no value back,
copies nothing from pageable memory, and has no shape or branch that depends on data. Numbers that
change from step to step (learning rates, ramps) are 0-dim tensors that the host fills between
replays; random numbers come from the device's default generator, which every replay moves on.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: Runs before capture: libraries choose algorithms, plans are cached, optimisers create their
#: state.
WARM_UP_RUNS = 3


def training_device() -> torch.device:
    """The GPU where there is one. Convolutions try their algorithms once: shapes never change here.

    Float32 products stay float32 (no TF32): all that autocast leaves in float32, the quantizer's
    search and the sample projection above all, is a percent of a step's arithmetic and decides
    exactness.
    """
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def new_pool(device: torch.device) -> Any:
    """A memory pool for `Captured` steps that never run at the same time; None on a CPU."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The one side stream of all warm-ups and captures.

    Autograd runs the accumulation of a parameter's gradient on the stream that first used the
    parameter; if that were another stream than the captured one, capture would fail.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Captured:
    """`function`, replayed as a CUDA graph; on a CPU the plain call.

    The function takes tensors and returns a dict of tensors. A training step may hold everything:
    forward, backward, clipping, an optimiser made with `capturable=True` and a tensor as `lr`. It
    must drop old gradients with `zero_grad(set_to_none=True)` before its backward pass: then they
    are allocated in the graph's pool, each graph has its own, and graphs that update the same
    parameters do not meet. Autocast inside needs `cache_enabled=False`.

    On CUDA the constructor runs the function `WARM_UP_RUNS` times on the example inputs; of a
    training step these are real updates. Then it captures; a capture that fails raises. Whatever
    the function reads besides its inputs (parameters, optimiser state, data) must stay where it is:
    after loading an optimiser's state, capture anew, in a new pool.
    """

    #: Time of warm-up and capture; 0 on a CPU.
    seconds: float

    def __init__(
        self,
        function: Callable[..., dict[str, Tensor]],
        example_inputs: Sequence[Tensor] = (),
        *,
        device: torch.device,
        pool: Any = None,
    ) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self.seconds = 0.0
        if device.type == "cuda":
            start = time.monotonic()
            self._inputs = [example.detach().to(device, copy=True) for example in example_inputs]
            self._graph, self._outputs = self._capture(device, pool)
            self.seconds = time.monotonic() - start

    def _capture(
        self, device: torch.device, pool: Any
    ) -> tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]:
        stream, current = _stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                self._function(*self._inputs)
        current.wait_stream(stream)
        # Autograd graphs in dead reference cycles would keep gradient accumulators of other streams
        # alive.
        gc.collect()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            outputs = self._function(*self._inputs)
            outputs = {name: value.detach() for name, value in outputs.items()}
        torch.cuda.synchronize(device)
        return graph, outputs

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Run once. On CUDA every call returns the same tensors and overwrites them.

        Raises ValueError for inputs that differ from the examples in shape or dtype.
        """
        if self._graph is None:
            return {name: value.detach() for name, value in self._function(*inputs).items()}
        if len(inputs) != len(self._inputs):
            raise ValueError(f"captured with {len(self._inputs)} inputs, called with {len(inputs)}")
        for place, given in zip(self._inputs, inputs, strict=True):
            if (given.shape, given.dtype) != (place.shape, place.dtype):
                raise ValueError(
                    f"captured for {place.dtype} {list(place.shape)}, called with {given.dtype} "
                    f"{list(given.shape)}; make a Captured per shape"
                )
            place.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._outputs
