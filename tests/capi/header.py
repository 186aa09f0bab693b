"""Reads kvpack_c.h: its sections, and each declaration with the comment above it."""
import re

COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)


class Function:
    """One exported function."""

    def __init__(self, prototype):
        self.prototype = prototype
        match = re.match(r"(?P<type>.*?)(?P<name>(?:llama_)?kvpack_\w+)\((?P<parameters>.*)\)\Z", prototype)
        self.name = match.group("name")
        self.type = match.group("type").strip()
        text = match.group("parameters")
        self.parameters = [] if text == "void" else [parameter.strip() for parameter in text.split(",")]


class Block:
    """A run of lines without an empty one: a comment, and what it is about."""

    def __init__(self, text):
        match = COMMENT.match(text)
        self.comment = comment_text(match.group(1)) if match else ""
        self.code = text[match.end():].strip() if match else text.strip()
        self.functions = [Function(" ".join(part.split())) for part in declarations(self.code)]


def comment_text(raw):
    lines = [re.sub(r"\A\s*\* ?", "", line).rstrip() for line in raw.strip().splitlines()]
    return "\n".join(lines).strip()


def declarations(code):
    """The prototypes that a block exports, without the export macro and the semicolon."""
    return re.findall(r"^(?:LLAMA_)?KVPACK_API (.*?);", code, re.DOTALL | re.MULTILINE)


def blocks_of(path):
    with open(path, encoding="utf-8") as source:
        text = source.read()
    return [Block(chunk) for chunk in re.split(r"\n(?:[ \t]*\n)+", paragraphs_joined(text)) if chunk.strip()]


def paragraphs_joined(text):
    """The text with empty lines inside comments and braces made harmless, so that those outside separate."""
    text = COMMENT.sub(lambda match: match.group(0).replace("\n\n", "\n *\n"), text)
    return re.sub(r"\{[^{}]*\}", lambda match: re.sub(r"\n\n+", "\n", match.group(0)), text)


def functions_of(path):
    return [function for block in blocks_of(path) for function in block.functions]
