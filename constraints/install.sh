#!/bin/sh
# Makes an environment with Hocket (editable) and its tools; the Makefile calls it.
#   install.sh PYTHON FOLDER TORCH TORCH_INDEX_URL TRITON tested|latest|lowest
set -eu
python=$1 venv=$2 torch=$3 index=$4 triton=$5 versions=$6

fail() {
    echo "$*" >&2
    exit 1
}

command -v "$python" >/dev/null ||
    fail "there is no $python here; give one: make PYTHON=python3.12 ..."
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
3.11 | 3.12 | 3.13) ;;
*) fail "Hocket needs Python 3.11-3.13, this is $version; give one: make PYTHON=python3.12 ..." ;;
esac
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make environments; install python$version-venv (Debian, Ubuntu)"

# What comes, before it comes.
if [ -n "$index" ]; then
    build="from $index"
elif [ "$(uname -s)" = Darwin ]; then
    build="0.1 GB to download"
else
    build="may be the CUDA build: 2.7 GB to download, 5 GB on disk"
    case $torch in *==*) build="$build; its CPU build, 0.2 GB: see TORCH_INDEX_URL in README" ;; esac
fi
echo "Installing into $venv: $torch ($build), Hocket's libraries and tools (0.4 GB)"

# One of another Python is made anew, and so are those whose versions nobody pinned.
if [ "$versions" != tested ] || [ "$("$venv/bin/python" -V 2>/dev/null)" != "$("$python" -V)" ]; then
    "$python" -m venv --clear "$venv"
fi
set -- --quiet
case $versions in
tested)
    pins=constraints/python$version.txt
    set -- "$@" --constraint "$pins"
    ;;
lowest)
    "$venv/bin/python" constraints/lowest.py >"$venv/lowest.txt"
    set -- "$@" --constraint "$venv/lowest.txt"
    ;;
esac
pip() {
    "$venv/bin/python" -m pip "$@"
}
# pip keeps at home what it downloads and builds; where nothing can be written, it does without.
cache=$(pip cache dir 2>/dev/null) && mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] ||
    export PIP_NO_CACHE_DIR=1
pip install "$@" --upgrade "pip>=25.3"
[ -z "${pins:-}" ] || set -- "$@" --build-constraint "$pins"
# PyTorch from its index, and whatever it needs from the usual one.
pip install --quiet --no-deps ${index:+--index-url "$index"} "$torch"
pip install "$@" "$torch" --editable . --group dev
# The kernels are tested in Triton's interpreter where there is no GPU; there is none for macOS.
if [ "$(uname -s)" = Linux ]; then
    "$venv/bin/python" -c 'from importlib.util import find_spec; exit(not find_spec("triton"))' ||
        pip install "$@" "$triton"
fi
