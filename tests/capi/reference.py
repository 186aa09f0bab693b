#!/usr/bin/env python3
"""Keeps the reference part of docs/c-api.md equal to the comments of kvpack_c.h.

usage: reference.py HEADER PAGE            status 1 when the page does not say what the header says
       reference.py HEADER PAGE --write    renew it

Every exported function must have a comment: it becomes its description. That of a handle says which threads may use
it, and a struct whose name ends in `_options` begins with struct_size.
"""
import argparse
import re
import sys

from header import blocks_of

BEGIN = "<!-- The reference: made from capi/kvpack_c.h by tests/capi/reference.py --write. -->\n"


def paragraphs(comment):
    """A comment as Markdown, each paragraph on one line."""
    joined = [" ".join(part.split("\n")) for part in comment.split("\n\n")]
    return "\n\n".join(re.sub(r"\AErrors: ", "**Errors:** ", part) for part in joined)


def section(comment):
    title, _, text = comment.partition("\n\n")
    return "## %s\n\n%s\n" % (title[2:], paragraphs(text))


def prototype(function):
    return "%s;" % function.prototype


def entry(block):
    if block.functions:
        names = ", ".join("`%s`" % function.name for function in block.functions)
        code = "\n".join(prototype(function) for function in block.functions)
        return "### %s\n\n```c\n%s\n```\n\n%s\n" % (names, code, paragraphs(block.comment))
    return "%s\n\n```c\n%s\n```\n" % (paragraphs(block.comment), block.code)


def reference(header):
    """The reference as Markdown, and what is wrong with the header."""
    parts, problems = [], []
    for block in blocks_of(header):
        is_section = block.comment.startswith("# ")
        if not is_section and not parts:
            continue  # In front of the first section are the conventions and the machinery.
        handle = re.match(r"typedef struct (\w+) \1;", block.code)
        if handle and "mmutable" not in block.comment and "thread" not in block.comment:
            problems.append("no rule on threads: " + handle.group(1))
        options = re.match(r"typedef struct (\w+_options) \{\s*(\w+ \w+);", block.code)
        if options and options.group(2) != "uint64_t struct_size":
            problems.append("no struct_size: " + options.group(1))
        if block.functions and not block.comment:
            problems.append("no description: " + ", ".join(function.name for function in block.functions))
        if is_section:
            parts.append(section(block.comment))
        elif block.comment:
            parts.append(entry(block))
        elif block.code.startswith(("enum", "typedef")):
            parts.append("```c\n%s\n```\n" % block.code)
    return "\n".join(parts), problems


def conventions(header):
    """The text of the header's first comment from its headline on."""
    first = next(block.comment for block in blocks_of(header) if "# Conventions" in block.comment)
    return "## Conventions\n\n" + paragraphs(first[first.index("# Conventions"):].partition("\n\n")[2]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header")
    parser.add_argument("page")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with open(options.page, encoding="utf-8") as source:
        page = source.read()
    text, problems = reference(options.header)
    for problem in problems:
        print(problem)
    if BEGIN not in page or problems:
        print("reference: %s" % ("the header lacks what is named above" if problems else "the page has no mark"))
        return 1
    wanted = page[:page.index(BEGIN)] + BEGIN + "\n" + conventions(options.header) + "\n" + text
    if options.write:
        with open(options.page, "w", encoding="utf-8", newline="\n") as out:
            out.write(wanted)
        return 0
    if page != wanted:
        print("reference: %s is not what the header says; renew it with reference.py --write" % options.page)
        return 1
    print("reference: %d functions described" % text.count("\n### "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
