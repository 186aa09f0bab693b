"""Which library the package loads, and which it refuses."""
import ctypes
import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import support
import kvpack
from kvpack import _library


class Place(unittest.TestCase):
    def test_the_environment_decides_alone(self):
        self.assertEqual(_library.candidates({"KVPACK_LIBRARY": "/some/where"}, "/nowhere", "linux"), ["/some/where"])

    def test_beside_the_package_comes_before_the_loader(self):
        with tempfile.TemporaryDirectory() as folder:
            beside = os.path.join(folder, "libkvpack_c.so.1")
            with open(beside, "wb"):
                pass
            found = _library.candidates({}, folder, "linux")
        self.assertEqual(found[:2], [beside, "libkvpack_c.so.1"])

    def test_other_systems_have_other_names(self):
        self.assertIn("libkvpack_c.1.dylib", _library.candidates({}, "/nowhere", "darwin"))
        self.assertIn("kvpack_c.dll", _library.candidates({}, "/nowhere", "win32"))

    def test_the_next_one_is_tried_when_one_does_not_load(self):
        self.assertEqual(_library.load(["/nowhere/libkvpack_c.so", _library.lib._name]).kvpack_abi_version(),
                         _library.lib.kvpack_abi_version())


class Fit(unittest.TestCase):
    def test_version_is_told(self):
        self.assertRegex(kvpack.version(), r"\A\d+\.\d+\.\d+")

    def test_package_and_library_have_one_version(self):
        project = (support.PACKAGE / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn('version = "%s"\n' % kvpack.version(), project)

    def test_another_library_is_refused(self):
        with self.assertRaisesRegex(kvpack.LibraryError, "is no libkvpack_c"):
            _library.load([ctypes.util.find_library("c")])

    def test_no_library_names_what_was_tried(self):
        with self.assertRaisesRegex(kvpack.LibraryError, "KVPACK_LIBRARY may name it. Tried: .*/nowhere/a.*/nowhere/b"):
            _library.load(["/nowhere/a", "/nowhere/b"])

    def test_an_interface_that_does_not_fit_is_refused(self):
        major, minor = _library.c.ABI_MAJOR, _library.c.ABI_MINOR
        for version, fits in (((major << 16) + minor, True), ((major << 16) + minor + 1, True),
                              ((major << 16) + minor - 1, False), (((major + 1) << 16) + minor, False)):
            class Library:
                @staticmethod
                def kvpack_abi_version(version=version):
                    return version

            Library.kvpack_abi_version.restype = None
            if fits:
                _library.check_version(Library, "it")
            else:
                with self.assertRaisesRegex(kvpack.LibraryError, "it has interface .*, and this package needs"):
                    _library.check_version(Library, "it")

    def test_import_fails_as_an_import_does(self):
        code = "try:\n import kvpack\nexcept ImportError as e:\n print(type(e).__name__)"
        environment = dict(os.environ, KVPACK_LIBRARY="/nowhere/libkvpack_c.so", PYTHONPATH=str(support.PACKAGE))
        printed = subprocess.run([sys.executable, "-B", "-c", code], env=environment, check=True,
                                 stdout=subprocess.PIPE, universal_newlines=True).stdout
        self.assertEqual(printed, "LibraryError\n")


TOOLS = [name for name in ("pip", "setuptools", "wheel") if importlib.util.find_spec(name) is None]


@unittest.skipIf(TOOLS, "left out: no " + ", ".join(TOOLS))
class Install(unittest.TestCase):
    def test_pip_installs_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            source, site = os.path.join(folder, "source"), os.path.join(folder, "site")
            shutil.copytree(support.PACKAGE, source)
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile",
                            "--no-build-isolation", "--disable-pip-version-check", "--target", site, source],
                           check=True, stderr=subprocess.DEVNULL)
            self.assertTrue(os.path.exists(os.path.join(site, "kvpack", "py.typed")))
            environment = dict(os.environ, PYTHONPATH=site)
            printed = subprocess.run([sys.executable, "-B", "-c", "import kvpack; print(kvpack.__file__, kvpack.version())"],
                                     env=environment, cwd=folder, check=True, stdout=subprocess.PIPE,
                                     universal_newlines=True).stdout
        self.assertEqual(printed, "%s %s\n" % (os.path.join(site, "kvpack", "__init__.py"), kvpack.version()))


if __name__ == "__main__":
    support.main()
