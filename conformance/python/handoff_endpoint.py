#!/usr/bin/env python3
"""The Python endpoint of conformance/HANDOFF.md: requests on standard input, answers on standard output.

usage: handoff_endpoint.py [--help]
"""
import inspect
import os
import re
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from kvpack_ref import kvhf  # noqa: E402
from kvpack_ref.handoff import admission, canonical, frame, ledger, mac, manifest, stream  # noqa: E402
from kvpack_ref.handoff.delta import span_schedule  # noqa: E402
from kvpack_ref.handoff.errors import Refusal  # noqa: E402
from kvpack_ref.handoff.receiver import Receiver, RecordingSink  # noqa: E402
from kvpack_ref.kvhf import begin as kv_begin  # noqa: E402
from kvpack_ref.kvhf import bundle as kv_bundle  # noqa: E402
from kvpack_ref.kvhf import frame as kv_frame  # noqa: E402
from kvpack_ref.kvhf import verifier as kv_verifier  # noqa: E402

MAX_BYTES = 314_572_800
MAX_SLOTS = 256
_SLOT = re.compile(r"[a-z0-9_.]{1,32}")
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")


class Fault(Exception):
    """The request itself is malformed."""


class Unsupported(Exception):
    """There is no such request."""


# ----------------------------------------------------------------------------------------------- words

def number(word):
    if not _NUMBER.fullmatch(word) or int(word) > canonical.U64_MAX:
        raise Fault(f"not a number: {word[:40]}")
    return int(word)


def flag(word):
    if word not in ("0", "1"):
        raise Fault(f"not a flag: {word[:40]}")
    return word == "1"


def plain_hex(word):
    if word == "-":
        return b""
    if not _HEX.fullmatch(word):
        raise Fault("not lower-case hex of even length")
    return bytes.fromhex(word)


def optional(kind, word):
    return None if word == "none" else kind(word)


def tokens_of(data):
    if len(data) % 4:
        raise Fault("tokens are 4 bytes each")
    return [t for (t,) in struct.iter_unpack("<I", data)]


