#!/bin/sh
# Proves the CUDA path on a machine with a GPU: device and driver, kernels generated for it, judged and timed on it, against torch.
#
#   tests/gpu/run.sh [PYTHON]      PYTHON: an interpreter with yasp-toolkit[gaia,gaia-generator,gaia-cuda,forge-cuda]; default: python3
#
# Exit 0: everything passed, or there is no GPU here (the reason is printed). The report is written to ./gpu-report.json.
set -eu
python="${1:-python3}"
here="$(cd "$(dirname "$0")" && pwd)"
reason="$("$python" - <<'EOF'
import sys
try:
    from ytk_gaia.evaluator.cuda_device import find_devices
except ImportError as err:
    sys.exit(f"ytk_gaia is not installed for {sys.executable}: {err}")
devices, why = find_devices()
for d in devices:
    print(f"{d.index}: {d.name}, sm_{d.sm}, CUDA {d.driver_cuda[0]}.{d.driver_cuda[1]}, L2 {d.l2_bytes >> 10} KiB, {d.bandwidth / 1e9:.0f} GB/s", file=sys.stderr)
print(why)
EOF
)"
if [ -n "$reason" ]; then
  echo "skipped: $reason"
  exit 0
fi
exec "$python" -m pytest "$here" --import-mode=importlib -p no:cacheprovider -q -rA "--rootdir=$here/../.." -c "$here/../../pyproject.toml"
