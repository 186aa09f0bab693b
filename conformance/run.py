#!/usr/bin/env python3
"""Checks an implementation of the durable formats against the vectors and corpora of this kit.

  run.py                                  the Python codec itself
  run.py --impl "build/dev/tests/endpoint"
  run.py --impl ... --kernels all         once per set of SHA-256 kernels that it has
  run.py --impl ... --list-kernels        which sets those are, and which this machine does not run
  run.py --impl ... --against "python3 conformance/python/endpoint.py"
                                          two implementations, answer by answer

Exit status 0: every answer agreed. 1: an answer differed, a request was unsupported, or an endpoint
died. 2: usage. The line protocol is in README.md.
"""

import argparse
import collections
import os
import shlex
import sys
import time

KIT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(KIT, "python"))

from kvpack_ref import drive, kernels, protocol, replay, sweeps, tables  # noqa: E402  the path comes first

BATCH = 2048
SHOWN = 10
DEFAULT_SAMPLE = 2000
OWN_ENDPOINT = "%s %s" % (shlex.quote(sys.executable),
                          shlex.quote(os.path.join(KIT, "python", "endpoint.py")))


class Report:
    """What was asked and what went wrong, by group."""

    def __init__(self, allowed):
        self.allowed = allowed
        self.asked = collections.Counter()
        self.wrong = collections.Counter()
        self.unsupported = collections.Counter()
        self._shown = collections.Counter()

    def judge(self, group, name, request, expected, answers):
        """Compare one answer, or one of each implementation, with what is expected."""
        self.asked[group] += 1
        for who, answer in answers:
            if answer == "unsupported":
                self.unsupported[kind_of(request)] += 1
            elif not replay.agrees(answer, expected):
                self.differs(group, name, request, expected, who, answer)

    def differs(self, group, name, request, expected, who, answer):
        self.wrong[group] += 1
        self._shown[group] += 1
        if self._shown[group] <= SHOWN:
            print("WRONG %s: %s%s" % (group, name, " (%s)" % who if who else ""))
            for label, text in (("request", request), ("expected", expected), ("answer", answer)):
                print("  %-9s%s" % (label, shorten(text.replace("\t", " "))))
        elif self._shown[group] == SHOWN + 1:
            print("WRONG %s: more, not shown" % group)

    def failed(self):
        return sum(self.wrong.values()) + sum(
            count for kind, count in self.unsupported.items() if kind not in self.allowed)

    def print(self, seconds):
        for group, count in self.asked.items():
            print("%-16s %9d checked  %6d wrong" % (group, count, self.wrong[group]))
        for kind, count in sorted(self.unsupported.items()):
            print("unsupported      %9d requests of %s%s" % (count, kind, " (allowed)" if kind in self.allowed
                                                             else ""))
        total = sum(self.asked.values())
        print("%s: %d checked, %d wrong, %d unsupported, %.1f s"
              % ("FAILED" if self.failed() else "passed", total, sum(self.wrong.values()),
                 sum(self.unsupported.values()), seconds))


def kind_of(request):
    return " ".join(request.split("\t")[:2])


def shorten(text, limit=300):
    return text if len(text) <= limit else "%s... (%d characters)" % (text[:limit], len(text))


