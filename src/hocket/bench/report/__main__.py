"""The page of a report that `hocket bench serve --json` wrote.

python -m hocket.bench.report REPORT.json PAGE.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hocket.bench.report.report import read_report, write_page
from hocket.errors import HocketError


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the page of a report of `hocket bench serve`."
    )
    parser.add_argument("report", type=Path, help="JSON, as `hocket bench serve --json` writes it")
    parser.add_argument("page", type=Path, help="HTML, which needs no other file")
    arguments = parser.parse_args()
    try:
        write_page(arguments.page, read_report(arguments.report, "serve"))
    except HocketError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
