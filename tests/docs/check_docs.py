#!/usr/bin/env python3
"""Documents and code hold each other: references, links, pinned texts, known answers and embedded examples.

usage: check_docs.py ROOT [--write]

  references  every `docs/... §Section` in a source, and every `§Section` in a document, names what exists
  links       every relative link and every repository path in a document exists
  texts       every pinned text of the format code stands in a document
  quotes      every refusal that docs/format quotes is in the code, under the quoted category
  answers     every known answer in docs/format occurs in the conformance vectors
  examples    every fenced block below `<!-- PATH -->` is that file, byte for byte; --write copies the files in
"""
import pathlib
import re
import sys

SOURCES = ["include", "src", "capi", "docs/examples", "tests", "conformance", "run", "CMakeLists.txt", ".ci"]
README_SHOWS = ["docs/examples/readme.cpp", "capi/examples/readme.c"]
SOURCE_ENDINGS = {".h", ".c", ".cpp", ".py", ".md", ".sh", ".txt", ".cmake", ".json", ""}
TEXT_SOURCES = ["include/kvpack/core", "include/kvpack/base/publish.h", "src/base/publish.cpp", "src/core"]

DOC_PATH = re.compile(r"(?<![\w/.-])docs/[A-Za-z0-9_./-]*[A-Za-z0-9_]")
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (\S+/\S+\.(?:c|cpp|h|py)) -->")
EMBED = re.compile(r"<!-- (\S+) -->\n+```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REPOSITORY_PATH = re.compile(r"`((?:docs|conformance|include|src|tests|capi|third_party|build)/[A-Za-z0-9_./-]+)`")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"(?:\s*"((?:[^"\\\n]|\\.)*)")*')

DIRECT = re.compile(r'ErrorCode::k(\w+),\s*"((?:[^"\n]|"\s*")*?)"(?!\s*")')
QUOTE = re.compile(r'`([a-z0-9_]+): "([^"`]+)"`')

# Quoted for completeness; nothing can reach them (docs/format says so at the place).
UNREACHABLE = {"family dtype has no fixed width", "chunk encoded length mismatch"}

# Literals of the format code that are no refusals of a format, or parts from which a text is put together.
NOT_PINNED = re.compile(r"^(JSON |must |is |at line|no name for |target comes and goes|a number without)|[:`(]$|^ |^, ")
NOT_PINNED_TEXTS = {"an earlier chunk failed", "out of memory", "directory is nested too deeply",
                    "preserve IEEE denormals", "read past the end of the source"}


def headings(text):
    """The headings of a document as a reader cites them: without their number, and their number alone."""
    found = []
    for match in re.finditer(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE):
        title = match.group(1).replace("`", "")
        number = re.match(r"([0-9]+(?:\.[0-9]+)*)\.? +(.*)", title)
        found += [number.group(2), number.group(1)] if number else [title]
    return found


