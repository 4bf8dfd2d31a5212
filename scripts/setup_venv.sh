#!/usr/bin/env bash
# Make a virtual environment with the whole toolkit and its tests' needs: setup_venv.sh DIR
# Pinned by constraints.txt; safe to run again (pip then finds everything there).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: setup_venv.sh DIR}
python=${PYTHON:-python3}
fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }
command -v "$python" >/dev/null || fail "$python not found: install Python 3.11, or set PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' \
  || fail "$("$python" --version) is too old: install Python 3.11, or set PYTHON=/path/to/python3.11"
command -v g++ >/dev/null || fail "g++ not found: kernels and the engine host are compiled here (Debian/Ubuntu: apt-get install g++)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "setup: installing into $venv (a few minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
# For its TensorRT headers alone: nothing of it is imported, so nothing that it depends on is needed.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps kernel-lens
touch "$venv/.ready"
