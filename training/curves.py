"""Learning curves as a picture and as one JSON file: python -m training.curves LOG.jsonl CURVES.png
[CURVES.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def read_log(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Every logged figure as (step, value) pairs; validation figures are named `validation.*`."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        figures = {k: v for k, v in row.items() if isinstance(v, int | float)}
        figures |= {f"validation.{k}": v for k, v in row.get("validation", {}).items()}
        figures |= {f"codes_in_use.{i}": v for i, v in enumerate(row.get("codes_in_use", []))}
        for name, value in figures.items():
            if name != "step":
                curves.setdefault(name, []).append((row["step"], value))
    return curves


def draw(curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    single = [name for name in curves if not name.startswith("codes_in_use")]
    figure, axes = plt.subplots(
        -(-(len(single) + 1) // 4), 4, figsize=(16, 2.6 * -(-(len(single) + 1) // 4)), squeeze=False
    )
    for axis, name in zip(axes.flat, single, strict=False):
        steps, values = zip(*curves[name], strict=True)
        axis.plot(steps, values, linewidth=0.8)
        axis.set_title(name, fontsize=9)
    last = axes.flat[len(single)]
    for name, points in curves.items():
        if name.startswith("codes_in_use"):
            last.plot(*zip(*points, strict=True), linewidth=0.8)
    last.set_title("codes in use, per level", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def main() -> None:
    log, picture, *rest = map(Path, sys.argv[1:])
    curves = read_log(log)
    draw(curves, picture)
    for path in rest:
        path.write_text(json.dumps(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
