#!/usr/bin/env python3
"""Disassembles the SHA-256 kernels: `instructions.py OBJDUMP NM ARCHIVE LIBRARY`.

In the archive, the files of the kernels define their functions, hidden, and nothing else that a linker could share
between files; the functions call nothing, branch on their block counter alone, and move no message or state word into a
general register. AVX-512 and SHA instructions stand each in the members made for them and in no other of the archive,
and in the linked library in the functions of these members only.

Exit 77, which ctest shows as skipped: not an x86-64 library, or the tools are missing.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

MEMBERS = {
    "sha256_plain.cpp.o": ["kvsha256_plain_1"],
    "sha256_shani.cpp.o": ["kvsha256_shani_1", "kvsha256_shani_2", "kvsha256_shani_2_same",
                           "kvsha256_shani_3", "kvsha256_shani_4"],
    "sha256_avx512.cpp.o": ["kvsha256_avx512_16"],
}
# What a member is made for, and the others may not have. A build without its flags would not have it either.
OWN_KIND = {"sha256_shani.cpp.o": "SHA", "sha256_avx512.cpp.o": "AVX-512"}

FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
LINE = re.compile(r"^ +([0-9a-f]+):\t(\S+) *([^#<]*)")
CONDITIONAL = re.compile(r"^j(?!mp)")
# In the text of a disassembly, where a tab stands before each name of an instruction. AVX-512 shows by its registers,
# or by names that older sets do not have.
SPECIAL = re.compile(r"\tv?sha(?P<sha>1|256|512)|%(?:zmm|k[0-7]|[xy]mm(?:1[6-9]|2\d|3[01])\b)"
                     r"|\tv(?:pternlog|pro[lr]|perm[it]2|movdq[au](?:8|16|32|64)|p(?:andn?|x?or)[dq]\b)")
MEMBER = re.compile(r"^(\S+):     file format ", re.MULTILINE)
GENERAL = re.compile(r"^%(r[a-z0-9]+|e[a-z]{2}|[a-d][lhx]|[sd]il?|[sb]pl?)$")
VECTOR = re.compile(r"%[xyz]mm|%k[0-7]")
# Instructions whose flags tell something about vectors.
VECTOR_FLAGS = re.compile(r"^v?(ptest|testp[sd]|u?comis[sd]|kortest|ktest)")
FLAGS = re.compile(r"^(add|sub|cmp|test|inc|dec|and|or|xor|neg|sh[lr]|sar|ro[lr]|adc|sbb|bt|imul|mul)[bwlq]?$")
STACK = re.compile(r"\(%(rsp|rbp)")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def split_operands(text):
    """AT&T operands, commas inside parentheses kept."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text.strip()) if part.strip()]


def functions_of(disassembly):
    functions, current = {}, None
    for line in disassembly.splitlines():
        header = FUNCTION.match(line)
        if header:
            current = functions.setdefault(header.group(1), [])
            continue
        match = LINE.match(line)
        if match and current is not None:
            words = (match.group(2) + " " + match.group(3)).split(None, 1)
            current.append((words[0], split_operands(words[1]) if len(words) > 1 else []))
    return functions


def family(register):
    """rax, eax, ax and al are one."""
    name = register.lstrip("%")
    numbered = re.match(r"^r\d+", name)
    if numbered:
        return numbered.group(0)
    for stem in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp"):
        if name.strip("re").rstrip("l").startswith(stem) or name in (stem[0] + "l", stem[0] + "h"):
            return stem
    return name


def setters(code):
    """The flag setter of each conditional branch, with its place."""
    for place, (name, operands) in enumerate(code):
        if not CONDITIONAL.match(name):
            continue
        before = place - 1
        while before >= 0 and not FLAGS.match(code[before][0]) and not VECTOR_FLAGS.match(code[before][0]):
            before -= 1
        yield place, code[before] if before >= 0 else ("nothing", [])


def is_pointer_load(instruction, operands):
    """Words of messages and states have 32 bits; what is loaded with 64 is a pointer, or what was put on the stack."""
    return instruction in ("mov", "movq") and operands[1].startswith("%r") and not operands[1].endswith("d")


def carries_pointer(code, place):
    """Whether a move from a vector register gives back a pointer that was kept there for want of a general one."""
    instruction, operands = code[place]
    vector = re.fullmatch(r"%[xyz]mm(\d+)", operands[0])
    if instruction not in ("movq", "vmovq") or not vector:
        return False
    same = re.compile(rf"%[xyz]mm{vector.group(1)}$")
    for before, sources in reversed(code[:place]):
        if sources and same.match(sources[-1]):
            return before in ("movq", "vmovq") and not VECTOR.search(sources[0])
    return False


def check_counter(name, code):
    """What branches depend on depends on arguments, constants, pointers and each other alone."""
    problems, counters = [], set()
    for _, (setter, operands) in setters(code):
        counters |= {family(o) for o in operands if GENERAL.match(o)}
    grown = True
    while grown:
        grown = False
        for instruction, operands in code:
            if not operands or not GENERAL.match(operands[-1]) or family(operands[-1]) not in counters:
                continue
            if re.match(r"^(cmp|test|push)", instruction):
                continue
            for operand in operands[:-1]:
                if operand.startswith("$"):
                    continue
                if GENERAL.match(operand):
                    if family(operand) not in counters:
                        counters.add(family(operand))
                        grown = True
                elif not (instruction.startswith("lea") or is_pointer_load(instruction, operands)):
                    problems.append(f"{name}: a branch depends on memory, `{instruction} {', '.join(operands)}`")
                    return problems
    return problems


