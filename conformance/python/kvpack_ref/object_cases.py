"""Chunk and pack cases: one or more per step of their decoders, most of them forged past the steps before."""

import dataclasses

from . import crypto, fixtures, objects, pack
from .case import Case
from .fixtures import EPOCH, KEYS, STATE_KEY, TENANT, ident, ramp
from .keys import derive_schedule
from .scalars import PAGE, StateKey, encode_key, le
from .sidecar import decode_sidecar, encode_sidecar, half_bits, top_norms
from .words import difference, flip, word

KEY = encode_key(STATE_KEY).hex()
SPAN = objects.encode_span(objects.Span(0, 4, 0, 16)).hex()
SIDECAR_SPAN = objects.encode_span(objects.Span(0, 4, 0, 32)).hex()


def pins():
    """The precedence pins: which of several checks speaks first."""
    chunk_ref = fixtures.fixture("raw", "plain", "plain").ref
    stage = fixtures.sidecar_chunk()
    size = len(fixtures.fixture("raw", "plain", "plain").chunk)
    rows = [
        ("pack-magic", "verdict pack 7 @pack" + flip(0), "bad_magic:invalid production pack magic"),
        ("pack-reserved", "verdict pack 7 @pack/set:200:01",
         "reserved:pack header reserved bytes are nonzero"),
        ("pack-body", "verdict pack 7 @pack" + flip(PAGE + 10),
         "authentication:manifest HMAC authentication failed"),
        ("pack-digest-and-footer", "verdict pack 7 @pack%s/set:%d:01" % (flip(148), PAGE + 796 + 112),
         "reserved:invalid production commit footer"),
        ("chunk-payload", _chunk_request("@chunk" + flip(PAGE), chunk_ref),
         "authentication:chunk object digest mismatch"),
        ("chunk-last-byte", _repaired("@chunk/set:%d:01" % (size - 1), chunk_ref),
         "reserved:chunk padding is nonzero"),
        ("manifest-development-magic", "verdict manifest @manifest/set:0:494f4b56504b3100",
         "bad_magic:invalid canonical object magic"),
        ("manifest-version", "verdict manifest @manifest/set:8:0200",
         "bad_magic:unsupported manifest version"),
        ("manifest-trailing", "verdict manifest @manifest/add:00", "reserved:trailing canonical bytes"),
        ("family-state-count", "verdict family @family/set:116:ffffffff",
         "bounds:family state count is outside bounds"),
        ("schema-state-count", "verdict schema @schema/set:16:ffffffff",
         "bounds:realized state count is outside bounds"),
        ("realized-position", _manifest_request(absolute_position=3),
         "semantics:realized state range does not match the exact manifest cut"),
        ("realized-span", _manifest_request(physical_span_bytes=15),
         "semantics:realized physical span is not canonical"),
        ("auxiliary-zero", "encode auxiliary_root " + (bytes(32) + ident(21)).hex(),
         "semantics:auxiliary identity contains a zero component"),
        ("sidecar-minimum", _sidecar_request("@sidecar_chunk" + flip(238 + 16), stage.ref),
         "authentication:chunk object digest mismatch"),
        ("sidecar-other", _other_sidecar(stage), "authentication:chunk identity or object key mismatch"),
        ("sidecar-last-byte", _sidecar_reserved(stage),
         "reserved:stats sidecar sink reserved field is nonzero"),
        ("sidecar-length", _sidecar_request("@sidecar_chunk/set:236:" + le(2, 4000).hex(), stage.ref),
         "bounds:chunk stats sidecar length is outside bounds"),
    ]
    return [Case(name, "fixture", request, answer) for name, request, answer in rows]


def _chunk_request(data_word, ref, family="@family", key=KEY, span=SPAN):
    return "verdict chunk %s %s %s %s %s" % (family, key, span, objects.encode_ref(ref).hex(), data_word)


def _sidecar_request(data_word, ref):
    return _chunk_request(data_word, ref, "@sidecar_family", KEY, SIDECAR_SPAN)


