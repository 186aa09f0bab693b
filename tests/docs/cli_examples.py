#!/usr/bin/env python3
"""Runs the examples of docs/cli.md and compares what they print. usage: cli_examples.py TOOL DOCUMENT

A fenced block below `<!-- file: NAME -->` is written to NAME. In a `console` block a line `$ COMMAND` is run in an
empty folder that all blocks share; the lines below it are its output, standard output and standard error as they come.
`<word>` in them stands for any text without blanks, a line `...` for any number of lines.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n+)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(block):
    """(command, expected output) of a console block; a command may go on after a backslash."""
    lines = block.splitlines()
    at = 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            raise ValueError(f"a console block begins with a command, not with: {lines[at]}")
        command = [lines[at][2:]]
        while command[-1].endswith("\\"):
            at += 1
            command.append(lines[at])
        at += 1
        expected = []
        while at < len(lines) and not lines[at].startswith("$ "):
            expected.append(lines[at])
            at += 1
        yield "\n".join(command), expected


def pattern_of(expected):
    pattern = ""
    for line in expected:
        if line == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += "".join(r"\S+" if re.fullmatch(r"<[a-zA-Z ]+>", part) else re.escape(part)
                               for part in re.split(r"(<[a-zA-Z ]+>)", line)) + r"\n"
    return re.compile(pattern)


def unmentioned(tool, document):
    """Options that the tool has and the document does not name."""
    done = subprocess.run([str(tool), "--help-all"], stdout=subprocess.PIPE, check=True, timeout=120)
    return sorted({option for option in re.findall(r"--[a-z][a-z-]*", done.stdout.decode()) if option not in document})


def main():
    if len(sys.argv) != 3:
        print(__doc__.splitlines()[0])
        return 2
    tool, document = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvpack-docs-"))
    environment = dict(os.environ, PATH=f"{tool.parent}:{os.environ['PATH']}", LC_ALL="C.UTF-8")
    missing = unmentioned(tool, document)
    if missing:
        print(f"the document does not name {', '.join(missing)}")
        return 1
    count = 0
    try:
        for file, language, block in BLOCK.findall(document):
            if file:
                (folder / file).write_text(block, encoding="utf-8")
            if language != "console":
                continue
            for command, expected in steps(block):
                done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
                output = done.stdout.decode("utf-8", "replace")
                count += 1
                if not pattern_of(expected).fullmatch(output):
                    print(f"$ {command}\nprints (exit {done.returncode})\n{output}\nthe document says")
                    print("\n".join(expected))
                    return 1
    finally:
        shutil.rmtree(folder)
    print(f"cli examples: {count} commands as documented")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
