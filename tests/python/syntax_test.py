"""The package runs on Python 3.9, whatever the tests run on."""
import ast
import unittest

import support

SOURCES = sorted(support.PACKAGE.rglob("*.py"))
NEWER_KEYWORDS = {"slots", "kw_only", "strict"}


def annotations(tree):
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                yield getattr(node, name)


class Syntax(unittest.TestCase):
    def test_sources_are_found(self):
        self.assertIn(support.PACKAGE / "kvpack" / "__init__.py", SOURCES)

    def test_sources_are_python_3_9(self):
        for source in SOURCES:
            with self.subTest(source=str(source)):
                tree = ast.parse(source.read_text(encoding="utf-8"), str(source), feature_version=(3, 9))
                for annotation in annotations(tree):
                    self.assertFalse(any(isinstance(node, ast.BitOr) for node in ast.walk(annotation)),
                                     "line %d: X | Y is a type from 3.10 on" % annotation.lineno)
                for node in ast.walk(tree):
                    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
                            "dataclass", "zip"):
                        self.assertFalse(NEWER_KEYWORDS & {word.arg for word in node.keywords}, source)


if __name__ == "__main__":
    support.main()
