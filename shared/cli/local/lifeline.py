"""Runs a program, and ends it when the parent process is gone (standard input closes).

    python -m shared.cli.local.lifeline PROGRAM [ARGUMENT ...]

Imports only the standard library, because this process lives as long as the program.
"""

import os
import signal
import subprocess
import sys
import threading

_PATIENCE_S = 5.0


def main() -> int:
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def stop(*_: object) -> None:
        process.terminate()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, not the terminal
    threading.Thread(target=_end_with_parent, args=(process,), daemon=True).start()
    return process.wait()


def _end_with_parent(process: "subprocess.Popen[bytes]") -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
