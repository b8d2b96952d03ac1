#!/bin/sh
# Makes the recordings anew: runs the commands of README.md. `hocket` must be on the path.
set -eu
cd "$(dirname "$0")"
sed -n '/^```console$/,/^```$/p' README.md | grep -v '^```' | sh -eu
