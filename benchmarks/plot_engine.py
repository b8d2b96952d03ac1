"""Draw docs/performance.svg: throughput and first audio over clients, from
benchmarks/results/engine_h200.json.

python -m benchmarks.plot_engine     # needs matplotlib
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent


def main() -> None:
    document = json.loads(
        (ROOT / "benchmarks/results/engine_h200.json").read_text(encoding="utf-8")
    )
    runs: dict[str, list[dict[str, Any]]] = {"latency": [], "throughput": []}
    for run in document["runs"]:
        profile, _, load = run["label"].partition(", ")
        if profile in runs and load.endswith(("clients", "client")) and not run["strict"]:
            runs[profile].append(run)
    figure, (speed, wait) = plt.subplots(1, 2, figsize=(9, 3.4))
    for profile, points in runs.items():
        points.sort(key=lambda run: run["clients"])
        clients = [run["clients"] for run in points]
        speed.plot(clients, [run["audio_s_per_s"] for run in points], "o-", label=profile)
        wait.plot(clients, [run["ttfa_ms"]["p95"] for run in points], "o-", label=f"{profile}, p95")
        wait.plot(
            clients, [run["ttfa_ms"]["mean"] for run in points], "o:", label=f"{profile}, mean"
        )
    speed.set_ylabel("audio seconds a second")
    wait.set_ylabel("first audio, ms")
    for axes in (speed, wait):
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 4, 16, 64, 128, 256], ["1", "4", "16", "64", "128", "256"])
        axes.set_xlabel("clients (closed loop)")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("MOSS-TTS-Local-v1.5 dimensions, random weights, one H200, bf16", fontsize=10)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "hocket"
    figure.savefig(ROOT / "docs/performance.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