def check_kernel(name, code, vectors_only):
    problems = []
    branches = sum(1 for instruction, _ in code if CONDITIONAL.match(instruction))
    if not 1 <= branches <= 4:
        problems.append(f"{name}: {branches} conditional branches, a loop over blocks has one to four")
    for place, (instruction, operands) in enumerate(code):
        text = f"{instruction} {', '.join(operands)}"
        if instruction.startswith(("call", "loop")) or (instruction.startswith("jmp") and "*" in text):
            problems.append(f"{name}: `{text}`")
        if "gather" in instruction or "scatter" in instruction or VECTOR_FLAGS.match(instruction):
            problems.append(f"{name}: `{text}` depends on what it works on")
        if operands and GENERAL.match(operands[-1]) and any(VECTOR.search(o) for o in operands[:-1]) \
                and not carries_pointer(code, place):
            problems.append(f"{name}: `{text}` moves data into a general register")
        if vectors_only and len(operands) == 2 and "(" in operands[0] and GENERAL.match(operands[1]) \
                and not instruction.startswith("lea") and not operands[1].startswith("%r"):
            problems.append(f"{name}: `{text}` reads less than a pointer into a general register")
    for _, (setter, operands) in setters(code):
        # A counter for which no register was left is one of 64 bits on the stack.
        on_stack = setter.endswith("q")
        if not all(o.startswith("$") or GENERAL.match(o) or (on_stack and STACK.search(o)) for o in operands):
            problems.append(f"{name}: a branch depends on `{setter} {', '.join(operands)}`")
    if vectors_only:
        problems += check_counter(name, code)
    return problems


def check_members(objdump, nm, archive):
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["ar", "x", str(pathlib.Path(archive).resolve()), *MEMBERS], cwd=folder, check=True)
        for member, expected in MEMBERS.items():
            path = str(pathlib.Path(folder) / member)
            symbols = [line.split() for line in run(nm, path).splitlines()]
            defined = sorted(s[2] for s in symbols if len(s) == 3 and s[1] not in "abcdrtU")
            if defined != sorted(expected) or any(len(s) == 3 and s[1] != "T" for s in symbols if s[-1] in expected):
                problems.append(f"{member}: defines {', '.join(defined)}")
            table = run(objdump, "-t", path).splitlines()
            visible = [name for name in expected if not any(line.endswith(f" .hidden {name}") for line in table)]
            if visible:
                problems.append(f"{member}: {', '.join(visible)} would be visible outside of a shared library")
            outside = [s[1] for s in symbols if len(s) == 2 and s[0] in "Uwv"]
            if set(outside) - {"_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}:
                problems.append(f"{member}: needs {', '.join(outside)}")
            functions = functions_of(run(objdump, "-d", "--no-show-raw-insn", path))
            if sorted(functions) != sorted(expected):
                problems.append(f"{member}: has code of {', '.join(sorted(functions))}")
            for name, code in functions.items():
                problems += check_kernel(name, code, vectors_only=member in OWN_KIND)
    return problems


def special_instructions(disassembly):
    """The kind of each AVX-512 and SHA instruction, its function and its text. Searched as a whole: a library has
    millions of lines."""
    for found in SPECIAL.finditer(disassembly):
        begin = disassembly.rfind("\n", 0, found.start()) + 1
        header = disassembly.rfind(">:\n", 0, begin)
        function = disassembly[disassembly.rfind("<", 0, header) + 1:header]
        text = disassembly[begin:disassembly.find("\n", begin)].partition("\t")[2]
        yield "SHA" if found["sha"] else "AVX-512", function, text.strip()


def check_archive(objdump, archive):
    """Every member, whether or not a library that is linked here has use for it."""
    problems, seen = [], set()
    disassembly = run(objdump, "-d", "--no-show-raw-insn", archive)
    parts = MEMBER.split(disassembly)
    members = parts[1::2]
    for member, code in zip(members, parts[2::2]):
        others = set()
        for kind, function, text in special_instructions(code):
            if kind == OWN_KIND.get(member):
                seen.add(member)
            elif (kind, function) not in others:
                others.add((kind, function))
                problems.append(f"{member}: {function}: `{text}` is an {kind} instruction")
    listed = run("ar", "t", archive).split()
    if members != listed:
        problems.append(f"{archive}: has {len(listed)} members, {len(members)} were read")
    problems += [f"{archive}: has {listed.count(member)} members {member}" for member in MEMBERS
                 if listed.count(member) != 1]
    problems += [f"{member}: is not compiled for its instructions" for member in sorted(OWN_KIND.keys() - seen)]
    return problems, len(members)


def check_library(objdump, library):
    problems, seen = set(), set()
    own = {name: kind for member, kind in OWN_KIND.items() for name in MEMBERS[member]}
    for kind, function, _ in special_instructions(run(objdump, "-d", "--no-show-raw-insn", library)):
        if kind == own.get(function):
            seen.add(function)
        else:
            problems.add(f"{function}: has an {kind} instruction in {library}")
    return sorted(problems) + [f"{library}: has no {name}" for name in sorted(own.keys() - seen)]


def main():
    objdump, nm, archive, library = sys.argv[1:]
    if "NOTFOUND" in objdump + nm or "x86-64" not in run(objdump, "-f", library):
        print("not run: needs objdump, nm and an x86-64 library")
        return 77
    problems, members = check_archive(objdump, archive)
    problems += check_members(objdump, nm, archive) + check_library(objdump, library)
    for problem in problems[:40]:
        print(problem)
    print(f"instructions: {len(problems)} problems in {sum(map(len, MEMBERS.values()))} kernels and "
          f"{members} members")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
