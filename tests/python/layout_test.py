"""The package describes kvpack_c.h a second time: a C compiler and the header say whether both are the same."""
import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import support
from kvpack import _library, _structs

CODES = {name: value for name, value in vars(_structs).items()
         if isinstance(value, int) and name.isupper() and not name.startswith("_")}
ENUMS = {"DTYPES": "DTYPE", "CODECS": "CODEC", "MODES": "MODE", "AXIS_RULES": "AXIS", "SPAN_RULES": "SPANS",
         "RECORDS": "RECORD", "LEVELS": "LEVEL", "FAULT_ACTIONS": "FAULT", "PRESSURES": "PRESSURE", "LOG_LEVELS": "LOG"}
PYTHON_ONLY = {"MAX_PARALLELISM"}


def compiler():
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def question():
    """A C program that prints every size, offset and code."""
    lines = ['#include "kvpack_c.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for struct in _structs.structs():
        name = struct.__name__
        lines.append('  printf("%s %%zu\\n", sizeof(%s));' % (name, name))
        for field, *_ in struct._fields_:
            lines.append('  printf("%s.%s %%zu %%zu\\n", offsetof(%s, %s), sizeof(((%s*)0)->%s));'
                         % (name, field, name, field, name, field))
    for name in sorted(set(CODES) - PYTHON_ONLY):
        lines.append('  printf("%s %%llu\\n", (unsigned long long)KVPACK_%s);' % (name, name))
    for ours, prefix in ENUMS.items():
        for name in getattr(_structs, ours):
            lines.append('  printf("%s.%s %%lld\\n", (long long)KVPACK_%s_%s);' % (ours, name, prefix, name.upper()))
    return "\n".join(lines + ["  return 0;", "}", ""])


def answer():
    """What this package believes."""
    said = {}
    for struct in _structs.structs():
        said[struct.__name__] = str(ctypes.sizeof(struct))
        for field, *_ in struct._fields_:
            at = getattr(struct, field)
            said["%s.%s" % (struct.__name__, field)] = "%d %d" % (at.offset, at.size)
    said.update((name, str(value)) for name, value in CODES.items() if name not in PYTHON_ONLY)
    for ours in ENUMS:
        said.update(("%s.%s" % (ours, name), str(value)) for name, value in getattr(_structs, ours).items())
    return said


def header_module():
    path = support.ROOT / "tests" / "capi" / "header.py"
    spec = importlib.util.spec_from_file_location("header", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ctype_of(declaration):
    """How a parameter or result of the header is passed."""
    if "*" in declaration or re.search(r"kvpack_\w+_fn\b", declaration):
        return "pointer"
    kind = declaration.replace("const", "").split()[0]
    return {"kvpack_status": ctypes.c_int32, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
            "uint64_t": ctypes.c_uint64, "void": None}[kind]


class Layout(unittest.TestCase):
    maxDiff = None

    @unittest.skipUnless(compiler(), "left out: no C compiler")
    def test_structs_and_codes_are_those_of_the_header(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
            with open(source, "w", encoding="utf-8") as out:
                out.write(question())
            subprocess.run([compiler(), "-I", str(support.HEADER.parent), source, "-o", program], check=True)
            printed = subprocess.run([program], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
        found = dict(line.split(" ", 1) for line in printed.splitlines())
        self.assertGreater(len(found), 300)
        self.assertEqual(answer(), found)

    def test_structs_have_every_member_of_the_header_in_its_order(self):
        text = support.HEADER.read_text(encoding="utf-8")
        for struct in _structs.structs():
            body = re.search(r"typedef struct %s \{(.*?)\n\} %s;" % (struct.__name__, struct.__name__), text, re.DOTALL)
            self.assertIsNotNone(body, struct.__name__)
            code = re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.DOTALL)
            members = []
            for declaration in code.split(";"):
                match = re.search(r"\(\*(\w+)\)\(|(\w+)(?:\[\w+\])?\s*\Z", declaration.strip())
                if match:
                    members.append(match.group(1) or match.group(2))
            self.assertEqual([field for field, *_ in struct._fields_], members, struct.__name__)

    def test_functions_are_declared_as_in_the_header(self):
        declared = {function.name: function for function in header_module().functions_of(support.HEADER)}
        pointers = (ctypes.c_void_p, ctypes.c_char_p)
        for name, (result, parameters) in _library.PROTOTYPES.items():
            function = declared[name]
            wanted = [ctype_of(parameter) for parameter in function.parameters]
            said = ["pointer" if parameter in pointers else parameter for parameter in parameters]
            self.assertEqual(said, wanted, name)
            self.assertEqual("pointer" if result in pointers else result, ctype_of(function.type), name)

    def test_interface_version_is_that_of_the_header(self):
        text = support.HEADER.read_text(encoding="utf-8")
        for name in ("ABI_MAJOR", "ABI_MINOR"):
            self.assertIn("#define KVPACK_%s %d\n" % (name, CODES[name]), text)


if __name__ == "__main__":
    support.main()
