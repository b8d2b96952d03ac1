"""Run all attacks: on a server of their own, or on one that runs (`--url`).

python -m tests.security.attacks [--only GROUP] [--url URL --key KEY]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.security.attacks import checkpoints, content, http, pressure, recordings, sockets, voices
from tests.security.attacks.target import Attack, Target, Watch, attacked, own_server


def all_attacks(target: Target, folder: Path) -> Iterator[Attack]:
    """All of them; those that look at what the others have left come last."""
    modules = (http, sockets, content, recordings, voices)
    return itertools.chain(
        *(module.attacks(target) for module in modules),
        checkpoints.attacks(folder),
        pressure.attacks(target),
    )


def run(target: Target, folder: Path, only: Sequence[str], freeze_seconds: float) -> int:
    """Attack, print held / tried for each group and what did not hold; the number of those."""
    held: dict[str, list[bool]] = {}
    seconds: dict[str, float] = {}
    failures = []
    with Watch(target) as watch:
        for attack in all_attacks(target, folder):
            if not attack.group.startswith(tuple(only)):
                continue
            started = time.monotonic()
            verdict = attacked(attack, watch, freeze_seconds)
            held.setdefault(attack.group, []).append(verdict is None)
            seconds[attack.group] = seconds.get(attack.group, 0.0) + time.monotonic() - started
            if verdict is not None:
                failures.append(f"{attack.group}: {attack.name}: {verdict}")
                print(f"  not held  {failures[-1]}", flush=True)
    for group, results in held.items():
        print(f"{sum(results):5} / {len(results):<5} {group} ({seconds[group]:.0f} s)")
    results = [result for group in held.values() for result in group]
    print(f"{sum(results):5} / {len(results):<5} held in all ({sum(seconds.values()):.0f} s)")
    return len(failures)


def main() -> int:
    """Exit code 0 when everything held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running server; without it one is started")
    parser.add_argument("--key", default="", help="an API key of that server")
    parser.add_argument(
        "--only", action="append", metavar="GROUP", help="groups that begin so; may be repeated"
    )
    parser.add_argument(
        "--freeze-seconds",
        type=float,
        default=0.5,
        help="longest wait for /health/live during an attack (0.25 on a quiet machine)",
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.url:
            target = Target(options.url, options.key)
        else:
            target = stack.enter_context(own_server(folder / "server", key="a-key-of-attacks"))
        return 1 if run(target, folder, options.only or [""], options.freeze_seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
