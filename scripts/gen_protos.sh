#!/usr/bin/env bash
# Regenerate protos/ytk_proto/v1/*_pb2*.py(i). With --check: fail where the committed files differ.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
# The plugins (protoc-gen-mypy*) live beside the interpreter.
PATH="$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH"
export PATH
"$python" -m grpc_tools.protoc -Iprotos \
  --python_out=protos --grpc_python_out=protos --mypy_out=quiet:protos --mypy_grpc_out=quiet:protos \
  protos/ytk_proto/v1/*.proto
if [ "${1:-}" = "--check" ]; then
  changed=$(git status --porcelain -- protos)
  if [ -n "$changed" ]; then
    printf 'generated code differs from protos/*.proto; run scripts/gen_protos.sh and commit:\n%s\n' "$changed" >&2
    exit 1
  fi
  echo "generated code is up to date"
fi
