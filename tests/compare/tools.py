"""What can keep a KV cache on a disk, each used the way its users use it. A tool saves everything under one folder and
restores it from there; restoring raises Refused, or gives what it read, right or wrong."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import time

import numpy

from kv_data import CHUNK_TOKENS, HEAD_DIM, KV_HEADS, LAYERS


UNWRITTEN = 0x5555  # What memory holds that a restore is to fill.


class Refused(Exception):
    """The tool noticed, and gave nothing."""


class Aborted(Exception):
    """The tool ended the process."""


class Absent(Exception):
    """The tool does not know such a cache."""


class Tool:
    """One way to keep a cache.

    Attributes:
        proves, silent_about: what a restore proves of the bytes, and what not.
        note: what else to know about its figures.
        killable: it makes sense to kill it in the middle of a second save.
        one_slot: a second save goes where the first is.
    """

    name = proves = silent_about = note = ""
    killable = True
    one_slot = False

    def __init__(self, data):
        self.data = data

    def prepare(self, folder):
        """What is done once, before the first save: measured apart from it."""

    def save(self, folder):
        raise NotImplementedError

    def restore(self, folder, other_model=False):
        """@return planes, and the seconds that it took"""
        raise NotImplementedError

    def prove(self, folder):
        """What a user runs beside a restore to be sure."""

    def payload_file(self, folder):
        """One that holds nothing but the cache, or hardly anything else."""
        return max((file for file in pathlib.Path(folder).rglob("*") if file.is_file()),
                   key=lambda file: file.stat().st_size)

    def forget(self):
        """What a new process would not have."""


class KvPack(Tool):
    name = "kvpack"
    proves = "every byte, the order of the tokens, and under which model, tokenizer, layout and engine it was computed"
    silent_about = "nothing that bytes can prove"
    encrypt = False

    def _open(self, folder, other_model=False, **options):
        import kvpack
        weights = b"\2" if other_model else b"\1"
        model = kvpack.Model(weights * 32, b"\3" * 32, b"\4" * 32, b"\5" * 32, b"\6" * 32)
        states = [kvpack.State(layer, name, "f16", (kvpack.TOKENS, KV_HEADS, HEAD_DIM))
                  for layer in range(LAYERS) for name in ("k", "v")]
        return kvpack.Cache(pathlib.Path(folder) / "cache", model, engine_cache_abi=b"\7" * 32, topology=b"\x08" * 32,
                            shard_map=b"\x09" * 32, states=states, encrypt=self.encrypt, **options)

    def save(self, folder):
        with self._open(folder, create=True) as cache:
            cache.save(self.data.tokens, self.data.planes)

    def restore(self, folder, other_model=False):
        import kvpack
        planes = [numpy.full_like(plane, UNWRITTEN) for plane in self.data.planes]
        started = time.perf_counter()
        try:
            with self._open(folder, other_model, strict=True) as cache:
                restored = cache.restore(self.data.tokens, lend=lambda part, size: planes[part])
        except kvpack.Error as refusal:
            raise Refused(refusal.message)
        taken = time.perf_counter() - started
        if not restored:
            raise Absent()
        return planes, taken

    def payload_file(self, folder):
        return super().payload_file(next(pathlib.Path(folder).rglob("objects")))


class KvPackEncrypted(KvPack):
    name = "kvpack, encrypted"
    encrypt = True


class LlamaSession(Tool):
    name = "llama.cpp session file"
    proves = "that the file is not too short, by ending the process"
    silent_about = "every bit of it, and which model it came from"
    one_slot = True

    def __init__(self, data, peer, other_peer):
        super().__init__(data)
        self.peer, self.other_peer = peer, other_peer

    def _file(self, folder):
        return pathlib.Path(folder) / "slot.bin"

    def save(self, folder):
        return self.peer.ask("save", self._file(folder))["seconds"]

    def restore(self, folder, other_model=False):
        answer = (self.other_peer() if other_model else self.peer).ask("load", self._file(folder))
        if "signal" in answer:
            raise Aborted()
        if not answer["accepted"]:
            raise Refused("llama_state_seq_load_file gave 0")
        # The engine itself compared what it then held with what it had computed.
        return self.data.planes if answer["equal"] else None, answer["seconds"]

    def save_and_kill(self, folder, seconds):
        self.peer.ask("kill", self._file(folder), int(1000 * seconds))


class SafeTensors(Tool):
    name = "safetensors"
    proves = "that the header fits the length of the file"
    silent_about = "every bit of the tensors, and what they were computed under"
    one_slot = True

    def __init__(self, data):
        super().__init__(data)
        try:
            import safetensors.numpy
            self._library = safetensors.numpy
        except ImportError:
            self._library = None
            self.note = "a writer and a reader of ours that follow its published layout: the package is not installed"

    def _file(self, folder):
        return pathlib.Path(folder) / "cache.safetensors"

    def save(self, folder):
        tensors = dict(zip(self.data.names(), self.data.planes))
        if self._library is not None:
            self._library.save_file({name: plane.view(numpy.float16) for name, plane in tensors.items()},
                                    self._file(folder))
            return
        header, at = {}, 0
        for name, plane in tensors.items():
            header[name] = {"dtype": "F16", "shape": list(plane.shape), "data_offsets": [at, at + plane.nbytes]}
            at += plane.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(self._file(folder), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for plane in tensors.values():
                file.write(plane)

    def restore(self, folder, other_model=False):
        started = time.perf_counter()
        if not self._file(folder).exists():
            raise Absent()
        if self._library is not None:
            try:
                read = self._library.load_file(self._file(folder))
            except Exception as refusal:
                raise Refused(str(refusal))
            return [read[name].view(numpy.uint16) for name in self.data.names()], time.perf_counter() - started
        with open(self._file(folder), "rb") as file:
            try:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                ends = max(entry["data_offsets"][1] for entry in header.values())
            except ValueError:
                raise Refused("the header is no JSON")
            if file.tell() + ends != os.fstat(file.fileno()).st_size:
                raise Refused("the offsets do not fill the file")
            planes = []
            for name in self.data.names():
                plane = numpy.empty(header[name]["shape"], numpy.uint16)
                file.readinto(memoryview(plane).cast("B"))
                planes.append(plane)
        return planes, time.perf_counter() - started


class LmCacheDisk(Tool):
    name = "LMCache local disk"
    proves = "nothing: one raw tensor a file, its name the model's name and a hash of the tokens"
    silent_about = "every bit, the length, and weights under the same name"
    note = ("a writer and a reader of ours that follow its published layout: the backend needs torch and a GPU; files of 256 "
            "tokens, [2][layers][tokens][width]; the index of what is there lives in the memory of the process")

    def __init__(self, data):
        super().__init__(data)
        self._index = {}
        count = len(data.tokens)
        # As they lie in its pinned memory; not counted.
        self._chunks = [numpy.stack([numpy.stack([data.planes[2 * layer + side][at:at + CHUNK_TOKENS]
                                                  for layer in range(LAYERS)]) for side in range(2)])
                        for at in range(0, count, CHUNK_TOKENS)]

    def _key(self, at):
        text = repr(self.data.tokens[:at + CHUNK_TOKENS]).encode()
        return "vllm@model@1@0@%s" % hashlib.sha256(text).hexdigest()[:16]

    def save(self, folder):
        for at, chunk in enumerate(self._chunks):
            key = self._key(at * CHUNK_TOKENS)
            file = pathlib.Path(folder) / (key.replace("/", "-") + ".pt")
            with open(file, "wb") as out:
                out.write(chunk)
            self._index[key] = file

    def restore(self, folder, other_model=False):
        chunks = [numpy.full_like(chunk, UNWRITTEN) for chunk in self._chunks]  # Its pool of pinned memory.
        keys = [self._key(at * CHUNK_TOKENS) for at in range(len(chunks))]
        started = time.perf_counter()
        for key, chunk in zip(keys, chunks):
            if key not in self._index:
                raise Absent()
            with open(self._index[key], "rb") as content:
                content.readinto(memoryview(chunk).cast("B"))
        taken = time.perf_counter() - started
        return [numpy.concatenate([chunk[side][layer] for chunk in chunks])
                for layer in range(LAYERS) for side in range(2)], taken

    def forget(self):
        self._index = {}


class FileTool(Tool):
    """Keeps a folder of files: one of planes, as a program would write them that leaves the rest to others."""

    killable = False

    def __init__(self, data):
        super().__init__(data)
        self.source = None

    def lay_out(self, folder):
        """Makes the folder that is to be kept; not counted."""
        self.source = pathlib.Path(folder)
        for name, plane in zip(self.data.names(), self.data.planes):
            plane.tofile(self.source / name)
        sync(self.source)

    def _run(self, command, **options):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
        if done.returncode != 0:
            raise Refused((done.stderr.strip() or "exit %d" % done.returncode).splitlines()[0])

    def _read_back(self, folder):
        read = []
        for name, plane in zip(self.data.names(), self.data.planes):
            file = next(pathlib.Path(folder).rglob(name), None)
            if file is None or file.stat().st_size != plane.nbytes:
                return None
            read.append(numpy.fromfile(file, numpy.uint16).reshape(plane.shape))
        return read

    def _restore_into(self, folder):
        raise NotImplementedError

    def restore(self, folder, other_model=False):
        target = pathlib.Path(folder + ".restored")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        try:
            started = time.perf_counter()
            self._restore_into(folder, target)
            taken = time.perf_counter() - started
            return self._read_back(target), taken
        finally:
            shutil.rmtree(target, ignore_errors=True)


class PlainCopy(FileTool):
    name = "cp, sha256sum"
    proves = "with `sha256sum -c`, every byte of every file"
    silent_about = "who wrote the sums, and what the bytes were computed under"
    note = "restore does not verify; to be sure: `sha256sum -c`"

    def save(self, folder):
        names = self.data.names()
        self._run(["cp", *[str(self.source / name) for name in names], folder])
        self._run(["sync", *names], cwd=folder)
        with open(pathlib.Path(folder) / "SUMS", "w") as sums:
            subprocess.run(["sha256sum", *names], cwd=folder, stdout=sums, check=True)

    def _restore_into(self, folder, target):
        self._run(["cp", *[str(pathlib.Path(folder) / name) for name in self.data.names()], str(target)])

    def prove(self, folder):
        self._run(["sha256sum", "--quiet", "-c", "SUMS"], cwd=folder)


class PlainOpenSsl(PlainCopy):
    name = "cp, openssl dgst"
    proves = "with `openssl dgst` again, every byte of every file"
    note = "the same, with a SHA-256 that uses the processor's instructions"

    def save(self, folder):
        names = self.data.names()
        self._run(["cp", *[str(self.source / name) for name in names], folder])
        self._run(["sync", *names], cwd=folder)
        with open(pathlib.Path(folder) / "SUMS", "w") as sums:
            subprocess.run(["openssl", "dgst", "-sha256", "-r", *names], cwd=folder, stdout=sums, check=True)

    def prove(self, folder):
        sums = pathlib.Path(folder) / "SUMS"
        done = subprocess.run(["openssl", "dgst", "-sha256", "-r", *self.data.names()], cwd=folder,
                              stdout=subprocess.PIPE, text=True, check=True)
        if done.stdout != sums.read_text():
            raise Refused("the sums differ")


class Restic(FileTool):
    name = "restic"
    proves = "every byte of every file, to whoever has the password; with `--verify` also of what was written back"
    silent_about = "what the bytes were computed under"
    note = "chunks by content, deduplicates and encrypts, which was not asked of it"

    def _environment(self, folder):
        return dict(os.environ, RESTIC_PASSWORD="compare", RESTIC_CACHE_DIR=folder + ".restic",
                    RESTIC_REPOSITORY=str(pathlib.Path(folder) / "repository"))

    def prepare(self, folder):
        self._run(["restic", "init", "--repository-version", "2"], env=self._environment(folder))

    def save(self, folder):
        self._run(["restic", "backup", "--compression", "off", "."], cwd=self.source, env=self._environment(folder))

    def _restore_into(self, folder, target):
        self._run(["restic", "restore", "latest", "--target", str(target), "--verify"], env=self._environment(folder))

    def prove(self, folder):
        self._run(["restic", "check", "--read-data"], env=self._environment(folder))


class Borg(FileTool):
    name = "borg"
    proves = "every byte of every file, to whoever has the passphrase"
    silent_about = "what the bytes were computed under"
    note = "chunks by content and deduplicates, which was not asked of it"

    def _environment(self, folder):
        return dict(os.environ, BORG_PASSPHRASE="compare", BORG_BASE_DIR=folder + ".borg",
                    BORG_REPO=str(pathlib.Path(folder) / "repository"))

    def prepare(self, folder):
        self._run(["borg", "init", "-e", "authenticated"], env=self._environment(folder))

    def save(self, folder):
        self._run(["borg", "create", "--compression", "none", "::a", "."], cwd=self.source, env=self._environment(folder))

    def _restore_into(self, folder, target):
        self._run(["borg", "extract", "::a"], cwd=target, env=self._environment(folder))

    def prove(self, folder):
        self._run(["borg", "check", "--verify-data"], env=self._environment(folder))


def sync(folder):
    """Makes everything under a folder durable."""
    for directory, _, files in os.walk(folder):
        for path in [os.path.join(directory, file) for file in files] + [directory]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
