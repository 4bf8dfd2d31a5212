"""1 GiB to the controller and back against raw TCP: ``python -m benchmarks.transfer [--mib N]``.

Ours: a real controller process; the client hashes (BLAKE3), sends 1 MiB chunks, the controller verifies, writes, syncs and
renames. Peer in the same run: one TCP connection over loopback between two processes, 1 MiB writes, the receiver counts and
throws away: no hash, no file. Target of the ratio: >= 0.15, and <= 160 MiB resident in either process.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._controller import controller
from benchmarks._report import show

RECEIVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
buffer = bytearray(1 << 20)
total = 0
while count := connection.recv_into(buffer):
    total += count
connection.sendall(total.to_bytes(8, "big"))
"""
# A process of its own, so that its peak memory is the client's and not the benchmark's.
CLIENT = """
import resource, sys, time
from pathlib import Path
from ytk_core.artifacts import SyncArtifactClient
from ytk_core.channels import sync_channel
address, token, source, back = sys.argv[1:]
with sync_channel(address, token) as channel:
    client = SyncArtifactClient(channel)
    start = time.perf_counter()
    (blob,) = client.ensure({"blob": Path(source)})
    up = time.perf_counter() - start
    start = time.perf_counter()
    client.download(blob.digest, Path(back))
    down = time.perf_counter() - start
print(up, down, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def raw_tcp(size: int) -> float:
    """Give the seconds to send ``size`` bytes to another process and have their count back."""
    with subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        chunk = os.urandom(1 << 20)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            start = time.perf_counter()
            for _ in range(size >> 20):
                connection.sendall(chunk)
            connection.shutdown(socket.SHUT_WR)
            received = int.from_bytes(connection.recv(8), "big")
            seconds = time.perf_counter() - start
    assert received == size, (received, size)
    return seconds


def main() -> None:
    """Three rounds, ours and the peer in turn; new random content each, so that nothing is already there."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--mib", type=int, default=1024)
    arguments.add_argument("--json", action="store_true")
    mib = arguments.parse_args().mib
    rounds: list[tuple[float, float, float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        with controller(work) as server:
            for number in range(3):
                source = work / "blob"
                with source.open("wb") as file:
                    for _ in range(mib):
                        file.write(os.urandom(1 << 20))
                raw = raw_tcp(mib << 20)
                argv = [
                    sys.executable,
                    "-c",
                    CLIENT,
                    server.address,
                    server.client_token,
                    str(source),
                    str(work / "back"),
                ]
                done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
                up, down, peak = map(float, done.stdout.split())
                rounds.append((raw, up, down, peak))
                print(f"round {number + 1}: raw {raw:.2f} s, up {up:.2f} s, down {down:.2f} s", file=sys.stderr)
                (work / "back").unlink()
            server_peak = server.peak_mib()
    rows: list[dict[str, object]] = []
    for name, column in (("raw TCP (peer)", 0), ("upload", 1), ("download", 2)):
        rates = [mib / entry[column] for entry in rounds]
        ratios = [entry[0] / entry[column] for entry in rounds]
        rows.append(
            {
                "what": name,
                "MiB/s (median)": statistics.median(rates),
                "of raw TCP (median)": statistics.median(ratios),
                "range": f"{min(ratios):.2f}..{max(ratios):.2f}",
            }
        )
    rows.append(
        {
            "what": "peak resident MiB: controller, client",
            "MiB/s (median)": f"{server_peak:.0f}, {max(entry[3] for entry in rounds):.0f}",
            "of raw TCP (median)": "",
            "range": "",
        }
    )
    show(f"{mib} MiB against raw TCP (target >= 0.15, <= 160 MiB)", rows)


if __name__ == "__main__":
    main()
