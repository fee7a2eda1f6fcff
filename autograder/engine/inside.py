"""The first program in the jail: it sets the limits, gives up root, and becomes the worker.

    python -I -S inside.py JSON PROGRAM ARGUMENT ...

JSON holds `limits`, numbers by the name of a resource, and `uid`, the user to become or null. It
runs before any of a student's code, and imports nothing but the standard library.
"""

import json
import os
import resource
import sys


def main(orders: str, program: list[str]) -> None:
    """Carry out the orders and run the program in place of this one."""
    given = json.loads(orders)
    for name, most in given["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    if given["uid"] is not None:
        os.setgroups([])
        os.setgid(given["uid"])
        os.setuid(given["uid"])
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