def _repaired(data_word, ref):
    """The reference's digest made good for `@chunk/set:OFFSET:01`."""
    offset = int(data_word.split(":")[1])
    data = bytearray(fixtures.fixture("raw", "plain", "plain").chunk)
    data[offset] = 1
    return _chunk_request(data_word, dataclasses.replace(ref, stored_digest=crypto.sha256(data)))


def _manifest_request(**fields):
    manifest = fixtures.fixture("raw", "plain", "plain").manifest
    base = objects.encode_manifest(manifest)
    for name, value in fields.items():
        setattr(manifest.schema.states[0], name, value)
    edited = difference("@manifest", base, objects.encode_manifest(manifest))
    return "verdict valid_manifest %s 65536 65536 4398046511104" % edited


def _reseal(data):
    """The chunk with its header digest recomputed."""
    head = data[:204] + bytes(32) + data[236:PAGE]
    return head[:204] + crypto.sha256(head) + data[236:]


def _other_sidecar(stage):
    """A valid sidecar of another plane in place of the chunk's own, every unkeyed digest made good."""
    own = decode_sidecar(stage.sidecar)
    norms = [half_bits(9.0)] + own.norms[1:]
    other = encode_sidecar(own._replace(norms=norms, sinks=top_norms(norms, 2)))
    data = _reseal(stage.chunk[:238] + other + stage.chunk[238 + len(other):])
    return _sidecar_request(difference("@sidecar_chunk", stage.chunk, data),
                            dataclasses.replace(stage.ref, stored_digest=crypto.sha256(data)))


def _sidecar_reserved(stage):
    last = 238 + len(stage.sidecar) - 1
    data = _reseal(stage.chunk[:last] + b"\1" + stage.chunk[last + 1:])
    return _sidecar_request(difference("@sidecar_chunk", stage.chunk, data),
                            dataclasses.replace(stage.ref, stored_digest=crypto.sha256(data)))


# ------------------------------------------------------------------------------------------ chunk decoder

def cases():
    return _chunk_framing() + _chunk_bindings() + _chunk_sealed() + _pack_framing() + _pack_sealed()


def _edited(data, edits):
    data = bytearray(data)
    for offset, value in edits:
        data[offset:offset + len(value)] = value
    return bytes(data)


