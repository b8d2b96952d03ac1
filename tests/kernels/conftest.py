"""The kernels run compiled where there is a GPU, else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
if importlib.util.find_spec("triton") is None:  # there is none for macOS
    collect_ignore_glob = ["test_*.py"]


def _mend_interpreter() -> None:
    """Triton 3.6's interpreter cannot bound a loop by a scalar since NumPy 2.4 (triton#9171),
    multiplies the bits of bfloat16 matrices as integers, rounds float32 to bfloat16 towards zero,
    and loses the carry of a rounding to float8; the hardware does none of that.
    """
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:  # a PyTorch without Triton
        return
    patch_tensor, convert = interpreter._patch_lang_tensor, interpreter._convert_float
    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot

    def mended_patch_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def mended_convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.tensor(data).bfloat16().view(torch.uint16).numpy()
        if (source, target) == (tl.bfloat16, tl.float32):
            return torch.tensor(data).view(torch.bfloat16).float().numpy()
        if (source, target) == (tl.float32, tl.float8e4nv):
            return (
                torch.tensor(data)
                .clamp(-448.0, 448.0)
                .to(torch.float8_e4m3fn)
                .view(torch.uint8)
                .numpy()
            )
        return convert(data, source, target, rounding)

    def mended_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (
            self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)
        )
        return dot(self, a, b, *rest)

    interpreter._patch_lang_tensor, interpreter._convert_float = mended_patch_tensor, mended_convert
    builder.create_dot = mended_dot


_mend_interpreter()


@pytest.fixture(scope="session")
def device() -> torch.device:
    # As the engine does: by default convolutions in float32 multiply in TF32.
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
