#!/usr/bin/env python3
"""Compares what can keep a KV cache on a disk, on the same data, side by side: how many bytes, how long a save and a
restore take, and what each does with a flipped bit, a truncated file, another model of the same shape, and a save that is
killed. `./run compare` builds what it needs.

Every round does each tool once, in rotated order, each time in a folder of its own; figures are medians, with smallest
and largest."""
import argparse
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time

import numpy

import kv_data
import tools as keepers
from tools import Aborted, Absent, Refused

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENTS = (ROOT / "docs" / "comparison.md", ROOT / "README.md")


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def timed(action, *arguments):
    """Seconds by an action's own account, or by the clock."""
    started = time.perf_counter()
    own = action(*arguments)
    return own if isinstance(own, float) else time.perf_counter() - started


def prepared(tool, folder):
    """An empty folder, as the tool wants it before a first save."""
    tool.prepare(fresh(folder))


def size_of(folder):
    return sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())


def fresh(folder):
    for path in (folder, folder + ".restored", folder + ".restic", folder + ".borg"):
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(folder)
    return folder


def same(planes, data):
    return planes is not None and all(numpy.array_equal(a, b) for a, b in zip(planes, data.planes))


def verdict(tool, folder, **options):
    """What a restore came to."""
    try:
        planes, _ = tool.restore(folder, **options)
    except Refused:
        return "refused"
    except Aborted:
        return "the process is ended"
    except Absent:
        return "not found"
    return "right" if same(planes, tool.data) else "WRONG BYTES"


def after_damage(tool, folder):
    """A verdict, and that of what a user runs to be sure where the restore noticed nothing."""
    seen = verdict(tool, folder)
    if seen != "WRONG BYTES":
        return "refused" if seen == "not found" else seen
    if type(tool).prove is keepers.Tool.prove:
        return "accepted"
    try:
        tool.prove(folder)
    except Refused:
        return "accepted; its check refuses"
    return "accepted, by its check too"


