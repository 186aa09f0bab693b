"""Pack set: one file with a whole chain, its packs and all their chunks, under a Merkle root."""

import collections

from . import canonical_json, chunk, crypto, merkle, pack
from .errors import Reject, need
from .objects import ChunkRef
from .scalars import MAX_CHUNK_OBJECT, MAX_MANIFEST, PAGE, ZERO_ID, all_zero, digest_blanked, le, page_up, un

MAGIC = b"KVSET1\0\0"
FOOTER_MAGIC = b"KVSCM1\0\0"
SMALLEST = 28672
MAX_RECORDS = 1 << 20
MAX_PACKS = 8
CHUNK, PACK = 1, 2
ENTRY_BYTES = 128
MAX_PROOF_BYTES = 65536
MAX_PROOF_PATH = 20
PROOF_KIND = "kvpack.pack-set-proof.v1"
AUTHENTICATED, INTEGRITY, FRAMING = "authenticated", "integrity", "framing"

Entry = collections.namedtuple("Entry", "kind offset size key_epoch identity digest relation")
Record = collections.namedtuple("Record", "kind data key_epoch identity relation")
Opened = collections.namedtuple("Opened", "tenant key_epoch head root entries")


# ------------------------------------------------------------------------------------------------- write

def encode_set(ring, epoch, packs, chunks):
    """The set of a chain: `packs` from base to head, `chunks` in any order."""
    keys = ring.schedule(epoch)
    by_key = {claimed_key(data): data for data in chunks}
    records, used = [], set()
    for data in packs:
        manifest = pack.decode_pack(data, ring.schedule(pack.inspect_header(data).key_epoch))
        for _, ref in references(manifest):
            need(ref.object_key in by_key and ref.object_key not in used, "graph",
                 "pack set inventory is not canonical")
            used.add(ref.object_key)
            records.append(Record(CHUNK, by_key[ref.object_key], ref.key_epoch, ref.object_key,
                                  ref.content_id))
        records.append(Record(PACK, data, manifest.key_epoch, data[88:120], parent_of(manifest)))
    need(len(used) == len(chunks), "graph", "pack set inventory is not canonical")
    return assemble(ring.tenant, epoch, keys, records)


def claimed_key(chunk_object):
    """The object key a chunk object claims."""
    return chunk_object[144:176]


def references(manifest):
    """(placement, reference) of each chunk, in state order and span order."""
    for realized, (key, refs) in zip(manifest.schema.states, manifest.payload):
        for span, ref in zip(realized.spans, refs):
            yield chunk.Placement(manifest.family, key, span), ref


def parent_of(manifest):
    return manifest.schema.delta.parent if manifest.schema.delta else ZERO_ID


def assemble(tenant, epoch, keys, records):
    """The file around records in the order given."""
    need(2 <= len(records) <= MAX_RECORDS, "bounds", "pack set inventory is outside bounds")
    head = MAGIC + le(2, 1) + le(2, PAGE) + le(4, PAGE) + bytes(8) + le(8, epoch) + tenant
    head = head.ljust(PAGE, b"\0")
    head = head[:64] + crypto.sha256(head) + head[96:]
    body, entries = [head], []
    offset = PAGE
    for record in records:
        size = len(record.data)
        entries.append(encode_entry(Entry(record.kind, offset, size, record.key_epoch, record.identity,
                                          crypto.sha256(record.data), record.relation)))
        body.append(record.data.ljust(page_up(size), b"\0"))
        offset += page_up(size)
    inventory = b"".join(entries)
    total = offset + page_up(len(inventory)) + PAGE
    fields = FOOTER_MAGIC + le(2, 1) + le(2, PAGE) + le(4, 0) + le(8, len(entries)) + le(8, offset)
    fields += le(8, len(inventory)) + le(8, total) + le(8, epoch) + le(8, 0) + records[-1].identity
    fields += merkle.root(entries) + head[64:96]
    body.append(inventory.ljust(page_up(len(inventory)), b"\0"))
    return b"".join(body) + seal_footer(fields, keys)


