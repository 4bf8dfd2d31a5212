#!/usr/bin/env bash
# Compare protos with the commit this change starts from: origin/main where it is another commit, else the parent.
set -euo pipefail
cd "$(dirname "$0")/.."
buf=${1:-buf}
base=$(git merge-base HEAD origin/main 2>/dev/null || true)
if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
  base=$(git rev-parse --quiet --verify 'HEAD~1' || true)
fi
if [ -z "$base" ] || ! git cat-file -e "$base:buf.yaml" 2>/dev/null; then
  echo "no earlier protos to compare with"
  exit 0
fi
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive "$base" buf.yaml protos | tar -x -C "$old"
"$buf" breaking --against "$old" && echo "wire-compatible with $base"
