"""Exhaustive sweeps: every truncation and every single-bit flip of the small fixtures.

The verdicts of the large ones are recorded, as runs of equal answers over cut lengths and bit numbers (bit
b of byte i is number 8 * i + b); the small ones are cheap enough to be judged by this codec while they run.
"""

import collections
import itertools
import random

from . import fixtures, objects
from .object_cases import KEY, SIDECAR_SPAN, SPAN
from .operations import TABLE
from .protocol import Session
from .rings import RINGS
from .words import flip

# `request` has {} for the damaged bytes, which are those of `slot`.
Sweep = collections.namedtuple("Sweep", "name ring slot request")
Run = collections.namedtuple("Run", "operation first last answer")
OPERATIONS = ("cut", "flip")


def recorded():
    """The sweeps whose verdicts are kept in sweeps.tsv."""
    rows = []
    for name, codec, mode, slot, family in (
            ("chunk", "raw", "plain", "chunk", "@family"),
            ("chunk_re", "raw", "encrypted", "chunk_re", "@family"),
            ("chunk_lp", "lossless", "plain", "chunk_lp", "@family_l"),
            ("chunk_e", "lossless", "encrypted", "chunk_e", "@family_l")):
        ref = objects.encode_ref(fixtures.fixture(codec, mode, "plain").ref).hex()
        request = " ".join(("verdict chunk", family, KEY, SPAN, ref, "{}"))
        rows.append(Sweep(name, "fixture", slot, request))
    ref = objects.encode_ref(fixtures.sidecar_chunk().ref).hex()
    rows.append(Sweep("sidecar_chunk", "fixture", "sidecar_chunk",
                      " ".join(("verdict chunk @sidecar_family", KEY, SIDECAR_SPAN, ref, "{}"))))
    rows += [Sweep("pack", "fixture", "pack", "verdict pack 7 {}"),
             Sweep("pack_e", "fixture", "pack_e", "verdict pack 7 {}")]
    for slot in ("one", "chain3"):
        for ring in ("fixture", "none"):
            rows.append(Sweep("%s-%s" % (slot, ring), ring, slot, "verdict pack_set {}"))
    return rows


def live():
    """The sweeps that are judged while they run."""
    limits = " 65536 65536 4398046511104"
    rows = [Sweep(slot, "none", slot, request) for slot, request in (
        ("declaration", "verdict declaration {}"), ("family", "verdict valid_family {}"),
        ("schema", "verdict schema {}"), ("manifest", "verdict valid_manifest {}" + limits),
        ("delta_manifest", "verdict valid_manifest {}" + limits), ("sidecar", "verdict sidecar {}"),
        ("every_op", "verdict transform {}"), ("rotation", "verdict rotation {}"),
        ("raw_frame", "verdict frame raw {} 16"), ("lossless_frame", "verdict frame lossless {} 16"))]
    return rows


def size_of(data, operation):
    """How many cases a sweep has: one per length below the whole, or one per bit."""
    return len(data) if operation == "cut" else 8 * len(data)


def request(sweep, operation, number):
    if operation == "cut":
        edit = "/cut:%d" % number
    else:
        edit = flip(number >> 3, 1 << (number & 7))
    return sweep.request.replace("{}", "@%s%s" % (sweep.slot, edit)).replace(" ", "\t")


def session(slots):
    """An endpoint of this codec with slots filled."""
    out = Session(TABLE)
    out.slots.update(slots)
    return out


def use_ring(endpoint, ring):
    endpoint.answer("\t".join(["keys"] + RINGS[ring]))


def judge(sweep, slots, operation, numbers):
    """This codec's answers to some cases of a sweep, in order."""
    endpoint = session(slots)
    use_ring(endpoint, sweep.ring)
    return [endpoint.answer(request(sweep, operation, number)) for number in numbers]


def runs(operation, answers, first=0):
    """Equal neighbours among answers that are numbered from `first`."""
    out, at = [], first
    for answer, group in itertools.groupby(answers):
        count = sum(1 for _ in group)
        out.append(Run(operation, at, at + count - 1, answer))
        at += count
    return out


def merge(pieces):
    """Runs of neighbouring pieces as one list."""
    out = []
    for run in itertools.chain.from_iterable(pieces):
        last = out[-1] if out else None
        if last and (last.operation, last.answer, last.last + 1) == (run.operation, run.answer, run.first):
            out[-1] = last._replace(last=run.last)
        else:
            out.append(run)
    return out


def tally(all_runs):
    """{(operation, answer): how many}."""
    counts = collections.Counter()
    for run in all_runs:
        counts[run.operation, run.answer] += run.last - run.first + 1
    return counts


def answers_of(all_runs, operation, total):
    """The answer of every case by its number, or None unless the runs give each exactly one."""
    out = []
    for run in all_runs:
        if run.operation == operation:
            if run.first != len(out):
                return None
            out += [run.answer] * (run.last - run.first + 1)
    return out if len(out) == total else None


def telling_numbers(all_runs, operation, sample, seed=1):
    """Both ends of every run, and a random sample: the cases a reduced sweep asks."""
    numbers, total = set(), 0
    for run in all_runs:
        if run.operation == operation:
            numbers.update((run.first, run.last))
            total = max(total, run.last + 1)
    numbers.update(random.Random(seed).sample(range(total), min(sample, total)))
    return sorted(numbers)