class Runner:
    """Asks one or two endpoints the same requests."""

    def __init__(self, commands, report, timeout_s):
        self.endpoints = [drive.Endpoint(command, timeout_s) for command in commands]
        self.names = ["", ""] if len(commands) == 1 else ["--impl", "--against"]
        self.report = report
        self.ring = None

    def ask(self, requests):
        """One list of answers per endpoint."""
        return [endpoint.ask(requests) for endpoint in self.endpoints]

    def must(self, requests):
        """Requests that only set the stage; any answer but ok ends the run."""
        for name, answers in zip(self.names, self.ask(requests)):
            for request, answer in zip(requests, answers):
                if answer.split("\t")[0] != "ok":
                    raise drive.Died("%s answered %s to %s" % (name or "the endpoint", shorten(answer),
                                                               shorten(request.replace("\t", " "))))

    def use_ring(self, ring):
        if ring != self.ring:
            self.must(["\t".join(["keys"] + self.rings[ring])])
            self.ring = ring

    def load(self):
        """Fill the slots and learn the rings."""
        self.rings = {name: words for name, *words in tables.read(os.path.join(tables.VECTORS, "rings.tsv"))}
        self.values = replay.load_values()
        self.slots = replay.load_slots(self.values)
        for name, answers in zip(self.names, self.ask(["hello"])):
            words = answers[0].split("\t")
            if words[:2] != ["ok", protocol.PROTOCOL] or len(words) != 3:
                raise drive.Died("answered %s to hello" % shorten(answers[0]))
            print("%s%s" % (name + " is " if name else "endpoint is ", words[2]))
        self.must(["slot\t%s\t%s" % (name, value.hex()) for name, value in self.slots.items()])
        self.must(["keys\tnone"])
        self.ring = "none"

    def cases(self, group, cases):
        """Cases with a name, a ring, a request and an answer of their own."""
        for start in range(0, len(cases), BATCH):
            batch = cases[start:start + BATCH]
            requests, asked = [], []
            for case in batch:
                if case.ring != self.ring:
                    requests.append("\t".join(["keys"] + self.rings[case.ring]))
                    asked.append(None)
                    self.ring = case.ring
                requests.append(case.request.replace(" ", "\t"))
                asked.append(case)
            for case, request, *answers in zip(asked, requests, *self.ask(requests)):
                if case is not None:
                    self.report.judge(group, case.name, request, case.answer, zip(self.names, answers))
                elif any(answer != "ok" for answer in answers):
                    raise drive.Died("answered %s to keys" % answers)

    def sweep(self, group, sweep, operation, numbers, expected):
        """The damaged slot of a sweep under some cuts or flips; `expected` gives the answers in order."""
        self.use_ring(sweep.ring)
        label = "%s %s" % (sweep.name, operation)
        tally = collections.Counter()
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start:start + BATCH]
            requests = [sweeps.request(sweep, operation, number) for number in batch]
            wanted = expected(batch)
            answers = self.ask(requests)
            tally.update(answers[0])
            if all(given == wanted for given in answers):
                self.report.asked[group] += len(batch)
                continue
            for number, request, want, *given in zip(batch, requests, wanted, *answers):
                self.report.judge(group, "%s %d" % (label, number), request, want, zip(self.names, given))
            if all(set(given) == {"unsupported"} for given in answers):
                break
        return tally


def small_sweeps(runner):
    """Every damage to the small objects, judged by this codec as it goes."""
    for sweep in sweeps.live():
        size = len(runner.slots[sweep.slot])
        slots = {sweep.slot: runner.slots[sweep.slot]}
        for operation, count in (("cut", size), ("flip", 8 * size)):
            runner.sweep("small-sweeps", sweep, operation, range(count),
                         lambda batch, s=sweep, o=operation: sweeps.judge(s, slots, o, batch))


def large_sweeps(runner, sample):
    """Chunks, packs and sets, against the recorded verdicts; `sample` is None for all of them."""
    recorded = replay.load_sweeps()
    tallies = {(name, operation, answer): int(count) for name, operation, count, answer in tables.read(
        os.path.join(tables.VECTORS, "sweep_tallies.tsv"))}
    for name, ring, slot, request in tables.read(os.path.join(tables.VECTORS, "sweep_requests.tsv")):
        sweep = sweeps.Sweep(name, ring, slot, request)
        for operation in sweeps.OPERATIONS:
            total = sweeps.size_of(runner.slots[slot], operation)
            answers = sweeps.answers_of(recorded[name], operation, total)
            if sample is None:
                numbers = range(total)
            else:
                numbers = sweeps.telling_numbers(recorded[name], operation, sample)
            counted = runner.sweep("large-sweeps", sweep, operation, numbers,
                                   lambda batch, a=answers: [a[number] for number in batch])
            if sample is None:
                wanted = {key[2]: count for key, count in tallies.items() if key[:2] == (name, operation)}
                if counted != wanted and "unsupported" not in counted:
                    runner.report.differs("large-sweeps", "%s %s tally" % (name, operation), request,
                                          str(wanted), "", str(dict(counted)))


