"""The same questions once per set of SHA-256 kernels that an implementation has.

Which one answers is named to it by the environment variable KVPACK_SHA256_KERNEL; `kernels` of the line
protocol tells what there is, and whether the one that was named has been taken.
"""

import argparse
import collections
import os

from . import drive

VARIABLE = "KVPACK_SHA256_KERNEL"
STATES = ("taken", "here", "absent")
DEFAULT_SAMPLE = 200


def add_arguments(parser):
    parser.add_argument("--kernels", metavar="NAMES", type=_names,
                        help="`all`, or names: one run for each set of SHA-256 kernels, with the whole of "
                             "what is asked for under the one that the implementation takes by itself, and a "
                             "sample of the large sweeps under the others")
    parser.add_argument("--kernel-sample", metavar="N", type=_count, default=DEFAULT_SAMPLE,
                        help="cases of each large sweep under the others (default %(default)s); 0 asks as much "
                             "as under the first")
    parser.add_argument("--list-kernels", action="store_true",
                        help="ask nothing; print which sets of SHA-256 kernels there are, and which of them this "
                             "machine does not run")


def _names(text):
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("no names")
    return names


def _count(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("negative")
    return number


def list_states(command):
    """Prints what an implementation has, and what of it this machine leaves out."""
    there = states(command)
    for label, wanted in (("run", ("taken", "here")), ("not run, this machine does not have them", ("absent",))):
        names = [name for name, state in there.items() if state in wanted]
        print("SHA-256 kernels %s: %s" % (label, " ".join(names) or "none"))


def states(command, timeout_s=120.0):
    """{name: state} of an implementation, in its own order."""
    endpoint = drive.Endpoint(command, timeout_s)
    try:
        answer = endpoint.ask(["kernels"])[0]
    finally:
        endpoint.close()
    words = answer.split("\t")
    found = collections.OrderedDict(word.rpartition(":")[::2] for word in words[1:])
    if words[0] != "ok" or not set(found.values()) <= set(STATES) or list(found.values()).count("taken") != 1:
        raise drive.Died("answered %s to kernels" % answer[:200])
    return found


def run_each(command, wanted, run):
    """Calls run(is_extra) under each of the sets wanted; the number of sets under which it failed.

    The one that is taken without being named comes first, and is the one that is no extra.
    """
    there = states(command)
    chosen = [name for name, state in there.items() if state == "taken"]
    names = list(there) if wanted == ["all"] else wanted
    unknown = [name for name in names if name not in there]
    if unknown:
        raise drive.Died("has no kernels called %s; there are %s" % (", ".join(unknown), ", ".join(there)))
    outer, failed = os.environ.get(VARIABLE), 0
    absent = [name for name in names if there[name] == "absent"]
    try:
        for name in [n for n in names if n in chosen] + [n for n in names if n not in chosen + absent]:
            os.environ[VARIABLE] = name
            if states(command)[name] != "taken":
                raise drive.Died("does not take the kernels %s when they are named" % name)
            print("--- SHA-256 kernels: %s%s" % (name, " (this machine's choice)" if name in chosen else ""),
                  flush=True)
            failed += 1 if run(name not in chosen) else 0
    finally:
        os.environ.pop(VARIABLE, None)
        if outer is not None:
            os.environ[VARIABLE] = outer
    for name in absent:
        print("--- SHA-256 kernels: %s: not run, this machine does not have them" % name)
    return failed
