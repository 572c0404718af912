"""Start nats-server as a child that ends with the broker: ``python nats_launcher.py BROKER PROGRAM ARGUMENT...``

The kernel kills a process with its parent only if the process asks for that itself, which nats-server does not. This
program asks, and then becomes nats-server. It imports nothing of HookMQ, so that it starts quickly.
"""

import ctypes
import os
import signal
import sys

PARENT_DEATH = 1
"""The value of PR_SET_PDEATHSIG."""


def main() -> None:
    """Become the program on the command line. Exit with 3 if the broker has already ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(PARENT_DEATH, signal.SIGKILL) != 0:
        raise SystemExit(f"prctl: {os.strerror(ctypes.get_errno())}")
    # The broker may have ended before the kernel knew that it matters.
    if os.getppid() != int(sys.argv[1]):
        raise SystemExit(3)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