def flip_bit(file):
    with open(file, "r+b") as content:
        content.seek(file.stat().st_size // 2)
        byte = content.read(1)[0]
        content.seek(-1, os.SEEK_CUR)
        content.write(bytes([byte ^ 1]))


def truncate(file):
    os.truncate(file, file.stat().st_size - 4096)


def measure(tool, folder, figures):
    """One round of one tool."""
    fresh(folder)
    if type(tool).prepare is not keepers.Tool.prepare:
        figures["prepare"].append(timed(tool.prepare, folder))
    took = timed(tool.save, folder)
    figures["save"].append(took)
    figures["durable"].append(took + timed(keepers.sync, folder))
    figures["bytes"] = size_of(folder)
    planes, seconds = tool.restore(folder)
    figures["restore"].append(seconds)
    if not same(planes, tool.data):
        raise SystemExit("compare: %s did not give back what was saved" % tool.name)
    if type(tool).prove is not keepers.Tool.prove:
        figures["proof"].append(timed(tool.prove, folder))


def kill_saves(tool, folder, seconds, times, kept):
    """Kills a second save over the first at different moments: what is left of the first, and of the second."""
    seen = []
    for at in range(1, times + 1):
        prepared(tool, folder)
        tool.save(folder)
        pause = seconds * at / (times + 1)
        if hasattr(tool, "save_and_kill"):
            tool.save_and_kill(folder, pause)
            seen.append(verdict(tool, folder))
            continue
        worker = subprocess.Popen([sys.executable, __file__, "--worker", tool.name, folder, kept],
                                  stdout=subprocess.PIPE, text=True, start_new_session=True)
        if worker.stdout.readline() != "ready\n":
            raise SystemExit("compare: the process that was to be killed did not begin")
        time.sleep(pause)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        tool.forget()
        old, new = verdict(tool, folder), verdict(type(tool)(tool.data.other()), folder)
        if tool.one_slot:
            seen.append("the old one" if old == "right" else "the new one" if new == "right" else old)
        else:
            seen.append("old one %s, new one %s" % (old, new))
    return ", ".join("%d x %s" % (seen.count(each), each) for each in sorted(set(seen)))


def work(name, folder, kept):
    """The process that is killed."""
    tool = next(kind for kind in all_kinds() if kind.name == name)(kv_data.Data.load(kept).other())
    print("ready", flush=True)
    tool.save(folder)
    signal.pause()


def all_kinds():
    return (keepers.KvPack, keepers.KvPackEncrypted, keepers.SafeTensors, keepers.LmCacheDisk, keepers.PlainCopy,
            keepers.PlainOpenSsl, keepers.Restic, keepers.Borg)


def chosen_tools(arguments, data, peer, other_peer):
    """The tools that are here, and why others are not."""
    made, missing = [], []
    wanted = arguments.only.split(",") if arguments.only else None

    def take(kind, *values):
        if wanted is None or any(kind.name.startswith(name) for name in wanted):
            made.append(kind(data, *values))

    if peer is not None:
        take(keepers.LlamaSession, peer, other_peer)
    else:
        missing.append("llama.cpp session file: no engine (`--peer`)")
    for kind in all_kinds():
        needs = {"Restic": "restic", "Borg": "borg"}.get(kind.__name__)
        if needs and shutil.which(needs) is None:
            missing.append("%s: not installed" % kind.name)
        else:
            take(kind)
    return made, missing


def rate(data, seconds):
    """`median (least to most)` in MB/s of payload."""
    if not seconds:
        return ""
    values = sorted(data.bytes / each / 1e6 for each in seconds)
    return "%.0f (%.0f to %.0f)" % (statistics.median(values), values[0], values[-1])


def tables(results, data):
    """Figures, behaviour, and what each claims, as lines of Markdown."""
    lines = ["| | bytes on disk | made ready once, s | save | save, then made durable | restore | to be sure, besides |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for tool in results:
        lines.append("| %s | %.4f | %s | %s | %s | %s | %s |" % (
            tool["name"], tool["bytes"] / data.bytes,
            "%.2f" % statistics.median(tool["prepare"]) if tool["prepare"] else "",
            *(rate(data, tool[each]) for each in ("save", "durable", "restore")),
            rate(data, tool["proof"]) or ("included" if "kvpack" in tool["name"] else "no such thing")))
    lines += ["", "| | one bit flipped | 4 KiB cut off | asked for under another model | a second save killed |",
              "| --- | --- | --- | --- | --- |"]
    for tool in results:
        lines.append("| %s | %s | %s | %s | %s |" % (
            tool["name"], tool["flipped"], tool["truncated"], tool["other model"], tool["killed"]))
    lines += ["", "| | proves | says nothing of | |", "| --- | --- | --- | --- |"]
    for tool in results:
        lines.append("| %s | %s | %s | %s |" % (tool["name"], tool["proves"], tool["silent about"], tool["note"]))
    return lines


def write_into(document, name, lines):
    """Replaces what stands between a document's markers. False: it has none."""
    begin, end = "<!-- compare: %s -->" % name, "<!-- compare: end -->"
    text = document.read_text()
    if begin not in text:
        return False
    head, rest = text.split(begin, 1)
    document.write_text(head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1])
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the cache (256)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of figures (5)")
    parser.add_argument("--kills", type=int, default=5, help="saves to kill (5)")
    parser.add_argument("--only", help="names of tools, or how they begin, with commas between")
    parser.add_argument("--dir", default=None, help="where to save; a folder is made there and removed (build)")
    parser.add_argument("--peer", nargs=2, metavar=("PROGRAM", "LIBRARIES"), help="llama_peer and llama.cpp's libraries")
    parser.add_argument("--json", help="writes all figures there")
    parser.add_argument("--write", action="store_true", help="renews the tables in docs/comparison.md and README.md")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(*arguments.worker)

    base = pathlib.Path(arguments.dir or ROOT / "build") / ("compare-%d" % os.getpid())
    base.mkdir(parents=True)
    peers = []
    try:
        results, missing, data = compare(arguments, base, peers)
    finally:
        for peer in peers:
            peer.close()
        shutil.rmtree(base, ignore_errors=True)
    lines = tables(results, data)
    machine = "%s, %d cores, Linux %s; %d MiB, %s; %d rounds" % (
        processor(), os.cpu_count(), platform.release(), arguments.mib, data.source, arguments.rounds)
    print("\n".join([machine, ""] + lines + [""] + ["not here: " + each for each in missing]))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"machine": machine, "tools": results, "missing": missing}, indent=1))
    if arguments.write:
        write_into(DOCUMENTS[0], "figures", [machine + ". Rates in MB/s of payload, median (least to most).", ""] + lines)
        write_into(DOCUMENTS[1], "figures", [machine + ".", ""] + summary(results, data))
    return 0


