#!/usr/bin/env python3
"""Makes the data files of the kit from the reference codec.

  make_vectors.py --check           every file is what this codec makes; of sweeps.tsv a sample
  make_vectors.py --check --full    sweeps.tsv too, case by case (minutes)
  make_vectors.py --write           write all files but sweeps.tsv
  make_vectors.py --write --full    write sweeps.tsv too (minutes)
"""

import argparse
import multiprocessing
import os
import sys

from kvpack_ref import (blob_cases, json_cases, known_answers, object_cases, replay, rings, semantic_cases,
                        set_cases, slots, sweeps, tables)
from kvpack_ref.crypto import sha256

SWEEPS = "vectors/sweeps.tsv"
SWEEP_SAMPLE = 300
PIECE = 16384

CASE_COLUMNS = "case\tring\trequest\tanswer (one or more columns)"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    files = make_files()
    if options.full:
        files.update(sweep_files(compute_sweeps()))
    elif options.check:
        problems = check_sweeps()
        if problems:
            print("\n".join(problems))
            return 1
    if options.write:
        return write(files)
    return check(files)


def write(files):
    for path, text in sorted(files.items()):
        with open(os.path.join(tables.KIT, path), "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
        print("%9d  %s" % (len(text), path))
    return 0


def check(files):
    stale = [path for path, text in sorted(files.items()) if not is_current(path, text)]
    for path in stale:
        print("stale: " + path)
    print("%d files, %d stale" % (len(files), len(stale)))
    return 1 if stale else 0


def is_current(path, text):
    try:
        with open(os.path.join(tables.KIT, path), encoding="utf-8", newline="") as source:
            return source.read() == text
    except FileNotFoundError:
        return False


# ------------------------------------------------------------------------------------- all but the sweeps

def make_files():
    """{path under the kit: text}."""
    values = slots.tables()
    digests = [(suite, name, len(value), sha256(value).hex())
               for (suite, name), value in values["production_v1"].items()]
    columns = "suite\tname\tbytes\tsha256"
    files = {"vectors/production_v1.sha256": tables.render(
        ["kvpack production-v1 mutable-wire deterministic vectors", columns], digests)}
    for name, title in (("production_v1", "the values that production_v1.sha256 lists"),
                        ("extras", "known answers beyond production_v1"),
                        ("pack_sets", "pack sets of objects in production_v1")):
        rows = tables.value_rows((suite, row, value) for (suite, row), value in values[name].items())
        files["vectors/%s.tsv" % name] = tables.render([title, columns + "\tvalue"], rows)
    files["vectors/slots.tsv"] = tables.render(
        ["what @NAME stands for in a request", "slot\tfile\tsuite\tname"],
        [(slot,) + where for slot, where in slots.SLOTS.items()])
    files["vectors/rings.tsv"] = tables.render(
        ["key rings by name, as the words after keys", "ring\twords (one or more columns)"],
        [[name] + words for name, words in rings.RINGS.items()])
    endpoint = sweeps.session(slots.values(values))
    for path, title, cases in (
            ("pins.tsv", "precedence pins: which of several checks speaks first", object_cases.pins()),
            ("vectors/objects.tsv", "chunk and pack decoders, step by step", object_cases.cases()),
            ("vectors/pack_set_cases.tsv", "pack sets damaged, forged and wrongly composed",
             set_cases.cases()),
            ("vectors/known_answers.tsv", "the other operations", known_answers.cases()),
            ("vectors/blobs.tsv", "blobs: rows, their refusals, a pack that holds one", blob_cases.cases()),
            ("vectors/canonical_json.tsv", "canonical JSON", json_cases.cases())):
        answered = [answer_case(endpoint, case) for case in cases]
        files[path] = tables.render([title, CASE_COLUMNS], tables.case_rows(answered))
    files["semantic.tsv"] = tables.render(
        ["one manifest or more per rule of family and manifest validation", "rule\tcase\tverdict\tmanifest"],
        [(case.rule, case.name, case.verdict, case.manifest.hex()) for case in semantic_cases.cases()])
    return files


def answer_case(endpoint, case):
    """The case with this codec's answer where none is laid down; where one is, this codec must give it."""
    sweeps.use_ring(endpoint, case.ring)
    answer = endpoint.answer(case.request.replace(" ", "\t"))
    if case.answer is None:
        return case._replace(answer=answer)
    if not replay.agrees(answer, tables.expand(case.answer)):
        sys.exit("%s: laid down %.200s, this codec says %.200s" % (case.name, case.answer, answer))
    return case


# ------------------------------------------------------------------------------------------------- sweeps

def slot_values():
    return slots.values(slots.tables())


def compute_piece(piece):
    index, operation, first, count = piece
    sweep = sweeps.recorded()[index]
    answers = sweeps.judge(sweep, slot_values(), operation, range(first, first + count))
    return sweeps.runs(operation, answers, first)


def compute_sweeps():
    """{sweep name: runs} of every case, on all processors."""
    values = slot_values()
    pieces = []
    for index, sweep in enumerate(sweeps.recorded()):
        for operation in sweeps.OPERATIONS:
            total = sweeps.size_of(values[sweep.slot], operation)
            pieces += [(index, operation, first, min(PIECE, total - first))
                       for first in range(0, total, PIECE)]
    with multiprocessing.Pool() as pool:
        computed = pool.map(compute_piece, pieces, chunksize=1)
    return {sweep.name: sweeps.merge(runs for piece, runs in zip(pieces, computed) if piece[0] == index)
            for index, sweep in enumerate(sweeps.recorded())}


def sweep_files(all_runs):
    rows, tallies = [], []
    for sweep in sweeps.recorded():
        rows += [(sweep.name,) + run for run in all_runs[sweep.name]]
        tallies += [(sweep.name, operation, count, answer)
                    for (operation, answer), count in sorted(sweeps.tally(all_runs[sweep.name]).items())]
    index = [(sweep.name, sweep.ring, sweep.slot, sweep.request) for sweep in sweeps.recorded()]
    return {
        SWEEPS: tables.render(
            ["verdicts of every truncation (cut, by bytes kept) and bit flip (flip, by bit number)",
             "sweep\toperation\tfirst\tlast\tanswer"], rows),
        "vectors/sweep_tallies.tsv": tables.render(["how often each verdict occurs in a sweep",
                                                    "sweep\toperation\tcount\tanswer"], tallies),
        "vectors/sweep_requests.tsv": tables.render(["what is asked in a sweep; {} is the damaged slot",
                                                     "sweep\tring\tslot\trequest"], index)}


def check_sweeps():
    """A sample of every recorded sweep, and both ends of each run, judged again."""
    values, problems = slot_values(), []
    recorded = replay.load_sweeps()
    for sweep in sweeps.recorded():
        runs = recorded.get(sweep.name, [])
        for operation in sweeps.OPERATIONS:
            numbers = sweeps.telling_numbers(runs, operation, SWEEP_SAMPLE)
            total = sweeps.size_of(values[sweep.slot], operation)
            expected = sweeps.answers_of(runs, operation, total)
            answers = sweeps.judge(sweep, values, operation, numbers)
            if expected is None or answers != [expected[number] for number in numbers]:
                problems.append("stale: %s, sweep %s %s" % (SWEEPS, sweep.name, operation))
    if problems:
        return problems
    return ["stale: " + path for path, text in sweep_files(recorded).items() if not is_current(path, text)]


if __name__ == "__main__":
    sys.exit(main())