def text_of(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault("text is not UTF-8") from None


def out(value):
    """One result word."""
    if value is None:
        return "none"
    if isinstance(value, int):
        return str(value)
    data = value.encode("utf-8") if isinstance(value, str) else value
    return data.hex() or "-"


def split_frames(data):
    """The frames of a recorded stream by their own lengths; a rest too short for its frame counts as one."""
    form = (">I", ">Q") if data[:4] == kv_frame.MAGIC else ("<I", "<Q")
    frames, at = [], 0
    while at < len(data):
        end = len(data)
        if end - at >= 20:
            length = 20 + struct.unpack_from(form[0], data, at + 8)[0] + struct.unpack_from(form[1], data,
                at + 12)[0]
            end = min(end, at + length)
        frames.append(data[at:end])
        at = end
    return frames


def apply_edit(data, edit):
    """One edit of a bytes word."""
    name, _, rest = edit.partition(":")
    args = rest.split(":") if rest else []
    shape = {"cut": 1, "xor": 2, "set": 2, "add": 1, "fill": 2, "drop": 1, "double": 1, "swap": 1}
    if shape.get(name) != len(args):
        raise Fault(f"not an edit: {edit[:40]}")
    if name == "add":
        return data + plain_hex(args[0])
    at = number(args[0])
    if name == "cut":
        if at > len(data):
            raise Fault("cut past the end")
        return data[:at]
    if name in ("xor", "set"):
        patch = plain_hex(args[1])
        if at + len(patch) > len(data):
            raise Fault("edit past the end")
        if name == "xor":
            patch = bytes(a ^ b for a, b in zip(patch, data[at:]))
        return data[:at] + patch + data[at + len(patch):]
    if name == "fill":
        byte = plain_hex(args[1])
        if len(byte) != 1 or len(data) + at > MAX_BYTES:
            raise Fault("fill takes one byte and a length within the limit")
        return data + byte * at
    frames = split_frames(data)
    if at + (name == "swap") >= len(frames):
        raise Fault("no such frame")
    if name == "drop":
        del frames[at]
    elif name == "double":
        frames.insert(at, frames[at])
    else:
        frames[at], frames[at + 1] = frames[at + 1], frames[at]
    return b"".join(frames)


def refusal_word(refusal):
    """`category:message` with every byte outside printable ASCII, and the backslash, as \\xHH."""
    message = "".join(chr(b) if 0x20 <= b <= 0x7E and b != 0x5C else f"\\x{b:02x}"
                      for b in refusal.message.encode("utf-8", "surrogatepass"))
    return f"{refusal.category}:{message}"


def sink_words(sink):
    return [",".join(sink.calls) or "-", out(sink.live)]


class Endpoint:
    """One conversation. `answer` maps a request line to its answer line, both without the LF."""

    def __init__(self):
        self._slots = {}
        self._policy = None
        self._kvhf_context = None
        self._ledger = ledger.Ledger()

    def answer(self, line):
        words = line.split("\t")
        try:
            return "\t".join(self._dispatch(words))
        except Refusal as r:
            return refusal_word(r)
        except Unsupported:
            return "unsupported"
        except Fault as f:
            return f"fault:{f}"

    def _dispatch(self, words):
        """The words of the answer."""
        args = words[1:]
        name = words[0]
        if name in ("encode", "decode", "verdict"):
            if not args:
                raise Fault("a kind is missing")
            name, args = f"{name}_{args[0]}", args[1:]
        method = getattr(self, "do_" + name, None) if re.fullmatch("[a-z0-9_]+", name) else None
        if method is None:
            raise Unsupported
        if not _takes(method, len(args)):
            raise Fault("wrong number of words")
        return method(*args) if getattr(method, "whole", False) else ["ok", *method(*args)]

    def bytes(self, word):
        base, *edits = word.split("/")
        if base.startswith("@"):
            if base[1:] not in self._slots:
                raise Fault("no such slot")
            data = self._slots[base[1:]]
        else:
            data = plain_hex(base)
        for edit in edits:
            data = apply_edit(data, edit)
            if len(data) > MAX_BYTES:
                raise Fault("bytes word grows past its limit")
        return data

    def text(self, word):
        return text_of(self.bytes(word))

    def key(self, word):
        key = self.bytes(word)
        if len(key) != mac.KEY_BYTES:
            raise Fault("a KEY is 32 bytes")
        return key

    def begin(self, word):
        return manifest.parse_begin(self.bytes(word))

    def kv_begin(self, word):
        return kv_frame.decode("begin", self.bytes(word))

    @staticmethod
    def limits(word):
        values = [number(w) for w in word.split(",")]
        if len(values) != 8:
            raise Fault("LIMITS is eight numbers")
        return kvhf.Limits(*values)

    # ----------------------------------------------------------------------------------------- context

    def do_hello(self):
        return ["kvpack-endpoint/1", "python"]

    def do_slot(self, name, word):
        if not _SLOT.fullmatch(name) or (name not in self._slots and len(self._slots) >= MAX_SLOTS):
            raise Fault("not a slot name, or too many slots")
        self._slots[name] = self.bytes(word)
        return [out(len(self._slots[name]))]

    def do_drop(self, name):
        self._slots.pop(name, None)
        return []

    # -------------------------------------------------------------------------------------- json, mac

    def do_encode_canonical_json(self, word):
        try:
            return [out(canonical.canonical(canonical.plain(canonical.parse(self.bytes(word)))))]
        except Refusal as r:
            raise Refusal("canonical", r.message) from None

    def do_verdict_canonical_json(self, top, word):
        canonical.decode_strict(self.bytes(word), number(top), canonical.plain)
        return []

    def do_encode_token_ids(self, word):
        return [out(canonical.token_ids_sha256(tokens_of(self.bytes(word))))]

    def do_encode_mac(self, key, data):
        return [out(mac.tag_hex(self.key(key), self.bytes(data)))]

    def do_verdict_mac(self, key, data, tag):
        mac.verify_hex(self.key(key), self.bytes(data), self.text(tag))
        return []

    def do_encode_domain_mac(self, key, domain, data):
        return [out(mac.tag_domain_hex(self.key(key), self.bytes(domain), self.bytes(data)))]

    def do_verdict_domain_mac(self, key, domain, data, tag):
        mac.verify_domain_hex(self.key(key), self.bytes(domain), self.bytes(data), self.text(tag))
        return []

    def do_decode_mac_key_file(self, content):
        return [out(mac.key_from_file_content(self.bytes(content)))]

    # ------------------------------------------------------------------------------ begin, seal, frame

    def do_encode_handoff_begin(self, word):
        return [out(manifest.canonical_begin(self.begin(word)))]

    def do_encode_handoff_descriptor(self, word):
        return [out(canonical.canonical(manifest.parse_descriptor(self.bytes(word))))]

    def do_verdict_handoff_begin(self, word, now_ms, key_id, min_epoch):
        manifest.validate_begin(self.begin(word), number(now_ms), self.text(key_id), number(min_epoch))
        return []

    def do_encode_handoff_seal(self, word):
        return [out(canonical.canonical(manifest.parse_seal(self.bytes(word))))]

    def _material(self, key, begin, descriptors, payloads):
        rows = canonical.list_of(manifest.SegmentDescriptor)(canonical.parse(self.bytes(descriptors)))
        return self.begin(begin), rows, [self.bytes(p) for p in payloads], self.key(key)

    def do_encode_handoff_sign(self, key, begin, descriptors, *payloads):
        return [out(canonical.canonical(manifest.sign(*self._material(key, begin, descriptors, payloads))))]

    def do_decode_handoff_frame(self, strict, word):
        f = frame.FrameReader(self.bytes(word), flag(strict)).next()
        kind = f["kind"]
        if kind == "begin":
            return [kind, out(f["prefix_cut"]), out(manifest.canonical_begin(f["manifest"]))]
        if kind == "segment":
            descriptor = f["descriptor"]
            return [kind, out(f["sequence"]), out(descriptor and canonical.canonical(descriptor)),
                    out(f["payload"])]
        if kind == "seal":
            return [kind, out(canonical.canonical(f["manifest"]))]
        if kind == "ack":
            return [kind, out(f["transfer_id"]), out(f["generation"])]
        return [kind, out(f["reason"])]

    def do_encode_handoff_frame(self, kind, *args):
        shape = {"begin": 2, "segment": 3, "seal": 1, "abort": 1, "ack": 2}
        if shape.get(kind) != len(args):
            raise Fault("not a frame kind, or the wrong number of words")
        if kind == "begin":
            return [out(frame.write_begin(self.begin(args[1]), number(args[0])))]
        if kind == "segment":
            descriptor = optional(lambda w: manifest.parse_descriptor(self.bytes(w)), args[1])
            return [out(frame.write_segment(number(args[0]), descriptor, self.bytes(args[2])))]
        if kind == "seal":
            return [out(frame.write_seal(manifest.parse_seal(self.bytes(args[0]))))]
        if kind == "abort":
            return [out(frame.write_abort(self.text(args[0])))]
        return [out(frame.write_ack(self.text(args[0]), number(args[1])))]

    # ------------------------------------------------------------------- receiver, admission, streams

    def do_verdict_handoff_receiver(self, key, begin, fails_at, *ops):
        sink = RecordingSink(None if fails_at == "none" else fails_at)
        key, begin = self.key(key), self.begin(begin)
        verdict = "ok"
        try:
            receiver = Receiver(begin, key, sink)
            try:
                self._receiver_ops(receiver, list(ops))
            finally:
                receiver.abort()
        except Refusal as r:
            verdict = refusal_word(r)
        return [verdict, *sink_words(sink)]

    do_verdict_handoff_receiver.whole = True

    def _receiver_ops(self, receiver, ops):
        arity = {"seg": 2, "def": 2, "seal": 1, "commit": 0, "drop": 0}
        while ops:
            name = ops.pop(0)
            if len(ops) < arity.get(name, len(ops) + 1):
                raise Fault("not a receiver op, or a word is missing")
            args, ops[:arity[name]] = ops[:arity[name]], []
            if name == "seg":
                receiver.segment(number(args[0]), self.bytes(args[1]))
            elif name == "def":
                receiver.deferred_segment(manifest.parse_descriptor(self.bytes(args[0])), self.bytes(args[1]))
            elif name == "seal":
                receiver.prepare_commit(manifest.parse_seal(self.bytes(args[0])))
            elif name == "commit":
                receiver.commit()
            else:
                receiver.abort()

    def do_verdict_handoff_admission(self, begin, cut, armed, target, dflash, request_id, max_context, held,
                                     strict):
        expected = self.begin(armed)
        request = admission.ArmedRequest(
            identity=expected["identity"], prompt=expected["prompt_token_ids"],
            multimodal=expected["multimodal"],
            target=self.text(target), dflash=optional(self.text, dflash),
            request_id=optional(self.text, request_id),
            max_context=number(max_context), held=tokens_of(self.bytes(held)), strict=flag(strict))
        admission.admit(self.begin(begin), number(cut), request)
        return []

    def do_verdict_handoff_times(self, *words):
        if len(words) != 6:
            raise Fault("six numbers")
        manifest.check_times(*map(number, words))
        return []

    def do_handoff_context(self, key, key_id, min_epoch, now_ms, strict, recorded, max_segments,
                           max_total_bytes):
        segments = optional(number, max_segments)
        self._policy = stream.Policy(
            self.key(key), self.text(key_id), number(min_epoch), number(now_ms), flag(strict), flag(recorded),
            manifest.MAX_SEGMENTS if segments is None else segments, optional(number, max_total_bytes))
        return []

    def do_verdict_handoff_stream(self, word):
        if self._policy is None:
            raise Fault("no handoff_context")
        sink, data = RecordingSink(), self.bytes(word)
        try:
            done = stream.receive(data, self._policy, sink)
            words = ["ok", out(done.begin["transfer_id"]), out(done.begin["generation"]),
                     out(done.prefix_cut)]
        except Refusal as r:
            words = [refusal_word(r)]
        return words + sink_words(sink)

    do_verdict_handoff_stream.whole = True

    def do_encode_handoff_stream(self, key, begin, cut, descriptors, *payloads):
        return [out(stream.produce(*self._material(key, begin, descriptors, payloads), number(cut)))]

    def do_encode_span_schedule(self, position, cut, dflash):
        geometry = optional(lambda w: tokens_of(self.bytes(w)), dflash)
        if geometry is not None and len(geometry) != 4:
            raise Fault("DFLASH is four u32")
        rows = span_schedule(number(position), number(cut), geometry)
        return [out(rows and canonical.canonical(rows))]

    # ------------------------------------------------------------------------------------------ ledger

    def do_decode_ledger_file(self, word):
        return [out(ledger.render(ledger.load(self.bytes(word))))]

    def do_ledger(self, name, *args):
        verdict = "ok"
        try:
            if name in ("admit", "reserve") and len(args) == 3:
                getattr(self._ledger, name)(self.text(args[0]), number(args[1]), number(args[2]))
            elif name == "new" and not args:
                self._ledger = ledger.Ledger()
            elif name == "fail_persist" and not args:
                self._ledger.persist_fails = True
            elif name == "reload" and not args:
                self._ledger = ledger.Ledger(self._ledger.file)
            else:
                raise Fault("not a ledger call, or the wrong number of words")
        except Refusal as r:
            verdict = refusal_word(r)
        return [verdict, out(self._ledger.file)]

    do_ledger.whole = True

    # -------------------------------------------------------------------------------------------- KVHF

    def do_decode_kvhf_frame(self, max_json, max_payload, word):
        reader = kv_frame.FrameReader(self.bytes(word), number(max_json), number(max_payload))
        kind, value = reader.header()
        return [kind, out(kv_frame.encode(value)), out(reader.payload())]

    def do_encode_kvhf_frame(self, kind, word, payload):
        if kind not in kv_frame.NUMBERS:
            raise Fault("not a frame kind")
        return [out(kv_frame.write_frame(kind, kv_frame.decode(kind, self.bytes(word)), self.bytes(payload)))]

    def do_verdict_kvhf_begin(self, limits, word):
        value = self.kv_begin(word)
        kv_begin.validate(value, self.limits(limits))
        planes = ",".join(f"{p.layer}{p.role[0]}" for p in kv_begin.walk(value))
        return [*map(out, kv_begin.totals(value)), planes]

    def do_verdict_kvhf_armed(self, word, armed):
        kv_begin.check_armed(self.kv_begin(word), self.kv_begin(armed))
        return []

    def do_verdict_kvhf_header(self, limits, word, index, header):
        value = self.kv_begin(word)
        kv_begin.validate(value, self.limits(limits))
        kv_begin.check_header(value, kv_begin.walk(value), number(index),
                              kv_frame.decode("layer", self.bytes(header)))
        return []

    def do_encode_kvhf_stream(self, key, tags, completed_ms, begin, tokens, canary, *planes):
        canary = optional(lambda w: canonical.decode_strict(self.bytes(w), kv_frame.MAX_JSON_BYTES,
                                                            kv_frame.Canary),
                          canary)
        return [out(kvhf.produce(self.kv_begin(begin), [self.bytes(p) for p in planes],
                                 tokens_of(self.bytes(tokens)),
                                 number(completed_ms), canary, optional(self.key, key), flag(tags)))]

    def do_kvhf_context(self, limits, key):
        self._kvhf_context = (self.limits(limits), optional(self.key, key))
        return []

    def do_verdict_kvhf_stream(self, word):
        if self._kvhf_context is None:
            raise Fault("no kvhf_context")
        seal = kv_verifier.receive(self.bytes(word), *self._kvhf_context).seal
        return [out(seal[k]) for k in ("artifact_sha256", "descriptor_chain_sha256", "payload_sha256")]

    def do_verdict_kvhf_session(self, limits, begin, *ops):
        verdict, ready = "ok", []
        try:
            session = kvhf.Coordinator(self.kv_begin(begin), self.limits(limits))
            ready = session.ready
            self._session_ops(session, list(ops))
        except Refusal as r:
            verdict = refusal_word(r)
        return [verdict, ",".join(map(str, ready)) or "-"]

    do_verdict_kvhf_session.whole = True

    def _session_ops(self, session, ops):
        arity = {"plane": 3, "seal": 1, "publish": 0, "abort": 0}
        while ops:
            name = ops.pop(0)
            if len(ops) < arity.get(name, len(ops) + 1):
                raise Fault("not a session op, or a word is missing")
            args, ops[:arity[name]] = ops[:arity[name]], []
            if name == "plane":
                session.ingest(kv_frame.decode("layer", self.bytes(args[1])), self.bytes(args[2]),
                               flag(args[0]))
            elif name == "seal":
                session.prepare_seal(kv_frame.decode("seal", self.bytes(args[0])))
            elif name == "publish":
                session.publish()
            else:
                session.abort()

    def do_verdict_kvhf_spray(self, frame_count, sequences):
        released = kvhf.reassemble(number(frame_count), tokens_of(self.bytes(sequences)))
        return [out(struct.pack(f"<{len(released)}I", *released))]

    def do_encode_kvhf_bundle(self, limits, directory, word):
        return [out(kv_bundle.write(self.text(directory), self.bytes(word), self.limits(limits)))]

    def do_verdict_kvhf_bundle(self, limits, directory):
        witness = kvhf.open_bundle(self.text(directory), self.limits(limits))
        return [out(witness.seal["artifact_sha256"])]


def _takes(method, count):
    """Whether a request's method takes `count` words."""
    code = method.__func__.__code__
    wanted = code.co_argcount - 1
    return count >= wanted if code.co_flags & inspect.CO_VARARGS else count == wanted


def main():
    if len(sys.argv) > 1:
        print(__doc__.strip())
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    endpoint = Endpoint()
    for raw in sys.stdin.buffer:
        line = raw.rstrip(b"\n").decode("ascii", "replace")
        sys.stdout.write(endpoint.answer(line) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