def slugs(text):
    found = set()
    for match in re.finditer(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", match.group(1).lower()).replace(" ", "-")
        found.add(slug)
    return found


def cited_section(text, known):
    """The section that `text`, which stands behind a §, begins with."""
    fitting = [h for h in known if re.match(re.escape(h) + r"(?![\w-])", text)]
    return max(fitting, key=len) if fitting else None


def check_sections(where, text, at, target, known, problems):
    """Follows `§One, §Two and §Three` behind position `at`. Gives where the sections that it looked at begin."""
    looked_at = set()
    mark = re.compile(r"\s*§\s*").match(text, at)
    while mark:
        looked_at.add(mark.end())
        section = cited_section(text[mark.end():mark.end() + 120], known)
        if section is None:
            problems.append(f"{where}: {target} has no section '{text[mark.end():mark.end() + 40]}'")
            break
        mark = re.compile(r"\s*(?:,|and|, and)?\s*§\s*").match(text, mark.end() + len(section))
    return looked_at


def without_comment_leaders(text):
    return re.sub(r"\s+", " ", re.sub(r"^[ \t]*(?:///<?|//|#|\*|--)? ?", "", text, flags=re.MULTILINE))


class Documents:
    def __init__(self, root):
        self.root = root
        self.texts = {p: p.read_text(encoding="utf-8") for p in sorted((root / "docs").rglob("*.md"))}
        readme = root / "README.md"
        if readme.exists():
            self.texts[readme] = readme.read_text(encoding="utf-8")
        self.known = {p: headings(t) for p, t in self.texts.items()}

    def name(self, path):
        return path.relative_to(self.root).as_posix()


def source_files(root):
    for top in SOURCES:
        path = root / top
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            inside = file.relative_to(root).as_posix()
            if file.is_file() and file.suffix in SOURCE_ENDINGS and "/corpus/" not in inside \
                    and "__pycache__" not in inside and not inside.startswith("tests/docs/"):
                yield file, inside


def check_references(documents, problems):
    count = 0
    for file, inside in source_files(documents.root):
        try:
            text = without_comment_leaders(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        for match in DOC_PATH.finditer(text):
            count += 1
            target = documents.root / match.group(0)
            if not target.exists():
                problems.append(f"{inside}: {match.group(0)} does not exist")
            elif target in documents.known:
                check_sections(inside, text, match.end(), match.group(0), documents.known[target], problems)
    return count


def check_links(documents, problems):
    count = 0
    for path, raw in documents.texts.items():
        name = documents.name(path)
        text = re.sub(r"\s+", " ", FENCE.sub("", raw))
        cited = set()
        for match in LINK.finditer(text):
            target, _, anchor = match.group(1).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            file = (path.parent / target).resolve() if target else path
            if not file.exists():
                problems.append(f"{name}: link to {target} leads nowhere")
                continue
            known = documents.known.get(file)
            if known is None:
                continue
            if anchor and anchor not in slugs(documents.texts[file]):
                problems.append(f"{name}: {target}#{anchor} is no heading")
            cited |= check_sections(name, text, match.end(), documents.name(file), known, problems)
        for match in re.finditer(r"§\s*", text):
            if match.end() not in cited:
                count += 1
                if cited_section(text[match.end():match.end() + 120], documents.known[path]) is None:
                    problems.append(f"{name}: no section '{text[match.end():match.end() + 40]}' here")
        for match in REPOSITORY_PATH.finditer(text):
            count += 1
            if not match.group(1).startswith("build/") and not (documents.root / match.group(1)).exists():
                problems.append(f"{name}: {match.group(1)} does not exist")
    return count


def literals(code):
    code = re.sub(r"^\s*#.*$|(?:^|\s)//.*$|'\\?\"'", "", code, flags=re.MULTILINE)
    for match in LITERAL.finditer(code):
        pieces = re.findall(r'"((?:[^"\\\n]|\\.)*)"', match.group(0))
        yield "".join(pieces)


def check_texts(documents, problems):
    written = re.sub(r"\s+", " ", " ".join(documents.texts.values()))
    count = 0
    for place in TEXT_SOURCES:
        path = documents.root / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            for text in literals(file.read_text(encoding="utf-8")):
                if " " not in text or NOT_PINNED.search(text) or text in NOT_PINNED_TEXTS:
                    continue
                count += 1
                if text not in written:
                    problems.append(f"{file.relative_to(documents.root)}: no document has the text '{text}'")
    return count


def check_quotes(documents, problems):
    """The other way round: a refusal that docs/format quotes is one that the code gives, under that category."""
    direct, known = {}, set()
    for top in ("include", "src"):
        for file in sorted((documents.root / top).rglob("*")):
            if file.suffix in (".h", ".cpp"):
                code = file.read_text(encoding="utf-8")
                known.update(literals(code))
                for category, text in DIRECT.findall(code):
                    direct.setdefault(re.sub(r'"\s*"', "", text), set()).add(category.lower())
    count = 0
    for path, raw in documents.texts.items():
        if "docs/format/" not in documents.name(path):
            continue
        for category, text in QUOTE.findall(re.sub(r"\s+", " ", raw)):
            count += 1
            if "{" in text or text in UNREACHABLE:
                continue
            if text not in known:
                problems.append(f"{documents.name(path)}: no code has the text '{text}'")
            elif text in direct and category.replace("_", "") not in direct[text]:
                problems.append(f"{documents.name(path)}: '{text}' is {sorted(direct[text])}, not {category}")
    return count


def expanded(vectors):
    """Bytes words with their fills written out, so that a known answer is found as it is written down."""
    vectors = re.sub(r"/fill:([0-9]+):([0-9a-f]{2})", lambda m: m.group(2) * min(int(m.group(1)), 4096), vectors)
    return re.sub(r"/add:", "", vectors)


def check_answers(documents, problems):
    vectors = "\n".join(p.read_text(encoding="utf-8") for top in ("conformance", "tests", "include")
                        for p in sorted((documents.root / top).rglob("*"))
                        if p.suffix in (".tsv", ".json", ".sha256", ".cpp", ".h"))
    vectors = expanded(vectors)
    count = 0
    for path, text in documents.texts.items():
        if "docs/format/" not in documents.name(path):
            continue
        for answer in sorted(set(re.findall(r"(?<![0-9a-f])[0-9a-f]{64,}(?![0-9a-f])", text))):
            count += 1
            if answer.strip("0") and answer not in vectors:
                problems.append(f"{documents.name(path)}: no vector holds {answer[:64]}..")
    return count


def check_examples(documents, problems):
    count = 0
    for example in README_SHOWS:
        shown = documents.texts.get(documents.root / "README.md", "")
        if (documents.root / example).exists() and f"<!-- {example} -->" not in shown:
            problems.append(f"README.md does not show {example}")
    for path, text in documents.texts.items():
        shown_in_blocks = {match.group(1) for match in EMBED.finditer(text)}
        for example in MARKER.findall(text):
            if example not in shown_in_blocks:
                problems.append(f"{documents.name(path)}: {example} is named and not followed by its block")
        for match in EMBED.finditer(text):
            count += 1
            file = documents.root / match.group(1)
            if not file.exists():
                problems.append(f"{documents.name(path)}: {match.group(1)} does not exist")
            elif file.read_text(encoding="utf-8") != match.group(2):
                problems.append(f"{documents.name(path)}: the block is not {match.group(1)}")
    return count


def write_examples(documents):
    for path, text in documents.texts.items():
        def block(match):
            content = (documents.root / match.group(1)).read_text(encoding="utf-8")
            return match.group(0).replace(match.group(2) + "```", content + "```")
        path.write_text(EMBED.sub(block, text), encoding="utf-8")


CHECKS = {"references": check_references, "links": check_links, "texts": check_texts, "quotes": check_quotes,
          "answers": check_answers, "examples": check_examples}


def self_test():
    """Every check must see a fault; a check that cannot fail proves nothing."""
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {
            "docs/format/a.md": "# A\n\n## One\n\nSee [b](b.md), [a](a.md) §Two, §Three. `graph: \"a gone text\"`\n"
                                "`bounds: \"a new text\"`\n\n" + "ab" * 32 + "\n",
            "docs/format/c.md": "<!-- code.cpp -->\n```cpp\nint a;\n```\n\n<!-- docs/bare.py -->\nprint(1)\n",
            "include/kvpack/core/x.h": "/// docs/format/a.md §One. docs/format/a.md\n/// §Nowhere\n"
                                       'fail(ErrorCode::kBadMagic, "a new text");\nfail("an unwritten text");\n',
            "include/kvpack/core/y.h": "/// docs/format/gone.md\n",
            "code.cpp": "int b;\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        documents = Documents(root)
        seen = {}
        for name, check in CHECKS.items():
            problems = []
            check(documents, problems)
            seen[name] = len(problems)
        return seen == {"references": 2, "links": 3, "texts": 1, "quotes": 2, "answers": 1, "examples": 2}, seen


def main():
    fine, seen = self_test()
    if not fine:
        print(f"docs: the checks do not see their faults: {seen}")
        return 1
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    root = pathlib.Path(arguments[0] if arguments else ".").resolve()
    if "--write" in sys.argv:
        write_examples(Documents(root))
    documents = Documents(root)
    problems, counts = [], []
    for name, check in CHECKS.items():
        counts.append(f"{check(documents, problems)} {name}")
    for problem in problems:
        print(problem)
    print(f"docs: {len(documents.texts)} documents, {', '.join(counts)}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
