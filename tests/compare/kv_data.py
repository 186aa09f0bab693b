"""The cache that every tool of the comparison saves: 32 layers of K and V, [tokens][8 heads][128] in f16, 131,072 bytes a
token. With an engine they are the rows of its state; without one, numbers that do not compress either."""
import json
import os
import pathlib
import subprocess

import numpy

LAYERS, KV_HEADS, HEAD_DIM = 32, 8, 128
ROW_BYTES = 2 * KV_HEADS * HEAD_DIM
TOKEN_BYTES = 2 * LAYERS * ROW_BYTES
CHUNK_TOKENS = 256


class Data:
    """Planes in the order k0, v0, k1, v1, .., each uint16 [tokens][heads * dim], and the tokens they belong to."""

    def __init__(self, planes, source):
        self.planes = planes
        self.source = source
        self.tokens = list(range(len(planes[0])))
        self.bytes = sum(plane.nbytes for plane in planes)

    def names(self):
        return ["%s%d" % (kind, layer) for layer in range(LAYERS) for kind in "kv"]

    def other(self):
        """Another cache of the same shape, of other tokens: what a second save holds."""
        made = Data([plane ^ numpy.uint16(1) for plane in self.planes], self.source)
        made.tokens = [token + 1 for token in self.tokens]
        return made

    def keep(self, folder):
        """Leaves the planes for other processes, which `load` them."""
        numpy.save(pathlib.Path(folder) / "planes.npy", numpy.stack(self.planes))

    @staticmethod
    def load(folder):
        return Data(list(numpy.load(pathlib.Path(folder) / "planes.npy")), "kept")


def synthetic(tokens):
    random = numpy.random.default_rng(7)
    planes = [random.standard_normal((tokens, KV_HEADS * HEAD_DIM), dtype=numpy.float32).astype(numpy.float16)
              .view(numpy.uint16) for _ in range(2 * LAYERS)]
    return Data(planes, "random numbers, normally distributed")


class Peer:
    """A process with llama.cpp in it, that has computed a state."""

    def __init__(self, program, libraries, folder, tokens, seed=1):
        self._process = subprocess.Popen(
            [program, str(libraries), str(pathlib.Path(folder) / ("model%d.gguf" % seed)), str(seed), str(tokens)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
            env=dict(os.environ, GGML_NO_BACKTRACE="1"))
        self.state_bytes = self._answer()["state_bytes"]

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("compare: llama_peer ended with %d" % self._process.wait())
        return json.loads(line)

    def ask(self, *words):
        self._process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def from_engine(peer, folder):
    """The planes in the state of a peer: magic and sequence, one cache of one stream, its cells in order, then for each
    layer K and then for each layer V, every plane after its type and row size. docs/llama-cpp.md"""
    file = pathlib.Path(folder) / "state.bin"
    peer.ask("dump", file)
    state = numpy.fromfile(file, dtype=numpy.uint8)
    file.unlink()
    tokens = int(state[12:16].view("<u4")[0])
    at = 16 + 12 * tokens + 8
    planes = []
    for _ in range(2 * LAYERS):
        if state[at + 4:at + 12].view("<u8")[0] != ROW_BYTES:
            raise SystemExit("compare: the state is not laid out as expected at byte %d" % at)
        plane = state[at + 12:at + 12 + tokens * ROW_BYTES]
        planes.append(plane.view("<u2").reshape(tokens, -1).copy())
        at += 12 + plane.nbytes
    if at != state.nbytes:
        raise SystemExit("compare: the state has %d bytes more than expected" % (state.nbytes - at))
    ordered = planes[:LAYERS], planes[LAYERS:]
    return Data([plane for pair in zip(*ordered) for plane in pair], "llama.cpp, random weights")
