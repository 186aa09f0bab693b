#!/usr/bin/env python3
"""Writes a C test that calls every exported function with nothing but NULL and 0, and with handles of no type.

usage: make_null_calls.py HEADER OUTPUT

No call may crash. A fallible one gives a status and an error of that status, with and without a place for the error;
an accessor gives 0 or NULL; a handle that is none is called that.
"""
import re
import sys

from header import functions_of

PREAMBLE = """/* Made from kvpack_c.h by make_null_calls.py. */
#include "check.h"

/* What no handle looks like: no tag, and enough memory for any. */
static uint64_t stranger[512];

static void failed(const char *function, kvpack_status status, kvpack_error *error, kvpack_status alone) {
  if (status == KVPACK_OK || status == KVPACK_ERR_INTERNAL || alone != status || error == NULL ||
      kvpack_error_status(error) != status || kvpack_error_message(error)[0] == '\\0')
    check_failed(function, 0, "NULL is not refused, or not with an error");
  kvpack_error_free(error);
}

static void not_a_handle(const char *function, kvpack_status status) {
  if (status != KVPACK_ERR_BAD_HANDLE) check_failed(function, 0, "a stranger is taken for a handle");
}

static void no_value(const char *function, int nothing) {
  if (!nothing) check_failed(function, 0, "an accessor gives something for nothing");
}
"""


def opaque_types(path):
    with open(path, encoding="utf-8") as source:
        return set(re.findall(r"^typedef struct (\w+) \1;", source.read(), re.MULTILINE))


def is_pointer(parameter):
    return "*" in parameter or re.match(r"kvpack_\w+_fn ", parameter) is not None


def is_struct(parameter):
    return not is_pointer(parameter) and re.match(r"(const )?kvpack_(?!status)\w+ \w+\Z", parameter) is not None


def nothing(parameter):
    return "NULL" if is_pointer(parameter) else "0"


def handle_type(function, opaque):
    """The type of a handle that comes first, or None."""
    if not function.parameters:
        return None
    match = re.match(r"(?:const )?(\w+) ?\* ?\w+\Z", function.parameters[0])
    return match.group(1) if match and match.group(1) in opaque else None


def calls(function, opaque):
    name, parameters = function.name, function.parameters
    if any(is_struct(parameter) for parameter in parameters):
        sys.exit("%s takes a struct by value" % name)
    values = [nothing(parameter) for parameter in parameters]
    handle = handle_type(function, opaque)
    strange = ["(%s*)(void*)stranger" % handle] + values[1:] if handle else None
    call = lambda arguments: "%s(%s)" % (name, ", ".join(arguments))
    if function.type == "void":
        return ["  %s;" % call(arguments) for arguments in (values, strange) if arguments]
    if not any(is_pointer(parameter) for parameter in parameters):
        return []
    if function.type != "kvpack_status" or not parameters[-1].endswith("error") or "**" not in parameters[-1]:
        return ['  no_value("%s", %s == 0);' % (name, call(arguments)) for arguments in (values, strange) if arguments]
    lines = ["  {",
             "    kvpack_error* error = NULL;",
             "    const kvpack_status status = %s;" % call(values[:-1] + ["&error"]),
             '    failed("%s", status, error, %s);' % (name, call(values)),
             "  }"]
    if strange:
        lines.append('  not_a_handle("%s", %s);' % (name, call(strange)))
    return lines


def main():
    header, output = sys.argv[1:]
    opaque = opaque_types(header)
    lines = [PREAMBLE, "int main(void) {"]
    for function in functions_of(header):
        lines += calls(function, opaque)
    lines += ["  return check_result();", "}", ""]
    with open(output, "w", encoding="utf-8") as out:
        out.write("\n".join(lines))


if __name__ == "__main__":
    main()
