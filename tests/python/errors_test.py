"""What a refusal carries."""
import pickle
import unittest

import support
import kvpack
from kvpack import _library, errors


class Errors(unittest.TestCase):
    def test_every_code_has_its_kind(self):
        kinds = {1: kvpack.MisuseError, 7: kvpack.MisuseError, 100: kvpack.FormatError, 109: kvpack.AuthenticationError,
                 200: kvpack.StorageError, 203: kvpack.ExpectationError, 204: kvpack.QuotaError, 207: kvpack.NotFoundError,
                 208: kvpack.BusyError, 209: kvpack.CancelledError, 302: kvpack.TransferError, 900: kvpack.MachineError,
                 901: kvpack.MachineError, 12345: kvpack.MachineError}
        for code, kind in kinds.items():
            self.assertIs(errors.error_class(code), kind, code)
            self.assertTrue(issubclass(kind, kvpack.Error))

    def test_what_this_package_refuses_is_named_as_the_library_names_it(self):
        for error in (errors.bad_argument("x", "is wrong"), errors.wrong_state("busy"), errors.closed_handle("store")):
            self.assertEqual(error.category, _library.text(_library.lib.kvpack_status_name(error.code)))
        self.assertEqual(str(errors.bad_argument("x", "is wrong")),
                         "invalid_argument: argument x is wrong (code 1, argument='x')")

    def test_facts_are_shown_escaped(self):
        error = kvpack.FormatError(103, "checksum", "damaged", (("object", "a\x1b[31m\n"), ("object", "b")))
        self.assertNotIn("\x1b", str(error))
        self.assertNotIn("\n", str(error))
        self.assertEqual(error.fact("object"), "a\x1b[31m\n")
        self.assertIsNone(error.fact("record"))

    def test_errors_go_between_processes(self):
        error = kvpack.ExpectationError(203, "expectation", "differs", (("field", "topology"),))
        again = pickle.loads(pickle.dumps(error))
        self.assertIs(type(again), kvpack.ExpectationError)
        self.assertEqual((again.code, again.category, again.message, again.facts),
                         (203, "expectation", "differs", (("field", "topology"),)))

    def test_nothing_secret_is_shown(self):
        plane = kvpack.Plane(b"prompt")
        self.assertNotIn("prompt", repr(plane))
        self.assertNotIn("prompt", repr(kvpack.Restored(True, b"", 1, b"", 1, 0, 0, (), (b"prompt",))))


if __name__ == "__main__":
    support.main()