def seal_footer(fields, keys):
    """The complete footer from its first 160 bytes."""
    footer = fields + footer_mac(fields, keys)
    return (footer + footer_seal(footer)).ljust(PAGE, b"\0")


def footer_mac(fields, keys):
    return crypto.mac(keys["manifest_auth"], b"kvpack/v1/pack-set-auth\0", fields)


def footer_seal(footer):
    return crypto.sha256(b"kvpack/v1/pack-set-seal\0", footer)


def encode_entry(e):
    return (le(2, e.kind) + bytes(6) + le(8, e.offset) + le(8, e.size) + le(8, e.key_epoch) + e.identity
            + e.digest + e.relation)


# -------------------------------------------------------------------------------------------------- open

def open_set(data, ring=None):
    """Steps 1 to 25: header, footer and inventory, without looking at a record."""
    need(len(data) >= SMALLEST, "truncated", "truncated pack set")
    need(data[:8] == MAGIC, "bad_magic", "invalid pack set magic")
    need((un(data, 8, 2), un(data, 10, 2), un(data, 12, 4)) == (1, PAGE, PAGE), "bad_magic",
         "invalid pack set header contract")
    need(un(data, 16, 4) == 0, "reserved", "unknown pack set flags")
    need(un(data, 20, 4) == 0 and all_zero(data[96:PAGE]), "reserved",
         "pack set header reserved bytes are nonzero")
    footer = data[-PAGE:]
    _check_footer_alone(footer)
    need(un(footer, 40, 8) == len(data), "bounds", "pack set length mismatch")
    count, start = _inventory_range(footer)
    digest, epoch, tenant = data[64:96], un(data, 24, 8), data[32:64]
    need(digest_blanked(crypto.sha256, data[:PAGE], 64, 96) == digest, "checksum",
         "pack set header digest mismatch")
    need((un(footer, 48, 8), footer[128:160]) == (epoch, digest), "bounds",
         "pack set footer binding mismatch")
    need(epoch != 0, "semantics", "key epoch must be nonzero")
    need(tenant != ZERO_ID, "semantics", "tenant namespace is zero")
    if ring:
        need(ring.tenant == tenant, "authentication", "pack set tenant mismatch")
        _check_footer_mac(footer, ring)
    end = start + ENTRY_BYTES * count
    need(all_zero(data[end:-PAGE]), "reserved", "pack set inventory padding is nonzero")
    raw = [data[at:at + ENTRY_BYTES] for at in range(start, end, ENTRY_BYTES)]
    need(merkle.root(raw) == footer[96:128], "checksum", "pack set merkle root mismatch")
    return Opened(tenant, epoch, footer[64:96], footer[96:128], _check_inventory(raw, start, footer[64:96]))


def check_footer(footer, ring=None):
    """The last 4096 bytes alone: what a reader of ranges checks first."""
    need(len(footer) == PAGE, "truncated", "truncated pack set")
    _check_footer_alone(footer)
    count, _ = _inventory_range(footer)
    if ring:
        _check_footer_mac(footer, ring)
    return count


def _check_footer_alone(footer):
    need(footer[:8] == FOOTER_MAGIC, "truncated", "pack set does not end with its commit footer")
    need((un(footer, 8, 2), un(footer, 10, 2)) == (1, PAGE), "bad_magic",
         "invalid pack set footer contract")
    need(all_zero(footer[12:16]) and all_zero(footer[56:64]) and all_zero(footer[224:]), "reserved",
         "pack set footer reserved bytes are nonzero")
    need(footer_seal(footer[:192]) == footer[192:224], "checksum", "pack set seal mismatch")


def _inventory_range(footer):
    count, start, size, total = (un(footer, at, 8) for at in (16, 24, 32, 40))
    need(2 <= count <= MAX_RECORDS and size == ENTRY_BYTES * count and start % PAGE == 0
         and page_up(size) + 2 * PAGE <= total and start == total - PAGE - page_up(size), "bounds",
         "pack set inventory is outside bounds")
    return count, start