def _chunk_framing():
    """Steps 1 to 15, which come before every digest, so that plain edits reach them."""
    ref = fixtures.fixture("raw", "plain", "plain").ref
    length, sizes = "bounds:invalid chunk object length", "bounds:invalid chunk size fields"
    contract = "bad_magic:invalid chunk header contract"
    rows = [
        ("1-empty", "-", length), ("1-short", "@chunk/cut:4095", length),
        ("1-unaligned", "@chunk/add:00", length), ("1-long", "@chunk/fill:4231168:00", length),
        ("2-magic", "@chunk" + flip(0), "bad_magic:invalid production chunk magic"),
        ("3-version", "@chunk" + flip(8), contract), ("3-header-bytes", "@chunk" + flip(10), contract),
        ("3-alignment", "@chunk" + flip(12), contract),
        ("4-flags", "@chunk" + flip(16, 2), "reserved:unknown chunk flags"),
        ("4-flags-high", "@chunk" + flip(19, 128), "reserved:unknown chunk flags"),
        ("5-codec-0", "@chunk/set:20:0000", "unknown_enum:unknown codec 0"),
        ("5-codec-3", "@chunk/set:20:0300", "unknown_enum:unknown codec 3"),
        ("6-codec-version", "@chunk" + flip(22), "codec:unsupported chunk codec version"),
        ("7-plaintext-0", "@chunk/set:24:00000000", sizes),
        ("7-plaintext-over", "@chunk/set:24:01004000", sizes),
        ("7-frame-short", "@chunk/set:28:0f000000", sizes),
        ("7-frame-over", "@chunk/set:28:" + le(4, (4 << 20) + 32785).hex(), sizes),
        ("7-object-bytes", "@chunk/set:36:00300000", sizes),
        ("8-payload", "@chunk" + flip(32), "bounds:chunk payload length does not match encryption mode"),
        ("8-tag-counted", "@chunk/set:16:01000000",
         "bounds:chunk payload length does not match encryption mode"),
        ("9-payload-past-end", "@chunk/set:28:0110000001100000", "truncated:truncated chunk payload"),
        ("9-cut-page", "@chunk/cut:4096/set:36:00100000", "truncated:truncated chunk payload"),
        ("10-padding-first", "@chunk/set:4128:01", "reserved:chunk padding is nonzero"),
        ("10-padding-last", "@chunk/set:8191:80", "reserved:chunk padding is nonzero"),
        ("11-sidecar-long", "@chunk/set:236:130f", "bounds:chunk stats sidecar length is outside bounds"),
        ("12-sidecar-short", "@chunk/set:236:0700", "truncated:truncated canonical object"),
        ("12-sidecar-magic", "@chunk/set:236:0800", "bad_magic:invalid canonical object magic"),
        ("14-reserved-first", "@chunk/set:238:01", "reserved:chunk header reserved bytes are nonzero"),
        ("14-reserved-last", "@chunk/set:4095:01", "reserved:chunk header reserved bytes are nonzero"),
        ("15-salt", "@chunk/set:176:01", "reserved:unencrypted chunk salt or nonce is nonzero"),
        ("15-nonce", "@chunk/set:203:01", "reserved:unencrypted chunk salt or nonce is nonzero"),
        ("17-payload", "@chunk" + flip(4100), "authentication:chunk object digest mismatch"),
        ("17-digest-field", "@chunk" + flip(204), "authentication:chunk object digest mismatch"),
    ]
    out = [Case("chunk-" + name, "fixture", _chunk_request(data_word, ref), answer)
           for name, data_word, answer in rows]
    stats = fixtures.sidecar_chunk()
    for name, data_word, answer in (
            ("13-after-sidecar", "@sidecar_chunk/set:300:01",
             "reserved:chunk header sidecar padding is nonzero"),
            ("13-last", "@sidecar_chunk/set:4095:01", "reserved:chunk header sidecar padding is nonzero"),
            ("12-cut-by-length", "@sidecar_chunk/set:236:3d00", "truncated:truncated canonical object"),
            ("12-trailing", "@sidecar_chunk/set:236:3f00", "reserved:trailing canonical bytes"),
            ("14-length-dropped", "@sidecar_chunk/set:236:0000",
             "reserved:chunk header reserved bytes are nonzero")):
        out.append(Case("chunk-" + name, "fixture", _sidecar_request(data_word, stats.ref), answer))
    return out


def _chunk_bindings():
    """Steps 16 to 22: the object is sound, what it is checked against is not, or the other way round."""
    stage = fixtures.fixture("raw", "plain", "plain")
    rows = []

    def add(name, answer, data_word="@chunk", family="@family", key=KEY, span=SPAN, ring="fixture", **fields):
        ref = dataclasses.replace(stage.ref, **fields)
        rows.append(Case("chunk-" + name, ring, _chunk_request(data_word, ref, family, key, span), answer))

    def edited(name, answer, *edits, sealed=True, **fields):
        data = _edited(stage.chunk, edits)
        data = _reseal(data) if sealed else data
        add(name, answer, difference("@chunk", stage.chunk, data), stored_digest=crypto.sha256(data),
            **fields)

    size = "bounds:chunk reference size mismatch"
    add("16-object-bytes", size, object_bytes=3 * PAGE)
    add("16-plaintext-bytes", size, plaintext_bytes=17)
    add("16-span", size, span=objects.encode_span(objects.Span(0, 4, 0, 17)).hex())
    add("17-reference", "authentication:chunk object digest mismatch", stored_digest=ident(5))
    edited("18-tenant", "authentication:chunk header digest mismatch", (60, b"\0"), sealed=False)
    edited("18-digest", "authentication:chunk header digest mismatch", (204, b"\0"), sealed=False)
    absent = "semantics:chunk state is absent from representation family"
    add("19-layer", absent, key=encode_key(StateKey(1, STATE_KEY.name)).hex())
    add("19-name", absent, key=encode_key(StateKey(0, b"attention.v")).hex())
    add("20-family-codec", "semantics:chunk codec does not match representation family", family="@family_l")
    add("20-family-version", "semantics:chunk codec does not match representation family",
        family="@family/set:143:0200")
    binding = "authentication:chunk namespace, family, or epoch mismatch"
    add("21-tenant", binding, ring="other-tenant")
    add("21-family", binding, family="@family/set:48:80000000")
    add("21-epoch", binding, ring="epochs-7-8", key_epoch=8)
    add("21-no-epoch", "not_found:key epoch is outside the readable window", key_epoch=8)
    identity = "authentication:chunk identity or object key mismatch"
    add("22-content", identity, content_id=ident(5))
    add("22-object-key", identity, object_key=ident(5))
    edited("22-content-both", identity, (112, ident(5)), content_id=ident(5))
    edited("22-object-key-both", identity, (144, ident(5)), object_key=ident(5))
    add("22-other-root", identity, ring="other-root")
    for name, field, value in (("start", "token_start", 1), ("count", "token_count", 3),
                               ("offset", "plaintext_offset", 4)):
        span = dataclasses.replace(stage.placement.span, **{field: value})
        add("26-span-" + name, "authentication:chunk plaintext identity mismatch",
            span=objects.encode_span(span).hex())
    wide = _edited(stage.chunk + bytes(PAGE), [(36, le(4, 3 * PAGE))])
    wide = _reseal(wide)
    add("extra-zero-page", "ok", difference("@chunk", stage.chunk, wide[:2 * PAGE]) + "/fill:4096:00",
        stored_digest=crypto.sha256(wide), object_bytes=3 * PAGE)
    return rows


