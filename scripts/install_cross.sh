#!/usr/bin/env bash
# What Forge's aarch64 toolchains need on Debian and Ubuntu: the cross compiler and the emulator of its probe (about 250 MB).
# Safe to run again; does nothing where both are there.
set -euo pipefail
if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
  echo "install_cross: aarch64-linux-gnu-g++ and qemu-aarch64 are there"
  exit 0
fi
command -v apt-get >/dev/null || {
  echo "install_cross: no apt-get: install a g++ for aarch64-linux-gnu (with its C library) and qemu-user with this system's tools" >&2
  exit 1
}
[ "$(id -u)" = 0 ] || {
  echo "install_cross: run as root (sudo scripts/install_cross.sh)" >&2
  exit 1
}
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
