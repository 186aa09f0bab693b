#!/usr/bin/env python3
"""Audits provenance.json: what this tree is made of, and what its bytes are matched against.

  audit.py            verify; exit status 0 when provenance.json describes the tree exactly, 1 when not
  audit.py --write    renew provenance.json

provenance.json (schema kvpack.provenance.v1) holds the SHA-256 of every file under include/, src/,
capi/ and conformance/, and the contents of conformance/upstream.json, which is kept by hand: the
upstream commit our bytes agree with, and each deviation from it with its id, reason and tests.
Standard library only, and no git: it also runs in a copy of the tree inside an engine.
"""

import argparse
import hashlib
import json
import os
import re
import sys

SCHEMA = "kvpack.provenance.v1"
PROVENANCE = "provenance.json"
UPSTREAM = "conformance/upstream.json"
ROOMS = ("include", "src", "capi", "conformance")
OBJECT_ID = re.compile(r"[0-9a-f]{40}\Z")
DEVIATION_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")


class Refused(Exception):
    """The tree cannot be described: something in it has no place there."""


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew provenance.json")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                        help="the tree (default: the one this script is in)")
    options = parser.parse_args()
    try:
        text = describe(options.root)
    except (Refused, OSError, ValueError) as error:
        print("refused: %s" % error)
        return 1
    if options.write:
        with open(os.path.join(options.root, PROVENANCE), "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
        print("%s: %d files" % (PROVENANCE, len(json.loads(text)["files"])))
        return 0
    problems = compare(options.root, text)
    for problem in problems:
        print(problem)
    print("%s: %s" % (PROVENANCE, "STALE, renew it with conformance/audit.py --write" if problems
                      else "%d files verified" % len(json.loads(text)["files"])))
    return 1 if problems else 0


def describe(root):
    """The text that provenance.json must have."""
    with open(os.path.join(root, UPSTREAM), encoding="utf-8") as source:
        facts = json.load(source, object_pairs_hook=without_duplicates)
    check_facts(root, facts)
    record = {"schema": SCHEMA, "files": {path: digest(root, path) for path in files_of(root)}}
    record.update(facts)
    return json.dumps(record, indent=2, sort_keys=True) + "\n"


def without_duplicates(pairs):
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Refused("%s has a member twice" % UPSTREAM)
    return members


def check_facts(root, facts):
    if set(facts) != {"upstream", "deviations"}:
        raise Refused("%s must have exactly upstream and deviations" % UPSTREAM)
    upstream = facts["upstream"]
    if set(upstream) != {"repository", "commit", "tag", "tree"} or not all(upstream.values()):
        raise Refused("upstream must have exactly repository, commit, tag and tree")
    if not OBJECT_ID.match(upstream["commit"]) or not OBJECT_ID.match(upstream["tree"]):
        raise Refused("upstream commit and tree must be 40 lower-case hex digits")
    seen = set()
    for deviation in facts["deviations"]:
        name = deviation.get("id", "")
        if set(deviation) != {"id", "reason", "tests"} or not DEVIATION_ID.match(name):
            raise Refused("a deviation must have exactly id, reason and tests: %s" % (name or deviation))
        if name in seen:
            raise Refused("deviation %s occurs twice" % name)
        seen.add(name)
        if not deviation["reason"] or not deviation["tests"]:
            raise Refused("deviation %s lacks a reason or a test" % name)
        for test in deviation["tests"]:
            if not os.path.isfile(os.path.join(root, test)):
                raise Refused("deviation %s names a test that is not there: %s" % (name, test))


def files_of(root):
    """Paths of every file of the rooms, relative and sorted; what Python leaves behind does not count."""
    paths = []
    for room in ROOMS:
        for folder, folders, files in os.walk(os.path.join(root, room), onerror=fail):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in folders + files:
                path = os.path.join(folder, name)
                if os.path.islink(path) or not (os.path.isfile(path) or os.path.isdir(path)):
                    raise Refused("%s is not a regular file" % path)
            paths += [os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
                      for name in files if not name.endswith(".pyc")]
    return sorted(paths)


def fail(error):
    raise error


def digest(root, path):
    with open(os.path.join(root, path), "rb") as source:
        return hashlib.sha256(source.read()).hexdigest()


def compare(root, text):
    """What differs between provenance.json and the tree, a line each."""
    try:
        with open(os.path.join(root, PROVENANCE), encoding="utf-8", newline="") as source:
            recorded_text = source.read()
        recorded = json.loads(recorded_text)
        recorded_files = dict(recorded["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ["cannot be read: %s" % error]
    actual = json.loads(text)
    problems = []
    for path in sorted(set(recorded_files) | set(actual["files"])):
        have, want = actual["files"].get(path), recorded_files.get(path)
        if have != want:
            problems.append("%s %s" % ("missing   " if have is None else "unrecorded" if want is None
                                       else "changed   ", path))
    for member in sorted((set(actual) | set(recorded)) - {"files"}):
        if actual.get(member) != recorded.get(member):
            problems.append("differs    %s" % member)
    if not problems and recorded_text != text:
        problems.append("differs    the way it is written")
    return problems


if __name__ == "__main__":
    sys.exit(main())