GROUPS = collections.OrderedDict((
    ("vectors", lambda r, _: r.cases("vectors", replay.production(r.values))),
    ("extras", lambda r, _: r.cases("extras", replay.extras(r.values))),
    ("rejections", lambda r, _: r.cases("rejections", replay.rejections())),
    ("pins", lambda r, _: r.cases("pins", replay.corpus("pins.tsv"))),
    ("semantic", lambda r, _: r.cases("semantic", replay.semantic())),
    ("objects", lambda r, _: r.cases("objects", replay.corpus("vectors/objects.tsv"))),
    ("known-answers", lambda r, _: r.cases("known-answers", replay.corpus("vectors/known_answers.tsv"))),
    ("blobs", lambda r, _: r.cases("blobs", replay.corpus("vectors/blobs.tsv"))),
    ("canonical-json", lambda r, _: r.cases("canonical-json", replay.corpus("vectors/canonical_json.tsv"))),
    ("pack-sets", lambda r, _: r.cases("pack-sets", replay.pack_sets(r.values)
                                       + replay.corpus("vectors/pack_set_cases.tsv"))),
    ("small-sweeps", lambda r, _: small_sweeps(r)),
    ("large-sweeps", large_sweeps),
))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", metavar="COMMAND", default=OWN_ENDPOINT, help="the endpoint to check")
    parser.add_argument("--against", metavar="COMMAND", help="a second endpoint to ask the same")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--sample", type=int, default=DEFAULT_SAMPLE, metavar="N",
                       help="of each large sweep ask N random cases and those where verdicts change "
                            "(default %(default)s)")
    depth.add_argument("--full", action="store_true", help="ask every case of every sweep")
    parser.add_argument("--only", metavar="GROUPS", help="these groups, of: " + " ".join(GROUPS))
    parser.add_argument("--allow", metavar="KINDS", default="",
                        help="operations that may be unsupported, such as 'encode key,encode frame'")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS",
                        help="longest silence while an answer is owed (default %(default)s)")
    kernels.add_arguments(parser)
    options = parser.parse_args()
    options.groups = options.only.split(",") if options.only else list(GROUPS)
    unknown = [group for group in options.groups if group not in GROUPS]
    if unknown:
        parser.error("no such group: " + " ".join(unknown))
    return options


# What they ask hashes nothing.
KERNEL_FREE = ("small-sweeps", "canonical-json", "semantic")


def main():
    options = arguments()
    sample = None if options.full else options.sample
    if not options.kernels and not options.list_kernels:
        return run(options, options.groups, sample)
    others = [group for group in options.groups if group not in KERNEL_FREE]

    def under_kernels(is_extra):
        if is_extra:
            return run(options, others, options.kernel_sample or sample)
        return run(options, options.groups, sample)
    try:
        if options.list_kernels:
            kernels.list_states(options.impl)
            return 0
        return 1 if kernels.run_each(options.impl, options.kernels, under_kernels) else 0
    except drive.Died as death:
        print("FAILED: an endpoint %s" % death)
        return 1


def run(options, groups, sample):
    """Asks everything once; the exit status."""
    report = Report({kind.strip() for kind in options.allow.split(",")})
    started = time.monotonic()
    commands = [options.impl] + ([options.against] if options.against else [])
    runner = Runner(commands, report, options.timeout)
    try:
        runner.load()
        for group in groups:
            GROUPS[group](runner, sample)
        statuses = [endpoint.close() for endpoint in runner.endpoints]
    except drive.Died as death:
        for endpoint in runner.endpoints:
            endpoint.kill()
        print("FAILED: an endpoint %s" % death)
        return 1
    report.print(time.monotonic() - started)
    if any(statuses):
        print("FAILED: exit status at end of input %s" % statuses)
        return 1
    return 1 if report.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