def _check_footer_mac(footer, ring):
    wanted = footer_mac(footer[:160], ring.schedule(un(footer, 48, 8)))
    need(crypto.same_tag(wanted, footer[160:192]), "authentication", "pack set HMAC authentication failed")


def _check_inventory(raw, start, head):
    entries, offset, last, packs = [], PAGE, ZERO_ID, 0
    for data in raw:
        entry = _check_fields(data)
        need(entry.offset == offset, "bounds", "pack set records are not contiguous")
        _check_size(entry)
        offset += page_up(entry.size)
        if entry.kind == PACK:
            packs += 1
            need(entry.relation == last and packs <= MAX_PACKS, "graph",
                 "pack set packs are not one chain")
            last = entry.identity
        entries.append(entry)
    need(offset == start, "bounds", "pack set records are not contiguous")
    need(entries[-1].kind == PACK and last == head, "graph", "pack set does not end with its head pack")
    return entries


def _check_fields(data):
    e = Entry(un(data, 0, 2), un(data, 8, 8), un(data, 16, 8), un(data, 24, 8), data[32:64], data[64:96],
              data[96:128])
    if e.kind not in (CHUNK, PACK):
        raise Reject("unknown_enum", "unknown pack set record kind %d" % e.kind)
    need(all_zero(data[2:8]), "reserved", "pack set entry reserved field is nonzero")
    need(e.key_epoch and ZERO_ID not in (e.identity, e.digest)
         and (e.kind == PACK or e.relation != ZERO_ID), "semantics",
         "pack set entry contains a zero identity")
    return e


def _check_size(e):
    if e.kind == CHUNK:
        fitting = e.size % PAGE == 0 and 2 * PAGE <= e.size <= MAX_CHUNK_OBJECT
    else:
        fitting = 2 * PAGE <= e.size <= MAX_MANIFEST + crypto.TAG_BYTES + 2 * PAGE
    need(fitting, "bounds", "pack set record size is outside bounds")


# ------------------------------------------------------------------------------------------------ verify

def read_record(data, entry, tenant):
    """The object of an entry after R1 to R3; what is inside it is the business of its own format."""
    end = entry.offset + entry.size
    need(all_zero(data[end:entry.offset + page_up(entry.size)]), "reserved",
         "pack set record padding is nonzero")
    record = data[entry.offset:end]
    _check_record(record, entry, tenant)
    return record


def _check_record(record, entry, tenant):
    need(crypto.sha256(record) == entry.digest, "checksum", "pack set record digest mismatch")
    if entry.kind == CHUNK:
        says = (record[:8], un(record, 36, 4), un(record, 40, 8), claimed_key(record), record[112:144])
        agrees = says == (chunk.MAGIC, entry.size, entry.key_epoch, entry.identity, entry.relation)
        owner = record[48:80]
    else:
        says = (record[:8], un(record, 24, 8) + 2 * PAGE, un(record, 40, 8), record[88:120])
        agrees = says == (pack.MAGIC, entry.size, entry.key_epoch, entry.identity)
        owner = record[56:88]
    need(agrees and tenant in (None, owner), "graph", "pack set entry does not describe its record")


def verify_set(data, ring=None):
    """Full verification: the level reached."""
    opened = open_set(data, ring)
    records = [read_record(data, entry, opened.tenant) for entry in opened.entries]
    pairs = list(zip(opened.entries, records))
    packs = [(entry, record) for entry, record in pairs if entry.kind == PACK]
    chunks = [(entry, record) for entry, record in pairs if entry.kind == CHUNK]
    manifests = [_open_pack(entry, record, ring) for entry, record in packs]
    readable = None not in manifests
    named = [None] * len(chunks)
    if readable:
        _check_chain([entry for entry, _ in packs], manifests)
        _check_order(opened.entries, [entry for entry, _ in packs], manifests)
        named = [pair for manifest in manifests for pair in references(manifest)]
    for (entry, record), pair in zip(chunks, named):
        if ring:
            placement, ref = pair
            chunk.decode_chunk(record, ref, placement, opened.tenant, ring.schedule(ref.key_epoch))
        else:
            placement, ref = pair or (None, ChunkRef(entry.relation, entry.identity, entry.digest,
                                                     entry.key_epoch, 0, entry.size))
            chunk.check_without_keys(record, ref, opened.tenant, placement)
    if ring:
        return AUTHENTICATED
    return INTEGRITY if readable else FRAMING