def summary(results, data):
    """What the README shows: bytes on disk for one of payload, times in those of kvpack, and what is noticed."""
    own = next(tool for tool in results if tool["name"] == "kvpack")
    lines = ["| | bytes on disk | save, durable | restore, checked | flipped bit | truncated | another model | save killed |",
             "| --- | ---: | ---: | ---: | --- | --- | --- | --- |"]
    for tool in results:
        if tool["name"] not in ("kvpack", "llama.cpp session file", "safetensors", "LMCache local disk"):
            continue
        times = [statistics.median(tool[each]) / statistics.median(own[each]) for each in ("durable", "restore")]
        lines.append("| %s | %.4f | %.2f x | %.2f x%s | %s | %s | %s | %s |" % (
            tool["name"], tool["bytes"] / data.bytes, *times, "" if tool is own else ", nothing checked", tool["flipped"], tool["truncated"],
            tool["other model"], tool["killed"]))
    return lines


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def compare(arguments, base, peers):
    tokens = arguments.mib * (1 << 20) // kv_data.TOKEN_BYTES
    peer = None

    def start_peer(seed):
        peers.append(kv_data.Peer(*arguments.peer, base, tokens, seed))
        return peers[-1]

    if arguments.peer:
        say("llama.cpp computes a cache of %d tokens .." % tokens)
        peer = start_peer(1)
        data = kv_data.from_engine(peer, base)
    else:
        data = kv_data.synthetic(tokens)
    others = []

    def other_peer():
        if not others:
            others.append(start_peer(2))
        return others[0]

    tools, missing = chosen_tools(arguments, data, peer, other_peer)
    kept, laid_out = base / "kept", base / "files"
    kept.mkdir()
    laid_out.mkdir()
    data.keep(kept)
    file_tools = [tool for tool in tools if isinstance(tool, keepers.FileTool)]
    for tool in file_tools[:1]:
        tool.lay_out(laid_out)
    for tool in file_tools:
        tool.source = laid_out

    results = [{"name": tool.name, "proves": tool.proves, "silent about": tool.silent_about, "note": tool.note, "prepare": [],
                "save": [], "durable": [], "restore": [], "proof": []} for tool in tools]
    folder = str(base / "work")
    for turn in range(arguments.rounds):
        for step in range(len(tools)):
            at = (turn + step) % len(tools)
            say("round %d of %d: %s" % (turn + 1, arguments.rounds, tools[at].name))
            measure(tools[at], folder, results[at])
            os.sync()  # The next tool does not pay for what this one left in the page cache.
    for tool, result in zip(tools, results):
        say("damage: %s" % tool.name)
        for name, harm in (("flipped", flip_bit), ("truncated", truncate)):
            prepared(tool, folder)
            tool.save(folder)
            file = tool.payload_file(folder)
            os.chmod(file, 0o600)
            harm(file)
            result[name] = after_damage(tool, folder)
        if isinstance(tool, keepers.FileTool):
            result["other model"] = "keeps no such thing"
        else:
            prepared(tool, folder)
            tool.save(folder)
            seen = verdict(tool, folder, other_model=True)
            result["other model"] = seen if seen in ("refused", "not found") else "accepted"
        result["killed"] = (kill_saves(tool, folder, statistics.median(result["save"]), arguments.kills, str(kept))
                            if tool.killable and arguments.kills else "not tried")
    return results, missing, data


if __name__ == "__main__":
    sys.exit(main())