def _chunk_sealed():
    """Steps 23 to 26: ciphertext, frame and plaintext, with every digest before them made good."""
    rows = []

    def add(name, answer, codec, mode, slot, family, *edits):
        stage = fixtures.fixture(codec, mode, "plain")
        data = _reseal(_edited(stage.chunk, edits))
        ref = dataclasses.replace(stage.ref, stored_digest=crypto.sha256(data))
        request = _chunk_request(difference(slot, stage.chunk, data), ref, family)
        rows.append(Case("chunk-" + name, "fixture", request, answer))

    raw, lossless = ("raw", "plain", "@chunk", "@family"), ("lossless", "plain", "@chunk_lp", "@family_l")
    sealed = ("lossless", "encrypted", "@chunk_e", "@family_l")
    failed = "authentication:chunk AEAD authentication failed"
    add("23-ciphertext", failed, *sealed, (PAGE, b"\0"))
    add("23-tag", failed, *sealed, (PAGE + 33, bytes(16)))
    add("25-magic", "bad_magic:codec frame magic does not match codec", *raw, (PAGE + 3, b"R"))
    add("25-version", "bad_magic:unsupported codec frame version", *raw, (PAGE + 8, b"\2"))
    add("25-reserved", "reserved:codec frame reserved field is nonzero", *raw, (PAGE + 10, b"\1"))
    add("25-length", "bounds:codec frame decoded length mismatch", *raw, (PAGE + 12, b"\x11"))
    add("25-packet-long", "truncated:truncated lossless literal packet", *lossless, (PAGE + 16, b"\x10"))
    add("25-packet-short", "bounds:lossless frame expands past bound", *lossless, (PAGE + 16, b"\x0e"),
        (PAGE + 32, b"\x81"), (28, le(4, 34)), (32, le(4, 34)), (PAGE + 33, b"\0"))
    add("26-plaintext", "authentication:chunk plaintext identity mismatch", *raw, (PAGE + 16, b"\1"))
    add("26-lossless-plaintext", "authentication:chunk plaintext identity mismatch", *lossless,
        (PAGE + 17, b"\7"))
    return rows


# ------------------------------------------------------------------------------------------- pack decoder