def _open_pack(entry, record, ring):
    if ring:
        manifest = pack.decode_pack(record, ring.schedule(entry.key_epoch))
    else:
        manifest = pack.decode_without_keys(record)
    need(manifest is None or parent_of(manifest) == entry.relation, "graph",
         "pack set entry does not describe its record")
    return manifest


def _check_chain(entries, manifests):
    head = manifests[-1]
    message = "manifest parent is incompatible with its authenticated child"
    for depth, manifest in enumerate(manifests):
        need((manifest.model, manifest.family, manifest.tenant, manifest.key_epoch)
             == (head.model, head.family, head.tenant, head.key_epoch), "authentication", message)
        delta = manifest.schema.delta
        if delta:
            need(depth > 0 and delta.parent == entries[depth - 1].identity
                 and delta.parent_cut == manifests[depth - 1].cut and delta.depth == depth,
                 "authentication", message)


def _check_order(entries, packs, manifests):
    wanted, keys = [], []
    for entry, manifest in zip(packs, manifests):
        for _, ref in references(manifest):
            keys.append(ref.object_key)
            wanted.append((CHUNK, ref.object_bytes, ref.key_epoch, ref.object_key, ref.stored_digest,
                           ref.content_id))
        wanted.append((PACK, entry.size, entry.key_epoch, entry.identity, entry.digest, entry.relation))
    have = [(e.kind, e.size, e.key_epoch, e.identity, e.digest, e.relation) for e in entries]
    need(have == wanted and len(set(keys)) == len(keys), "graph", "pack set inventory is not canonical")


# ------------------------------------------------------------------------------------------------ proofs

def prove(data, index, ring=None):
    """The proof of one record, as canonical JSON bytes."""
    opened = open_set(data, ring)
    return proof_text([encode_entry(entry) for entry in opened.entries], index, data[-PAGE:])


def proof_text(entries, index, footer):
    path = merkle.audit_path(index, entries)
    return canonical_json.encode({"entry": entries[index].hex(), "footer": footer[:224].hex(),
                                  "index": index, "kind": PROOF_KIND,
                                  "path": [sibling.hex() for sibling in path]})


def check_proof(proof, ring=None, record=None):
    """Refuse unless the proof holds, and unless `record`, when given, is the record it proves."""
    entry, footer, index, path = canonical_json.strict(proof, MAX_PROOF_BYTES, _proof_members)
    count = check_footer(footer.ljust(PAGE, b"\0"), ring)
    merkle.check_path(merkle.leaf_hash(entry), index, count, path, footer[96:128])
    fields = _check_fields(entry)
    _check_size(fields)
    if record is not None:
        _check_record(record, fields, ring.tenant if ring else None)


def _proof_members(value):
    def hexadecimal(text, size):
        need(isinstance(text, str) and len(text) == 2 * size and not set(text) - set("0123456789abcdef"),
             "canonical", "not %d bytes of lower-case hex" % size)
        return bytes.fromhex(text)

    need(isinstance(value, dict) and sorted(value) == ["entry", "footer", "index", "kind", "path"],
         "canonical", "a proof has exactly five members")
    need(value["kind"] == PROOF_KIND, "canonical", "not a pack set proof")
    index, path = value["index"], value["path"]
    need(isinstance(index, int) and not isinstance(index, bool), "canonical", "index is not an integer")
    need(isinstance(path, list) and len(path) <= MAX_PROOF_PATH, "canonical", "path is not a short array")
    return (hexadecimal(value["entry"], ENTRY_BYTES), hexadecimal(value["footer"], 224), index,
            [hexadecimal(sibling, 32) for sibling in path])
