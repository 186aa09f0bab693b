"""The sealed bundle directory (docs/protocol/kvhf.md section 12)."""
import os
import shutil
import stat

from ..handoff.errors import Refusal, validation
from .begin import is_prerope
from .frame import MAX_JSON_BYTES, decode, encode
from .verifier import Verifier, receive

SEAL_FILE, BEGIN_FILE, READY_FILE, LAYERS = "seal.json", "begin.json", "READY", "layers"


def plane_names(begin, layer, role):
    """(header name, payload name) of one plane."""
    stem = f"{layer:05d}-{role[0]}"
    return stem + ".json", stem + (".f32le" if role == "key" and is_prerope(begin) else ".f16le")


def _write_new(path, data):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path, data, limits, key=None):
    """Stages the planes of a recorded stream beside `path`, seals them and publishes. Returns the artifact digest."""
    try:
        return _write(path, data, limits, key)
    except OSError as e:
        raise Refusal("io", str(e)) from None


def _write(path, data, limits, key):
    # Judged whole before the first file, so that a refused stream leaves nothing behind.
    planes = []
    witness = receive(data, limits, key, lambda header, payload: planes.append((header, payload)))
    parent, name = os.path.split(os.path.abspath(path))
    if name in ("", ".", ".."):
        raise validation("bundle output must name one child directory")
    if os.path.islink(parent):
        raise validation(f"bundle parent must not be a symlink: {parent}")
    if os.path.lexists(path):
        raise validation(f"bundle output already exists: {path}")
    staging = os.path.join(parent, f".{name}.{witness.begin['transfer_id'][:16]}.partial")
    os.mkdir(staging)
    try:
        _fill(staging, witness, planes)
        # The standard library has no rename that refuses to replace; a name taken since the first check is caught here.
        if os.path.lexists(path):
            raise validation(f"bundle output already exists: {path}")
        os.rename(staging, path)
    except (OSError, Refusal):
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync_directory(parent)
    return witness.seal["artifact_sha256"]


def _fill(staging, witness, planes):
    begin, layers = witness.begin, os.path.join(staging, LAYERS)
    os.mkdir(layers)
    _write_new(os.path.join(staging, BEGIN_FILE), encode(begin))
    for header, payload in planes:
        header_name, payload_name = plane_names(begin, header["layer"], header["role"])
        _write_new(os.path.join(layers, header_name), encode(header))
        _write_new(os.path.join(layers, payload_name), payload)
    _write_new(os.path.join(staging, SEAL_FILE), encode(witness.seal))
    _write_new(os.path.join(staging, READY_FILE), witness.seal["artifact_sha256"].encode() + b"\n")
    _sync_directory(layers)
    _sync_directory(staging)


def _read(path, max_bytes):
    before = os.lstat(path)
    if not stat.S_ISREG(before.st_mode):
        raise validation(f"expected a regular non-symlink file: {path}")
    if not 1 <= before.st_size <= max_bytes:
        raise validation(f"file {path} length {before.st_size} is outside 1..={max_bytes}")
    with open(path, "rb") as f:
        data = f.read(max_bytes + 1)
    if len(data) != before.st_size:
        raise validation(f"file {path} changed while being read")
    return data


def open_bundle(path, limits):
    """Reopens a bundle with full verification. Returns the witness."""
    try:
        return _open(path, limits)
    except OSError as e:
        raise Refusal("io", str(e)) from None


def _open(path, limits):
    if os.path.islink(path):
        raise validation(f"bundle must not be a symlink: {path}")
    root = os.path.realpath(path)
    if not os.path.isdir(root):
        if os.path.lexists(root):
            raise validation("bundle path is not a directory")
        raise Refusal("io", f"no such directory: {root}")
    for name, label in ((BEGIN_FILE, "begin manifest"), (SEAL_FILE, "seal manifest"),
                        (READY_FILE, "READY marker"),
                        (LAYERS, "layers directory")):
        entry = os.path.join(root, name)
        if os.path.islink(entry):
            raise validation(f"{label} must not be a symlink: {entry}")
        if not os.path.lexists(entry):
            raise Refusal("io", f"no such file: {entry}")
    begin = decode("begin", _read(os.path.join(root, BEGIN_FILE), MAX_JSON_BYTES))
    verifier = Verifier(begin, limits)
    seal = decode("seal", _read(os.path.join(root, SEAL_FILE), MAX_JSON_BYTES))
    layers, expected = os.path.join(root, LAYERS), set()
    for plane in verifier.planes:
        header_name, payload_name = plane_names(begin, plane.layer, plane.role)
        expected.update((header_name, payload_name))
        header = decode("layer", _read(os.path.join(layers, header_name), MAX_JSON_BYTES))
        verifier.plane(header, _read(os.path.join(layers, payload_name), limits.max_frame_bytes))
    if set(os.listdir(layers)) != expected:
        raise validation("layers directory contains missing or unexpected entries")
    witness = verifier.seal(seal)
    ready = _read(os.path.join(root, READY_FILE), MAX_JSON_BYTES)
    if ready != seal["artifact_sha256"].encode() + b"\n":
        raise validation("READY marker does not match the sealed artifact")
    return witness