def _pack_framing():
    footer = PAGE + 796
    contract = "bad_magic:invalid production pack header contract"
    reserved = "reserved:pack header reserved bytes are nonzero"
    bad_footer, binding = "reserved:invalid production commit footer", "bounds:pack footer binding mismatch"
    bound = "bounds:manifest exceeds production bound"
    salted = "reserved:unencrypted manifest salt or nonce is nonzero"
    rows = [
        ("1-empty", "-", "truncated:truncated production pack"),
        ("1-short", "@pack/cut:8191", "truncated:truncated production pack"),
        ("2-magic", "@pack" + flip(7), "bad_magic:invalid production pack magic"),
        ("3-version", "@pack" + flip(9), contract), ("3-header-bytes", "@pack" + flip(11), contract),
        ("3-alignment", "@pack" + flip(15), contract),
        ("4-flags", "@pack" + flip(16, 2), "reserved:unknown pack flags"),
        ("5-first", "@pack" + flip(20), reserved), ("5-second", "@pack" + flip(55), reserved),
        ("5-tail", "@pack" + flip(4095), reserved), ("6-salt", "@pack" + flip(120), salted),
        ("6-nonce", "@pack" + flip(147), salted),
        ("7-stored", "@pack/set:24:" + le(8, (256 << 20) + 17).hex(), bound),
        ("7-stored-huge", "@pack/set:24:ffffffffffffffff", bound),
        ("7-plaintext", "@pack/set:32:" + le(8, (256 << 20) + 1).hex(), bound),
        ("8-magic", "@pack" + flip(footer), "bad_magic:invalid production commit footer magic"),
        ("8-cut", "@pack/cut:8987", "bad_magic:invalid production commit footer magic"),
        ("8-smallest", "@pack/cut:8192", "bad_magic:invalid production commit footer magic"),
        ("9-version", "@pack" + flip(footer + 8), bad_footer),
        ("9-size", "@pack" + flip(footer + 10), bad_footer),
        ("9-first", "@pack" + flip(footer + 12), bad_footer),
        ("9-second", "@pack" + flip(footer + 39), bad_footer),
        ("9-tail", "@pack" + flip(footer + 4095), bad_footer),
        ("10-header-stored", "@pack" + flip(24), binding),
        ("10-footer-stored", "@pack" + flip(footer + 16), binding),
        ("10-epoch", "@pack" + flip(footer + 24), binding),
        ("10-file-bytes", "@pack" + flip(footer + 40), binding),
        ("10-manifest-id", "@pack" + flip(footer + 48), binding),
        ("11-tenant", "@pack" + flip(56), "checksum:pack header digest mismatch"),
        ("11-digest", "@pack" + flip(148), "checksum:pack header digest mismatch"),
        ("11-plaintext-bytes", "@pack" + flip(32), "checksum:pack header digest mismatch"),
        ("12-body", "@pack" + flip(PAGE), "authentication:manifest HMAC authentication failed"),
        ("12-hmac", "@pack" + flip(footer + 80), "authentication:manifest HMAC authentication failed"),
    ]
    out = []
    for name, data_word, answer in rows:
        for kind in ("pack", "pack_verify"):
            out.append(Case("%s-%s" % (kind, name), "fixture", "verdict %s 7 %s" % (kind, data_word), answer))
    out += [Case("pack-12-other-root", "other-root", "verdict pack 7 @pack",
                 "authentication:manifest HMAC authentication failed"),
            Case("pack-no-epoch", "fixture", "verdict pack 8 @pack",
                 "not_found:key epoch is outside the readable window")]
    for name, data_word, answer in (
            ("short", "@pack/cut:4095", "truncated:truncated production pack header"),
            ("empty", "-", "truncated:truncated production pack header"), ("alone", "@pack/cut:4096", "ok"),
            ("magic", "@pack" + flip(0), "bad_magic:invalid production pack magic"),
            ("contract", "@pack" + flip(8), contract),
            ("flags", "@pack" + flip(17), "reserved:unknown pack flags"),
            ("reserved", "@pack" + flip(180), reserved), ("salt", "@pack" + flip(121), salted),
            ("digest", "@pack" + flip(40), "checksum:pack header digest mismatch"),
            ("body-unseen", "@pack" + flip(PAGE), "ok")):
        out.append(Case("pack_header-" + name, "none", "verdict pack_header " + data_word, answer))
    return out


