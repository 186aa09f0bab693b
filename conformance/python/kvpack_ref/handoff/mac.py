"""MAC keys and tags (docs/protocol/handoff.md section 3)."""
import hashlib
import hmac
import os
import stat
import struct

from .canonical import is_digest
from .errors import Refusal, validation

KEY_BYTES = 32
MAX_KEY_FILE_BYTES = 4096


def key_from_hex(text):
    """A key out of 64 lower-case hexadecimal digits."""
    if not is_digest(text):
        raise validation("MAC key must be 64 lowercase hexadecimal digits")
    return bytes.fromhex(text)


def tag_hex(key, stream):
    """The plain tag: HMAC-SHA-256 of the stream."""
    return hmac.new(key, stream, hashlib.sha256).hexdigest()


def verify_hex(key, stream, expected):
    """Compares the plain tag with `expected`, hex of either case."""
    try:
        raw = bytes.fromhex(expected) if not any(c.isspace() for c in expected) else None
    except ValueError:
        raw = None
    if raw is None:
        raise validation("artifact HMAC tag is not valid hex")
    if not hmac.compare_digest(raw, hmac.new(key, stream, hashlib.sha256).digest()):
        raise validation("artifact HMAC tag rejected")


def domain_stream(domain, stream):
    """What the domain tag authenticates: prefix, u16be length, domain, stream."""
    if not 1 <= len(domain) <= 65535:
        raise validation("MAC domain must contain 1..=65535 bytes")
    return b"kvpack-domain-mac-v1\0" + struct.pack(">H", len(domain)) + domain + stream


def tag_domain_hex(key, domain, stream):
    return tag_hex(key, domain_stream(domain, stream))


def verify_domain_hex(key, domain, stream, expected):
    material = domain_stream(domain, stream)
    if not is_digest(expected):
        raise validation("protocol HMAC tag must be 64 lowercase hex characters")
    if not hmac.compare_digest(expected, tag_hex(key, material)):
        raise validation("protocol HMAC tag rejected")


def key_from_file_content(content):
    """The key in a key file's content, of which at most one byte more than the limit was read."""
    if len(content) > MAX_KEY_FILE_BYTES:
        raise Refusal("config", "HMAC key file is too large")
    if len(content) == KEY_BYTES:
        return content
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("config", "HMAC key is not UTF-8 hex") from None
    try:
        return key_from_hex(text.rstrip("\r\n"))
    except Refusal as r:
        raise Refusal("config", f"live handoff validation failed: {r.message}") from None


def read_key_file(path):
    """The key in a private file: regular, no symlink, no access for group and other, unchanged while it is opened."""
    try:
        before = os.lstat(path)
        if not stat.S_ISREG(before.st_mode):
            raise Refusal("config", "HMAC key must be a regular non-symlink file")
        if before.st_mode & 0o077:
            raise Refusal("config", "HMAC key must not be accessible by group/other")
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as f:
            after = os.fstat(f.fileno())
            if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
                raise Refusal("config", "HMAC key file changed while it was opened")
            return key_from_file_content(f.read(MAX_KEY_FILE_BYTES + 1))
    except OSError as e:
        raise Refusal("io", str(e)) from None
