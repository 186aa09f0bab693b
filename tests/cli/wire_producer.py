"""A producer in Python: the conformance kit's handoff over the standard library's TLS. It can offer what it likes, stop where
it likes, and write what it likes."""
import json
import hashlib
import pathlib
import socket
import ssl
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "conformance" / "python"))

from kvpack_ref.handoff import frame, manifest, stream  # noqa: E402
from kvpack_ref.handoff.delta import span_schedule  # noqa: E402

PLAIN, REFUSALS = "muser-kvpack-v2", "muser-kvpack-v2+refusal1"
ROW_BYTES, TILE_LAYERS, WINDOW = 512, 13, 2048


def tile_layers(row):
    """The layers of a packed tile, ascending."""
    if row["role"] == "nope_tile":
        return [layer for layer in range(52) if layer % 4 == 3]
    return [layer for layer in range(52) if layer % 4 != 3 and layer >= row["layer"]][:TILE_LAYERS]


class Transfer:
    """A whole transfer of made-up planes, as frames."""

    def __init__(self, config, tokens, generation, **changes):
        now = int(time.time() * 1000)
        self.begin = {"protocol": manifest.PROTOCOL, "transfer_id": f"python-{generation}", "generation": generation,
                      "created_unix_ms": now, "expires_unix_ms": now + 600_000, "identity": config["identity"],
                      "prompt_token_ids": tokens, "multimodal": None,
                      "hmac": {"key_id": config["hmac_key_id"], "epoch": config["hmac_epoch"]},
                      "components": [{"id": "target", "kind": "target_kv", "required": True,
                                      "identity_sha256": config["target_cache_identity_sha256"]}],
                      "deferred_segments": True, "segments": [], **changes}
        key = pathlib.Path(config["folder"], config["hmac_key_file"]).read_bytes()
        rows = [{k: v for k, v in row.items() if k not in ("sequence", "byte_len")}
                for row in span_schedule(len(tokens), 0)]
        self.payloads = [self.tile(row) for row in rows]
        descriptors = stream.describe(rows, self.payloads)
        self.frames = [frame.write_begin(self.begin)]
        self.frames += [frame.write_segment(d["sequence"], d, p) for d, p in zip(descriptors, self.payloads)]
        self.frames.append(frame.write_seal(manifest.sign(self.begin, descriptors, self.payloads, key)))
        self.rows = rows

    @staticmethod
    def row(layer, side, token):
        return hashlib.sha256(struct.pack("<III", layer, side, token)).digest() * (ROW_BYTES // 32)

    @classmethod
    def tile(cls, row):
        tokens = range(row["logical_start"], row["logical_start"] + row["logical_count"])
        return b"".join(cls.row(layer, side, token) for layer in tile_layers(row) for side in (0, 1) for token in tokens)

    def planes(self):
        """As `cluster_helper digest` prints them."""
        count = len(self.begin["prompt_token_ids"])
        lines = []
        for layer in range(52):
            start = 0 if layer % 4 == 3 else max(0, count - WINDOW)
            for side in (0, 1):
                content = b"".join(self.row(layer, side, token) for token in range(start, count))
                lines.append(f"{layer} {start} {count - start} {hashlib.sha256(content).hexdigest()}")
        return lines


def load(folder):
    """The producer settings of a folder."""
    return {**json.loads((folder / "producer.json").read_text()), "folder": str(folder)}


def connect(config, alpn=(REFUSALS, PLAIN), certificate=True, version=ssl.TLSVersion.TLSv1_3):
    """A TLS connection, its handshake done as far as this end can tell."""
    folder = pathlib.Path(config["folder"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = version
    context.load_verify_locations(folder / config["peer_ca"])
    if certificate:
        context.load_cert_chain(folder / config["certificate_chain"], folder / config["private_key"])
    if alpn:
        context.set_alpn_protocols(list(alpn))
    host, port = config["receiver"].rsplit(":", 1)
    connection = context.wrap_socket(socket.create_connection((host, int(port)), timeout=60),
                                     server_hostname=config["server_name"])
    pin = hashlib.sha256(connection.getpeercert(binary_form=True)).hexdigest()
    assert pin in config["peer_leaf_sha256"], "another receiver"
    return connection


def answer(connection):
    """The header of the receiver's last frame, or None where it closes without a word."""
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except (ConnectionError, ssl.SSLError):
        pass
    if not data:
        return None
    magic, header, payload = struct.unpack_from("<8sIQ", data)
    assert (magic, payload, len(data)) == (b"KVPKV2\0\0", 0, 20 + header), "not exactly one frame"
    return json.loads(data[20:])


def send(config, transfer, **how):
    """The whole transfer. @return what the receiver says"""
    with connect(config, **how) as connection:
        try:
            for part in transfer.frames:
                connection.sendall(part)
        except (ConnectionError, ssl.SSLError):
            pass
        return answer(connection)