def _pack_sealed():
    """Steps 13 to 18, under a good HMAC."""
    rows = []
    box = (ramp(0xC0, 16), ramp(0xD0, 12))
    manifest = objects.encode_manifest(fixtures.fixture("lossless", "encrypted", "encrypted").manifest)

    def add(name, answer, data, ring="fixture", epoch=EPOCH):
        rows.append(Case("pack-" + name, ring, "verdict pack %d %s" % (epoch, word(data)), answer))
        rows.append(Case("pack_verify-" + name, ring, "verdict pack_verify %d %s" % (epoch, word(data)),
                         "ok"))

    def resealed(data, header=(), body=None):
        """The pack with header fields or its body replaced, digest and HMAC made good."""
        head = _edited(data[:PAGE], header)
        body = data[PAGE:-PAGE] if body is None else body
        head = _edited(head, [(24, le(8, len(body))), (148, bytes(32))])
        head = _edited(head, [(148, crypto.sha256(head))])
        total = len(body) + 2 * PAGE
        tag = crypto.mac(KEYS["manifest_auth"], b"kvpack/v1/manifest-auth\0", head, body, le(8, len(body)),
                         le(8, EPOCH), le(8, total))
        return head + body + _edited(data[-PAGE:], [(16, le(8, len(body))), (40, le(8, total)), (80, tag)])

    _, sealed = pack.wrap_manifest(manifest, TENANT, EPOCH, KEYS, box)
    _, plain = pack.wrap_manifest(manifest, TENANT, EPOCH, KEYS)
    body = sealed[PAGE:-PAGE]
    add("13-no-room-for-tag", "truncated:truncated encrypted manifest", resealed(sealed, body=body[:15]))
    add("13-nothing", "truncated:truncated encrypted manifest", resealed(sealed, body=b""))
    failed = "authentication:manifest AEAD authentication failed"
    add("14-ciphertext", failed, resealed(sealed, body=b"\0" + body[1:]))
    add("14-tag-only", failed, resealed(sealed, body=body[:16]))
    add("14-salt", failed, resealed(sealed, [(120, bytes(16))]))
    add("14-aad", failed, resealed(sealed, [(32, le(8, 5))]))
    mismatch = "authentication:manifest content identity mismatch"
    add("15-plaintext-bytes", mismatch, resealed(plain, [(32, le(8, 5))]))
    add("15-body", mismatch, resealed(plain, body=body[:-16]))
    add("15-empty", mismatch, resealed(plain, body=b""))
    add("16-empty", "truncated:truncated canonical object",
        pack.wrap_manifest(b"", TENANT, EPOCH, KEYS)[1])
    add("16-magic", "bad_magic:invalid canonical object magic",
        pack.wrap_manifest(bytes(64), TENANT, EPOCH, KEYS)[1])
    add("16-trailing", "reserved:trailing canonical bytes",
        pack.wrap_manifest(manifest + b"\0", TENANT, EPOCH, KEYS)[1])
    add("16-encrypted-version", "bad_magic:unsupported manifest version",
        pack.wrap_manifest(_edited(manifest, [(8, b"\2")]), TENANT, EPOCH, KEYS, box)[1])
    binding = "authentication:manifest header identity mismatch"
    add("17-tenant", binding, pack.wrap_manifest(_edited(manifest, [(12, ident(2))]), TENANT, EPOCH, KEYS)[1])
    add("17-epoch", binding, pack.wrap_manifest(_edited(manifest, [(44, le(8, 8))]), TENANT, EPOCH, KEYS)[1])
    add("17-before-rules", binding,
        pack.wrap_manifest(_edited(manifest, [(44, bytes(8))]), TENANT, EPOCH, KEYS)[1])
    add("18-token-count", "semantics:input cut identity is invalid",
        pack.wrap_manifest(_edited(manifest, [(276, bytes(8))]), TENANT, EPOCH, KEYS)[1])
    add("18-encrypted-tenant-zero", "semantics:tenant namespace is zero",
        pack.wrap_manifest(_edited(manifest, [(12, bytes(32))]), bytes(32), EPOCH, KEYS, box)[1])
    later = derive_schedule(fixtures.ROOT, fixtures.ROOT, TENANT, 8)
    newer = _edited(manifest, [(44, le(8, 8))])
    add("other-epoch", "ok", pack.wrap_manifest(newer, TENANT, 8, later, box)[1], "epochs-7-8", 8)
    return rows
