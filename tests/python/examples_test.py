"""The example runs as a person would run it."""
import os
import subprocess
import sys
import tempfile
import unittest

import support


class Examples(unittest.TestCase):
    def test_save_restore(self):
        environment = dict(os.environ, PYTHONPATH=str(support.PACKAGE))
        with tempfile.TemporaryDirectory() as folder:
            printed = subprocess.run(
                [sys.executable, "-B", str(support.PACKAGE / "examples" / "save_restore.py"), folder],
                env=environment, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
        self.assertEqual(printed.splitlines(), [
            "saved: 256 tokens, 512 tokens, 700 tokens",
            "restored: 512 tokens, 488 are left to compute",
            "refused: identity field weights_config differs"])


if __name__ == "__main__":
    support.main()
