#!/usr/bin/env python3
"""Runs a test program once under each set of SHA-256 kernels: `every_kernel.py KIT ENDPOINT PROGRAM [ARGUMENT...]`.

ENDPOINT is the endpoint of the kit that tells what sets there are. The set that this machine takes by itself is left out:
the ordinary run of the program has it. Sets that the machine lacks are listed as not run.
"""
import pathlib
import subprocess
import sys


def main():
    if len(sys.argv) < 4:
        print(__doc__)
        return 2
    kit, endpoint, *program = sys.argv[1:]
    sys.path.insert(0, str(pathlib.Path(kit) / "python"))
    from kvpack_ref import drive, kernels

    def under_kernels(is_extra):
        return subprocess.run(program, check=False).returncode if is_extra else 0
    try:
        return 1 if kernels.run_each(endpoint, ["all"], under_kernels) else 0
    except drive.Died as death:
        print(f"the endpoint {death}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
