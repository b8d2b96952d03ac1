"""Between host and device without waiting at the launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def bits_of(floats: ArrayLike) -> NDArray[np.int64]:
    """Floats as float64 under the name of integers, to travel among integers in one piece; `floats_of` reads them."""
    return np.asarray(floats, np.float64).view(np.int64)


def floats_of(bits: Tensor) -> Tensor:
    """float64 [..] of `bits_of`."""
    return bits.view(torch.float64)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A tensor on its way to the host; `wait` is where the host waits for the device."""

    tensor: Tensor
    #: None: it is there already.
    ready: torch.cuda.Event | None

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self.ready is None or self.ready.query()  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        if self.ready is not None:
            self.ready.synchronize()
        return self.tensor


class CopyLane:
    """Copies results to the host on a stream of its own, so that they and what is launched next do not wait for one
    another.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        """`priority` is that of what is copied: gathering what lies apart takes a kernel."""
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]

    def start(self, *tensors: Tensor) -> list[HostCopy]:
        """Begin to copy what has been launched on the current stream by now, into pinned memory."""
        if self._stream is None:
            return [HostCopy(tensor, None) for tensor in tensors]
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with self._stream:
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
        ready.record(self._stream)
        return [HostCopy(host, ready) for host in hosts]

    def settle(self) -> None:
        """What is launched from now on may overwrite what is being copied."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
