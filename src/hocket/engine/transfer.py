"""Device to host without waiting at the launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A tensor on its way to the host; `wait` is where the host waits for the device."""

    tensor: Tensor
    #: None: it is there already.
    ready: torch.cuda.Event | None

    @classmethod
    def start(cls, tensor: Tensor) -> HostCopy:
        """Begin to copy; into pinned memory, since a pageable copy is slow and waits."""
        if tensor.device.type == "cpu":
            return cls(tensor, None)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return cls(host, ready)

    def wait(self) -> Tensor:
        if self.ready is not None:
            self.ready.synchronize()
        return self.tensor
