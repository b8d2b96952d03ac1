"""Every kernel at the sizes of real models, and the matrix products between them, each against its
floor.

    python -m benchmarks.gpu.kernels [--json FILE] [--rows 1,16,64,128,256]
                                     [--only kernels|products] [--match TEXT]

Each case is a CUDA graph of consecutive calls over sets of buffers that together exceed the L2
cache; the time is the median of several replays, by events, over the number of calls. It includes
the gap between two launches, but no host time. `L2` marks calls so small that 256 sets of buffers
fit the cache: their inputs come from the cache, as they do in a running model. The floor is the
larger of the bytes that must move over 4.3 TB/s and of the operations over 790 TFLOP/s (FP8: twice
that); weights of norms are not counted.

Products are measured in bf16 and, on cards that have it, in FP8, with one scale for a whole matrix
and with one for each row and column. Their sums for a backbone step, a frame of the depth
transformer and a codec chunk, printed last, are the floors of those parts.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.case import Case
from benchmarks.gpu.cases import kernel_cases
from benchmarks.gpu.products import Kind, Product, product_cases, sums
from benchmarks.gpu.tools import Report, buffer_sets, device_of, graph_us, numbers, parser_of


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--model", default="moss-tts-local-v1.5", help="dimensions, as for hocket bench engine"
    )
    parser.add_argument("--codec", help="folder of the codec, where the model does not bring it")
    parser.add_argument(
        "--second", default="qwen3-tts-1.7b", help="dimensions for frame_attention and causal_conv"
    )
    parser.add_argument("--second-codec", help="folder of its codec")
    parser.add_argument(
        "--rows", type=numbers, default=[1, 16, 64, 128, 256], help="of a backbone step and a frame"
    )
    parser.add_argument(
        "--contexts", type=numbers, default=[320, 1024], help="positions that a step attends to"
    )
    parser.add_argument("--pages", type=numbers, default=[1, 16, 64], help="of prefill")
    parser.add_argument("--chunks", default="32x15,8x1", help="of the codec: streams x frames")
    parser.add_argument("--only", choices=["kernels", "products"])
    parser.add_argument(
        "--match", default="", help="only kernels and products with this in their name"
    )
    arguments = parser.parse_args()
    device = device_of(arguments.device)
    report = Report(arguments, device)
    with torch.inference_mode():
        if device.type == "cuda":
            measure_ceilings(report, device)
        if arguments.only != "products":
            measure_kernels(report, arguments, device)
        if arguments.only != "kernels":
            measure_products(report, arguments, device)
    return report.finish()


def measure_ceilings(report: Report, device: torch.device) -> None:
    """Measure the card's peak rates, for comparison with those that the floors assume."""

    def copy() -> float:
        source = torch.randn(2**30, device=device, dtype=torch.bfloat16)
        target = torch.empty_like(source)
        return 2 * source.nbytes / graph_us([lambda: target.copy_(source)], device) / 1e6

    def product(kind: Kind) -> float:
        whole = Product("ceiling", "product", 8192, 8192, 8192, 1)
        return whole.flops / graph_us([whole.case(device, kind).prepare()], device) / 1e6

    for name, work in (
        ("copy, TB/s", copy),
        ("bf16 product of 8192 cubed, TFLOP/s", partial(product, "bf16")),
        ("fp8 product of 8192 cubed, TFLOP/s", partial(product, "fp8")),
    ):
        rate = report.measure(f"ceilings/{name}", work)
        if rate is not None:
            print(f"{name}: {rate:.4g}", flush=True)


def measure_kernels(report: Report, arguments: Namespace, device: torch.device) -> None:
    print(f"\n{'kernel':<64}{'us':>9}{'floor':>9}{'ratio':>7}", flush=True)
    for case in kernel_cases(arguments, device):
        if arguments.match not in case.name:
            continue
        figure = report.measure(f"kernels/{case.name}", partial(measure, case, device))
        if figure is not None:
            cached = " L2" if figure["in_cache"] else ""
            print(
                f"{case.name:<64}{figure['us']:>9.2f}{figure['floor_us']:>9.2f}{figure['ratio']:>7.2f}{cached}",
                flush=True,
            )


def measure_products(report: Report, arguments: Namespace, device: torch.device) -> None:
    has_fp8 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
    kinds: list[Kind] = ["bf16", "fp8", "fp8 rows"] if has_fp8 else ["bf16"]
    heads = "".join(f"{kind + ' us':>12}{'floor':>8}{'ratio':>7}{'TFLOP/s':>9}" for kind in kinds)
    print(f"\n{'product':<52}{heads}", flush=True)
    products = [product for product in product_cases(arguments) if arguments.match in product.name]
    for product in products:
        line = f"{product.name:<52}"
        for kind in kinds:
            figure = report.measure(
                f"products/{product.name} {kind}",
                partial(measure_product, product, kind, device),
            )
            if figure is None or "refused" in figure:
                line += f"{'failed' if figure is None else 'refused':>12}{'':>24}"
            else:
                line += f"{figure['us']:>12.2f}{figure['floor_us']:>8.2f}"
                line += f"{figure['ratio']:>7.2f}{figure['tflops']:>9.1f}"
        print(line, flush=True)
    print("\nall products of a part, ms", flush=True)
    for kind in kinds:
        us = {
            product.name: report.figures[f"products/{product.name} {kind}"]["us"]
            for product in products
            if "us" in report.figures.get(f"products/{product.name} {kind}", {})
        }
        for part, total_ms in sums(products, us).items():
            report.figures[f"sums_ms/{part} {kind}"] = total_ms
            print(f"{part:<52}{kind:>6}{total_ms:>10.3f}", flush=True)


def measure_product(product: Product, kind: Kind, device: torch.device) -> dict[str, Any]:
    case = product.case(device, kind)
    if kind == "fp8 rows":
        try:
            case.prepare()()
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            if isinstance(error, torch.AcceleratorError):
                raise
            return {"refused": str(error).splitlines()[0]}
    figure = measure(case, device)
    return {**figure, "tflops": round(product.flops / figure["us"] / 1e6, 1)}


def measure(case: Case, device: torch.device) -> dict[str, float]:
    """Time one case; its buffers live only during this call."""
    sets = buffer_sets(case.nbytes) if device.type == "cuda" else 2
    calls = [case.prepare() for _ in range(sets)]
    # A graph has at least 32 launches, so that its own launch does not matter.
    took = graph_us(calls * -(-32 // sets) if device.type == "cuda" else calls, device)
    return {
        "us": round(took, 3),
        "floor_us": round(case.floor_us, 3),
        "ratio": round(took / case.floor_us, 2),
        "in_cache": sets * case.nbytes < 60e6,
    }


if __name__ == "__main__":
    sys.exit(main())
