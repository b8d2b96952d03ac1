#!/usr/bin/env bash
# Installs Hocket as a stranger would, each cell in a clone and an environment of its own, and
# prints a table: cell, exit code, seconds, size of the environment. Needs the package index.
#
#   tests/install_matrix.sh [CELL...]      without one: all but the test-* cells
#
#   say-3.12       make say, README's first command (3.11, 3.12, 3.13)
#   test-3.12      make test, the second one: the whole suite
#   pip-3.12       pip install . and then hocket say, hocket serve, README's Python lines
#   wheel-3.12     the same from the built wheel
#   sdist-3.12     the same from the built source archive
#   cpu-3.11       make say with TORCH_INDEX_URL, where that is set
#   space-3.12     make say in a folder with a space in its name
#   home-3.12      make say where nothing can be written at home
#   bare-3.12      make say with no compiler, ffmpeg or git on the path
#   macos-3.12     every pinned version has a wheel for macOS on arm64 (nothing is installed)
#   aarch64-3.12   and one for Linux on aarch64
#
# A cell whose Python is not on the path is left out, which is said. Settings: PYTHONS
# ("3.12 3.13"), TORCH_INDEX_URL (not for say-*) and TORCH as in the Makefile, SECONDS_EACH (900);
# KEEP=1 keeps the cells' folders.
# pip's configuration files are not read, since a stranger has none.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
read -ra pythons <<<"${PYTHONS:-3.11 3.12 3.13}"
limit=${SECONDS_EACH:-900}
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL PIP_CONSTRAINT MAKEFLAGS MFLAGS MAKELEVEL VIRTUAL_ENV
export PIP_CONFIG_FILE=/dev/null
index=${TORCH_INDEX_URL:-}
unset TORCH_INDEX_URL

clone() { # into ./checkout, or the folder that is given
    git clone --quiet "$root" "${1:-checkout}"
}

spoken() {
    test "$(wc -c <out.wav)" -gt 1000
}

say() { # PYTHON [VARIABLE=VALUE...]: README's first command in this checkout
    local python=$1
    shift
    make say PYTHON="$python" "$@"
    spoken
}

installed() { # PYTHON WHAT: in a clean environment, tried in a folder that is none of the project's
    "$1" -m venv venv
    if [ -n "$index" ]; then
        venv/bin/python -m pip install --quiet --no-deps --index-url "$index" \
            "${TORCH:-torch==2.13.0}"
    fi
    venv/bin/python -m pip install --quiet "$2"
    mkdir elsewhere
    (cd elsewhere && ../venv/bin/python "$root/tests/try_installed.py" "$root/README.md")
}

built() { # PYTHON wheel|sdist: its path, built in a clone
    "$1" -m venv builder >&2
    builder/bin/python -m pip install --quiet hatchling >&2
    (cd checkout && ../builder/bin/python -m hatchling build -t "$2" -d ../dist >&2)
    rm -r builder
    echo dist/*
}

pinned() { # VERSION PLATFORM...: every constraint is to be had as a wheel, without installing
    local version=$1 platforms=()
    shift
    for platform in "$@"; do platforms+=(--platform "$platform"); done
    # docopt is an archive of pure Python for every platform; uvloop, hf-xet and the others differ.
    grep -v -e '^#' -e '^docopt==' "$root/constraints/python$version.txt" >pins.txt
    echo "${TORCH:-torch==2.13.0}" >>pins.txt
    "python$version" -m venv venv
    venv/bin/python -m pip install --quiet --upgrade "pip>=25.3"
    # Each by itself: pip would ask this machine, not that platform, which of them belong together.
    venv/bin/python -m pip install --quiet --dry-run --no-deps --only-binary=:all: \
        "${platforms[@]}" --python-version "$version" --target nowhere --requirement pins.txt
}

bare_path() { # a folder with what the two commands need and nothing else
    mkdir bare
    for tool in sh env make uname cat touch rm mkdir dirname basename wc; do
        ln -s "$(command -v "$tool")" "bare/$tool"
    done
    ln -s "$("$1" -c 'import sys; print(sys.executable)')" "bare/$1"
    echo "$PWD/bare"
}

run_cell() { # CELL: in the current folder
    local kind=${1%-*} version=${1##*-}
    local python=python$version
    case $kind in
    say) clone && cd checkout && say "$python" ;;
    test) clone && cd checkout && make test PYTHON="$python" ;;
    pip) clone && installed "$python" ./checkout ;;
    wheel | sdist) clone && installed "$python" "./$(built "$python" "$kind")" ;;
    cpu) clone && cd checkout && say "$python" TORCH_INDEX_URL="$index" ;;
    space) clone "a folder" && cd "a folder" && say "$python" TORCH_INDEX_URL="$index" ;;
    home) clone && cd checkout && HOME=/proc say "$python" TORCH_INDEX_URL="$index" ;;
    bare)
        clone && path=$(bare_path "$python") && cd checkout
        PATH=$path say "$python" TORCH_INDEX_URL="$index"
        ;;
    macos) pinned "$version" macosx_14_0_arm64 ;;
    aarch64) pinned "$version" manylinux2014_aarch64 manylinux_2_{17,27,28}_aarch64 ;;
    *) echo "there is no cell $1" && return 2 ;;
    esac
}

if [ "${1:-}" = --cell ]; then # this script, called by itself under a time limit
    run_cell "$2"
    exit
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/hocket install.XXXXXX")
trap '[ -n "${KEEP:-}" ] || rm -rf "$work"' EXIT
cells=("$@")
if [ $# = 0 ]; then
    for kind in say pip wheel sdist cpu space home bare macos aarch64; do
        for version in "${pythons[@]}"; do cells+=("$kind-$version"); done
    done
fi

table=$(printf '%-14s %4s %8s %9s' cell rc seconds MB)
passed=0 failed=0
for cell in "${cells[@]}"; do
    if ! "python${cell##*-}" -c '' 2>/dev/null; then
        echo "$cell is left out: python${cell##*-} is not on the path"
        continue
    fi
    if [ "${cell%-*}" = cpu ] && [ -z "$index" ]; then
        echo "$cell is left out: TORCH_INDEX_URL is not set"
        continue
    fi
    echo "== $cell"
    folder="$work/$cell"
    mkdir "$folder"
    begin=$SECONDS
    rc=0
    (cd "$folder" && TORCH_INDEX_URL=$index timeout "$limit" bash "$root/tests/install_matrix.sh" \
        --cell "$cell") >"$folder.log" 2>&1 </dev/null || rc=$?
    tail -n "$([ $rc = 0 ] && echo 4 || echo 40)" "$folder.log"
    if [ $rc = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    size=$(find "$folder" -maxdepth 2 \( -name .venv -o -name venv \) -exec du -sm {} + | cut -f1)
    row=$(printf '%-14s %4d %8d %9s' "$cell" $rc $((SECONDS - begin)) "${size:-0}")
    table+=$'\n'$row
    [ -n "${KEEP:-}" ] || rm -rf "$folder"
done
echo
echo "$table"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
