#!/usr/bin/env python3
"""Reads every #include and fails on an arrow that the architecture does not have (docs/architecture.md, Rooms).

A room includes itself and rooms of a lower level, never a peer. Outside libraries are named in their own places only.
The header that stands for all names every header of its rooms.
"""
import pathlib
import re
import sys

LEVELS = {"base": 0, "crypto": 1, "core": 2, "handoff": 3, "store": 3, "net": 4, "muse": 4, "cli": 5, "capi": 5}

# Library -> files that may include it, as path prefixes.
LIBRARIES = {
    r"openssl/": ["include/kvpack/crypto/", "include/kvpack/base/secret.h", "src/crypto/", "src/net/tls",
                 "src/cli/bench/baseline_"],
    r"nlohmann/": ["include/kvpack/core/canonical_json.h", "src/cli/bench/baseline_"],
    r"sqlite3\.h": ["src/store/"],
    r"asio": ["src/net/"],
    r"CLI/": ["src/cli/"],
    r"fmt/|spdlog/": ["src/cli/", "src/net/"],
    # The operating system's: files, process and machine in base, sockets in net, and two that stand in
    # docs/portability.md: what the processor can, and what a person's Ctrl-C does. The benchmarks of the tool look at
    # the machine, and what they measure against are bare calls.
    r"(unistd|fcntl|dirent|poll|signal|pthread|sched|spawn|termios|pwd|dlfcn|ifaddrs|netdb|liburing)\.h$"
    r"|(sys|linux|mach|netinet|arpa)/|net/if":
        ["src/base/", "src/net/", "src/crypto/sha256_machine.cpp", "src/cli/signal_watch.cpp",
         "src/cli/bench/again.cpp", "src/cli/bench/machine.cpp", "src/cli/bench/baseline_"],
    r"xxhash\.h": ["src/muse/", "include/kvpack/muse/", "src/store/"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def room_of(path):
    """The room of a source file, or None for the umbrella header."""
    parts = path.split("/")
    if parts[:2] == ["include", "kvpack"]:
        return parts[2] if len(parts) > 3 else None
    return "capi" if parts[0] == "capi" else parts[1]


def target_room(name):
    parts = name.split("/")
    if parts[0] == "kvpack":
        return parts[1] if len(parts) > 2 else None
    return parts[0] if parts[0] in LEVELS and len(parts) > 1 else None


def check(root):
    problems, arrows = [], 0
    files = [p for top in ("include", "src", "capi") for p in sorted((root / top).rglob("*"))
             if p.suffix in (".h", ".cpp", ".c")]
    for path in files:
        relative = path.relative_to(root).as_posix()
        if relative.startswith(("capi/examples/", "capi/adapters/")):
            continue
        room = room_of(relative)
        if room is not None and room not in LEVELS:
            problems.append(f"{relative}: the room '{room}' is not in the plan")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            name = match.group(2)
            target = target_room(name)
            if room is not None and target is not None:
                arrows += 1
                if target != room and LEVELS[target] >= LEVELS[room]:
                    problems.append(f"{relative}:{number}: {room} may not include {target} ({name})")
            for pattern, places in LIBRARIES.items():
                if re.match(pattern, name) and not any(relative.startswith(place) for place in places):
                    problems.append(f"{relative}:{number}: <{name}> belongs in {', '.join(places)}")
    problems += check_umbrella(root)
    return problems, arrows, len(files)


def check_umbrella(root):
    """kvpack.h names every header of each room that it names at all."""
    umbrella = root / "include/kvpack/kvpack.h"
    if not umbrella.exists():
        return []
    named = set(re.findall(r'#include "(kvpack/\S+)"', umbrella.read_text(encoding="utf-8")))
    rooms = {name.split("/")[1] for name in named}
    there = {p.relative_to(root / "include").as_posix() for room in rooms
             for p in (root / "include/kvpack" / room).glob("*.h")}
    return [f"include/kvpack/kvpack.h: {name} is {'missing' if name in there else 'not there'}"
            for name in sorted(there ^ named)]


def self_test(root):
    """The checker must see a forbidden arrow; a check that cannot fail proves nothing."""
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        bad = pathlib.Path(folder) / "include/kvpack/base/bad.h"
        bad.parent.mkdir(parents=True)
        bad.write_text('#include "kvpack/core/ids.h"\n#include <openssl/evp.h>\n#include <unistd.h>\n')
        (bad.parent.parent / "kvpack.h").write_text('#include "kvpack/base/gone.h"\n')
        problems, _, _ = check(pathlib.Path(folder))
        return len(problems) == 5


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    if not self_test(root):
        print("layering: the checker does not see a forbidden include")
        return 1
    problems, arrows, files = check(root)
    for problem in problems:
        print(problem)
    print(f"layering: {files} files, {arrows} arrows between rooms, {len(problems)} forbidden")
    return 1 if problems or arrows == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
