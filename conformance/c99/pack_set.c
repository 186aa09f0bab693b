/* docs/format/pack-set.md: one file with one chain, and its Merkle tree. */
#include <stdlib.h>
#include <string.h>

#include "kv99.h"

#define LEAST_SET_BYTES 28672u
#define MAX_RECORDS 1048576u
#define MAX_PACK_BYTES (UINT64_C(268435456) + 16 + 8192)
#define MAX_PACKS 8u
#define MAX_PROOF_BYTES 65536u
#define MAX_PROOF_PATH 20u
#define FOOTER_FIELDS 224u

enum { CHUNK = 1, PACK = 2 };

static uint64_t padded(uint64_t bytes) {
  return (bytes + (KV99_PAGE - 1)) / KV99_PAGE * KV99_PAGE;
}

static bool is_id(const uint8_t* a, const uint8_t* b) {
  return memcmp(a, b, KV99_ID) == 0;
}

/* ---- Merkle tree */

void kv99_merkle_leaf(struct kv99_bytes data, uint8_t hash[32]) {
  static const uint8_t zero = 0;
  struct kv99_sha256 sha;
  kv99_sha256_start(&sha);
  kv99_sha256_add(&sha, &zero, 1);
  kv99_sha256_add(&sha, data.data, data.size);
  kv99_sha256_end(&sha, hash);
}

static void merkle_node(const uint8_t left[32], const uint8_t right[32], uint8_t hash[32]) {
  static const uint8_t one = 1;
  struct kv99_sha256 sha;
  kv99_sha256_start(&sha);
  kv99_sha256_add(&sha, &one, 1);
  kv99_sha256_add(&sha, left, 32);
  kv99_sha256_add(&sha, right, 32);
  kv99_sha256_end(&sha, hash);
}

void kv99_merkle_add(struct kv99_merkle* tree, const uint8_t leaf_hash[32]) {
  uint8_t hash[32];
  unsigned level = 0;
  memcpy(hash, leaf_hash, 32);
  for (; tree->count >> level & 1; ++level) merkle_node(tree->peaks[level], hash, hash);
  memcpy(tree->peaks[level], hash, 32);
  ++tree->count;
}

bool kv99_merkle_root(struct kv99* kv, const struct kv99_merkle* tree, uint8_t root[32]) {
  unsigned level = 0;
  if (tree->count == 0) return kv99_refuse(kv, KV99_BOUNDS, "merkle tree has no leaves");
  while ((tree->count >> level & 1) == 0) ++level;
  memcpy(root, tree->peaks[level], 32);
  while (++level < 64)
    if (tree->count >> level & 1) merkle_node(tree->peaks[level], root, root);
  return true;
}

bool kv99_merkle_path(struct kv99* kv, const uint8_t (*leaves)[32], uint64_t count, uint64_t index,
                      uint8_t (*path)[32], size_t* length) {
  struct kv99_arena inner = {NULL}, *outer;
  uint8_t(*row)[32];
  size_t i, n = (size_t)count, at = (size_t)index;
  *length = 0;
  if (index >= count) return kv99_refuse(kv, KV99_BOUNDS, "merkle leaf index is outside the tree");
  outer = kv99_enter(kv, &inner);
  row = (uint8_t(*)[32])kv99_alloc(kv, n, sizeof *row);
  if (row == NULL) {
    kv99_leave(kv, outer);
    return false;
  }
  memcpy(row, leaves, n * sizeof *row);
  for (; n > 1; n = (n + 1) / 2, at /= 2) {
    if ((at ^ 1u) < n) memcpy(path[(*length)++], row[at ^ 1u], 32);
    for (i = 0; i + 1 < n; i += 2) merkle_node(row[i], row[i + 1], row[i / 2]);
    if (n % 2 != 0) memmove(row[n / 2], row[n - 1], 32);
  }
  kv99_leave(kv, outer);
  return true;
}

bool kv99_merkle_check(struct kv99* kv, const uint8_t leaf_hash[32], uint64_t index, uint64_t count,
                       const struct kv99_bytes* path, size_t length, const uint8_t root[32]) {
  uint8_t hash[32];
  uint64_t at, last;
  size_t needed = 0;
  if (index >= count) return kv99_refuse(kv, KV99_BOUNDS, "merkle leaf index is outside the tree");
  for (at = index, last = count - 1; last != 0; at /= 2, last /= 2)
    if (at % 2 != 0 || at < last) ++needed;
  if (length != needed) return kv99_refuse(kv, KV99_BOUNDS, "merkle audit path has the wrong length");
  memcpy(hash, leaf_hash, 32);
  for (at = index, last = count - 1; last != 0; at /= 2, last /= 2) {
    if (at % 2 != 0) {
      merkle_node((path++)->data, hash, hash);
    } else if (at < last) {
      merkle_node(hash, (path++)->data, hash);
    }
  }
  return is_id(hash, root) || kv99_refuse(kv, KV99_CHECKSUM, "merkle root mismatch");
}

/* ---- opening */

static struct kv99_set_entry entry_of(const uint8_t* p) {
  struct kv99_set_entry entry;
  entry.kind = kv99_le16(p);
  entry.offset = kv99_le64(p + 8);
  entry.bytes = kv99_le64(p + 16);
  entry.epoch = kv99_le64(p + 24);
  entry.identity = p + 32;
  entry.digest = p + 64;
  entry.relation = p + 96;
  return entry;
}

struct kv99_set_entry kv99_read_set_entry(const struct kv99_pack_set* set, uint64_t index) {
  return entry_of(set->inventory.data + (size_t)index * KV99_SET_ENTRY);
}

/* Steps 2 to 5. */
static bool header_fields(struct kv99* kv, const uint8_t* p) {
  if (memcmp(p, "KVSET1\0", 8) != 0) return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid pack set magic");
  if (kv99_le16(p + 8) != 1 || kv99_le16(p + 10) != KV99_PAGE || kv99_le32(p + 12) != KV99_PAGE)
    return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid pack set header contract");
  if (kv99_le32(p + 16) != 0) return kv99_refuse(kv, KV99_RESERVED, "unknown pack set flags");
  if (!kv99_zero(p + 20, 4) || !kv99_zero(p + 96, KV99_PAGE - 96))
    return kv99_refuse(kv, KV99_RESERVED, "pack set header reserved bytes are nonzero");
  return true;
}

/* Steps 6 to 9. */
static bool footer_fields(struct kv99* kv, const uint8_t* p) {
  uint8_t seal[32];
  if (memcmp(p, "KVSCM1\0", 8) != 0)
    return kv99_refuse(kv, KV99_TRUNCATED, "pack set does not end with its commit footer");
  if (kv99_le16(p + 8) != 1 || kv99_le16(p + 10) != KV99_PAGE)
    return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid pack set footer contract");
  if (!kv99_zero(p + 12, 4) || !kv99_zero(p + 56, 8) ||
      !kv99_zero(p + FOOTER_FIELDS, KV99_PAGE - FOOTER_FIELDS))
    return kv99_refuse(kv, KV99_RESERVED, "pack set footer reserved bytes are nonzero");
  kv99_domain_hash("kvpack/v1/pack-set-seal", kv99_bytes_of(p, 192), seal);
  return is_id(seal, p + 192) || kv99_refuse(kv, KV99_CHECKSUM, "pack set seal mismatch");
}

/* Step 11. */
static bool inventory_bounds(struct kv99* kv, const uint8_t* footer, uint64_t file_bytes) {
  const uint64_t count = kv99_le64(footer + 16), offset = kv99_le64(footer + 24),
                 bytes = kv99_le64(footer + 32);
  if (count < 2 || count > MAX_RECORDS || bytes != count * KV99_SET_ENTRY || offset % KV99_PAGE != 0 ||
      padded(bytes) + 2 * KV99_PAGE > file_bytes || offset != file_bytes - KV99_PAGE - padded(bytes))
    return kv99_refuse(kv, KV99_BOUNDS, "pack set inventory is outside bounds");
  return true;
}

/* The epoch, and the HMAC of the footer. */
static bool authenticate(struct kv99* kv, const uint8_t* footer, const struct kv99_ring* ring) {
  static const char domain[] = "kvpack/v1/pack-set-auth";
  const struct kv99_keys* keys;
  struct kv99_hmac mac;
  uint8_t tag[32];
  if (!kv99_find_keys(kv, ring, kv99_le64(footer + 48), &keys)) return false;
  kv99_hmac_start(&mac, kv99_bytes_of(keys->manifest_auth, 32));
  kv99_hmac_add(&mac, domain, sizeof domain);
  kv99_hmac_add(&mac, footer, 160);
  kv99_hmac_end(&mac, tag);
  return kv99_equal_secret(tag, footer + 160, 32) ||
         kv99_refuse(kv, KV99_AUTHENTICATION, "pack set HMAC authentication failed");
}

/* Steps 18 to 20; the check of the place stands between them and 22. */
static bool entry_fields(struct kv99* kv, const uint8_t* raw) {
  const struct kv99_set_entry entry = entry_of(raw);
  if (entry.kind != CHUNK && entry.kind != PACK)
    return kv99_refuse_value(kv, "pack set record kind", entry.kind);
  if (!kv99_zero(raw + 2, 6))
    return kv99_refuse(kv, KV99_RESERVED, "pack set entry reserved field is nonzero");
  if (entry.epoch == 0 || kv99_zero(entry.identity, KV99_ID) || kv99_zero(entry.digest, KV99_ID) ||
      (entry.kind == CHUNK && kv99_zero(entry.relation, KV99_ID)))
    return kv99_refuse(kv, KV99_SEMANTICS, "pack set entry contains a zero identity");
  return true;
}

static bool entry_size(struct kv99* kv, const struct kv99_set_entry* entry) {
  const bool good = entry->kind == CHUNK ? entry->bytes % KV99_PAGE == 0 && entry->bytes >= 2 * KV99_PAGE &&
                                               entry->bytes <= KV99_MAX_CHUNK_OBJECT
                                         : entry->bytes >= 2 * KV99_PAGE && entry->bytes <= MAX_PACK_BYTES;
  return good || kv99_refuse(kv, KV99_BOUNDS, "pack set record size is outside bounds");
}

/* Steps 18 to 25. */
static bool entries(struct kv99* kv, const struct kv99_pack_set* set, uint64_t inventory_at) {
  static const uint8_t none[KV99_ID] = {0};
  const uint8_t* pack_before = none;
  uint64_t i, place = KV99_PAGE;
  unsigned packs = 0;
  for (i = 0; i < set->count; ++i) {
    const struct kv99_set_entry entry = kv99_read_set_entry(set, i);
    if (!entry_fields(kv, set->inventory.data + (size_t)i * KV99_SET_ENTRY)) return false;
    if (entry.offset != place) return kv99_refuse(kv, KV99_BOUNDS, "pack set records are not contiguous");
    if (!entry_size(kv, &entry)) return false;
    place += padded(entry.bytes);
    if (entry.kind != PACK) continue;
    if (!is_id(entry.relation, pack_before) || ++packs > MAX_PACKS)
      return kv99_refuse(kv, KV99_GRAPH, "pack set packs are not one chain");
    pack_before = entry.identity;
  }
  if (place != inventory_at) return kv99_refuse(kv, KV99_BOUNDS, "pack set records are not contiguous");
  if (kv99_read_set_entry(set, set->count - 1).kind != PACK || !is_id(pack_before, set->head))
    return kv99_refuse(kv, KV99_GRAPH, "pack set does not end with its head pack");
  return true;
}

static bool header_digest(struct kv99* kv, const uint8_t* page) {
  static const uint8_t zero[KV99_ID] = {0};
  struct kv99_sha256 hash;
  uint8_t digest[KV99_ID];
  kv99_sha256_start(&hash);
  kv99_sha256_add(&hash, page, 64);
  kv99_sha256_add(&hash, zero, sizeof zero);
  kv99_sha256_add(&hash, page + 96, KV99_PAGE - 96);
  kv99_sha256_end(&hash, digest);
  return is_id(digest, page + 64) || kv99_refuse(kv, KV99_CHECKSUM, "pack set header digest mismatch");
}

/* Steps 12 to 15. */
static bool bindings(struct kv99* kv, const uint8_t* header, const uint8_t* footer,
                     const struct kv99_ring* ring) {
  if (!header_digest(kv, header)) return false;
  if (memcmp(footer + 48, header + 24, 8) != 0 || !is_id(footer + 128, header + 64))
    return kv99_refuse(kv, KV99_BOUNDS, "pack set footer binding mismatch");
  if (kv99_le64(header + 24) == 0) return kv99_refuse(kv, KV99_SEMANTICS, "key epoch must be nonzero");
  if (kv99_zero(header + 32, KV99_ID)) return kv99_refuse(kv, KV99_SEMANTICS, "tenant namespace is zero");
  if (ring == NULL) return true;
  if (ring->count == 0 || !is_id(header + 32, ring->keys[0].tenant))
    return kv99_refuse(kv, KV99_AUTHENTICATION, "pack set tenant mismatch");
  return authenticate(kv, footer, ring);
}

bool kv99_open_set(struct kv99* kv, struct kv99_bytes file, const struct kv99_ring* ring,
                   struct kv99_pack_set* set) {
  const uint8_t* footer;
  struct kv99_merkle tree;
  uint8_t hash[32];
  uint64_t i, offset;
  if (file.size < LEAST_SET_BYTES) return kv99_refuse(kv, KV99_TRUNCATED, "truncated pack set");
  footer = file.data + file.size - KV99_PAGE;
  if (!header_fields(kv, file.data) || !footer_fields(kv, footer)) return false;
  if (kv99_le64(footer + 40) != file.size) return kv99_refuse(kv, KV99_BOUNDS, "pack set length mismatch");
  if (!inventory_bounds(kv, footer, file.size) || !bindings(kv, file.data, footer, ring)) return false;
  offset = kv99_le64(footer + 24);
  set->file = file;
  set->tenant = file.data + 32;
  set->epoch = kv99_le64(file.data + 24);
  set->head = footer + 64;
  set->root = footer + 96;
  set->count = kv99_le64(footer + 16);
  set->inventory = kv99_part(file, (size_t)offset, (size_t)set->count * KV99_SET_ENTRY);
  if (!kv99_zero(set->inventory.data + set->inventory.size,
                 (size_t)(file.size - KV99_PAGE - offset) - set->inventory.size))
    return kv99_refuse(kv, KV99_RESERVED, "pack set inventory padding is nonzero");
  tree.count = 0;
  for (i = 0; i < set->count; ++i) {
    kv99_merkle_leaf(kv99_part(set->inventory, (size_t)i * KV99_SET_ENTRY, KV99_SET_ENTRY), hash);
    kv99_merkle_add(&tree, hash);
  }
  if (!kv99_merkle_root(kv, &tree, hash)) return false;
  if (!is_id(hash, set->root)) return kv99_refuse(kv, KV99_CHECKSUM, "pack set merkle root mismatch");
  return entries(kv, set, offset);
}

/* ---- one record */

/* R2 and R3. @param tenant  NULL: not compared */
static bool record_rules(struct kv99* kv, const struct kv99_set_entry* entry, struct kv99_bytes object,
                         const uint8_t* tenant) {
  const uint8_t* p = object.data;
  uint8_t digest[KV99_ID];
  bool fits;
  kv99_hash(object, digest);
  if (!is_id(digest, entry->digest)) return kv99_refuse(kv, KV99_CHECKSUM, "pack set record digest mismatch");
  if (object.size < 2 * KV99_PAGE || object.size != entry->bytes) {
    fits = false;
  } else if (entry->kind == CHUNK) {
    fits = memcmp(p, "KVCHK1\0", 8) == 0 && kv99_le32(p + 36) == entry->bytes &&
           kv99_le64(p + 40) == entry->epoch && (tenant == NULL || is_id(p + 48, tenant)) &&
           is_id(p + 144, entry->identity) && is_id(p + 112, entry->relation);
  } else {
    fits = memcmp(p, "KVPKP1\0", 8) == 0 && kv99_le64(p + 24) == entry->bytes - 2 * KV99_PAGE &&
           kv99_le64(p + 40) == entry->epoch && (tenant == NULL || is_id(p + 56, tenant)) &&
           is_id(p + 88, entry->identity);
  }
  return fits || kv99_refuse(kv, KV99_GRAPH, "pack set entry does not describe its record");
}

static struct kv99_bytes object_of(const struct kv99_pack_set* set, const struct kv99_set_entry* entry) {
  return kv99_part(set->file, (size_t)entry->offset, (size_t)entry->bytes);
}

bool kv99_set_record(struct kv99* kv, const struct kv99_pack_set* set, uint64_t index,
                     struct kv99_bytes* object) {
  const struct kv99_set_entry entry = kv99_read_set_entry(set, index);
  *object = object_of(set, &entry);
  if (!kv99_zero(object->data + object->size, (size_t)(padded(entry.bytes) - entry.bytes)))
    return kv99_refuse(kv, KV99_RESERVED, "pack set record padding is nonzero");
  return record_rules(kv, &entry, *object, set->tenant);
}

/* ---- full verification */

struct chain {
  unsigned count;
  struct kv99_manifest manifests[MAX_PACKS];
  bool all_readable;
};

/* Pass C. */
static bool read_packs(struct kv99* kv, const struct kv99_pack_set* set, const struct kv99_ring* ring,
                       struct chain* chain) {
  static const uint8_t none[KV99_ID] = {0};
  const struct kv99_limits limits = kv99_default_limits();
  uint64_t i;
  chain->count = 0;
  chain->all_readable = true;
  for (i = 0; i < set->count; ++i) {
    const struct kv99_set_entry entry = kv99_read_set_entry(set, i);
    struct kv99_manifest* manifest = &chain->manifests[chain->count];
    const struct kv99_bytes pack = object_of(set, &entry);
    const struct kv99_keys* keys = NULL;
    struct kv99_pack_header header;
    struct kv99_bytes plaintext;
    bool readable;
    if (entry.kind != PACK) continue;
    ++chain->count;
    if (!kv99_check_pack(kv, pack, &header)) return false;
    if (ring != NULL &&
        (!kv99_find_keys(kv, ring, header.epoch, &keys) || !kv99_authenticate_pack(kv, pack, &header, keys)))
      return false;
    if (!kv99_read_pack(kv, pack, &header, keys, &limits, manifest, &plaintext, &readable)) return false;
    if (!readable) {
      chain->all_readable = false;
      continue;
    }
    if (!is_id(manifest->schema.kind == 1 ? manifest->schema.parent_id : none, entry.relation))
      return kv99_refuse(kv, KV99_GRAPH, "pack set entry does not describe its record");
  }
  return true;
}

/* Pass D. */
static bool chain_rules(struct kv99* kv, const struct chain* chain) {
  const struct kv99_manifest* head = &chain->manifests[chain->count - 1];
  uint8_t family[KV99_ID], other[KV99_ID];
  unsigned i;
  if (!kv99_family_id(kv, &head->family, family)) return false;
  for (i = 0; i < chain->count; ++i) {
    const struct kv99_manifest* m = &chain->manifests[i];
    const struct kv99_manifest* before = i == 0 ? NULL : &chain->manifests[i - 1];
    bool fits;
    if (!kv99_family_id(kv, &m->family, other)) return false;
    fits = memcmp(m->model, head->model, 5 * KV99_ID) == 0 && is_id(family, other) &&
           is_id(m->tenant, head->tenant) && m->epoch == head->epoch;
    if (fits && before != NULL)
      fits = is_id(m->schema.parent_token_root, before->token_root) &&
             is_id(m->schema.parent_auxiliary_root, before->auxiliary_root) &&
             m->schema.parent_tokens == before->token_count && m->schema.depth == i;
    if (!fits)
      return kv99_refuse(kv, KV99_AUTHENTICATION,
                         "manifest parent is incompatible with its authenticated child");
  }
  return true;
}

/* What a chunk record is in its manifest. */
struct use {
  const struct kv99_manifest* manifest;
  const struct kv99_chunk_ref* ref;
  const struct kv99_span* span;
  const struct kv99_state_key* state;
  unsigned pack;
};

static int by_identity(const void* a, const void* b) {
  return memcmp(*(const uint8_t* const*)a, *(const uint8_t* const*)b, KV99_ID);
}

static bool not_canonical(struct kv99* kv) {
  return kv99_refuse(kv, KV99_GRAPH, "pack set inventory is not canonical");
}

/* Pass E; and which reference each chunk belongs to. */
static bool inventory_rules(struct kv99* kv, const struct kv99_pack_set* set, const struct chain* chain,
                            struct use* uses) {
  const uint8_t** keys = (const uint8_t**)kv99_alloc(kv, (size_t)set->count, sizeof *keys);
  uint64_t at = 0;
  size_t chunks = 0, k;
  unsigned pack;
  uint32_t i, j;
  if (keys == NULL) return false;
  for (pack = 0; pack < chain->count; ++pack) {
    const struct kv99_manifest* m = &chain->manifests[pack];
    for (i = 0; i < m->payload_count; ++i) {
      for (j = 0; j < m->payloads[i].ref_count; ++j, ++at) {
        const struct kv99_chunk_ref* ref = &m->payloads[i].refs[j];
        struct kv99_set_entry entry;
        if (at >= set->count) return not_canonical(kv);
        entry = kv99_read_set_entry(set, at);
        if (entry.kind != CHUNK || !is_id(entry.identity, ref->object_key) ||
            !is_id(entry.digest, ref->digest) || !is_id(entry.relation, ref->content_id) ||
            entry.bytes != ref->object_bytes || entry.epoch != ref->epoch)
          return not_canonical(kv);
        keys[chunks++] = entry.identity;
        uses[at].manifest = m;
        uses[at].ref = ref;
        uses[at].span = &m->schema.states[i].spans[j];
        uses[at].state = &m->payloads[i].key;
        uses[at].pack = pack;
      }
    }
    if (at >= set->count || kv99_read_set_entry(set, at).kind != PACK) return not_canonical(kv);
    ++at;
  }
  if (at != set->count) return not_canonical(kv);
  qsort(keys, chunks, sizeof *keys, by_identity);
  for (k = 1; k < chunks; ++k)
    if (is_id(keys[k - 1], keys[k])) return not_canonical(kv);
  return true;
}

/* Pass F. @param uses  NULL where a manifest could not be read */
static bool chunk_rules(struct kv99* kv, const struct kv99_pack_set* set, const struct kv99_ring* ring,
                        const struct use* uses, uint8_t (*family_ids)[KV99_ID]) {
  uint64_t i;
  for (i = 0; i < set->count; ++i) {
    const struct kv99_set_entry entry = kv99_read_set_entry(set, i);
    struct kv99_arena inner = {NULL}, *outer;
    struct kv99_chunk_claim claim;
    struct kv99_chunk_header header;
    struct kv99_bytes plaintext;
    bool good;
    if (entry.kind != CHUNK) continue;
    memset(&claim, 0, sizeof claim);
    claim.ref.content_id = entry.relation;
    claim.ref.object_key = entry.identity;
    claim.ref.digest = entry.digest;
    claim.ref.epoch = entry.epoch;
    if (ring != NULL && !kv99_find_keys(kv, ring, entry.epoch, &claim.keys)) return false;
    if (uses != NULL) {
      claim.ref = *uses[i].ref;
      claim.span = uses[i].span;
      claim.state = uses[i].state;
      claim.family = &uses[i].manifest->family;
      claim.family_id = family_ids[uses[i].pack];
      claim.tenant = uses[i].manifest->tenant;
    }
    outer = kv99_enter(kv, &inner);
    good = kv99_open_chunk(kv, object_of(set, &entry), &claim, &header, &plaintext);
    kv99_leave(kv, outer);
    if (!good) return false;
  }
  return true;
}

static bool verify_passes(struct kv99* kv, struct kv99_bytes file, const struct kv99_ring* ring, int* level) {
  struct kv99_pack_set set;
  struct chain* chain = (struct chain*)kv99_alloc(kv, 1, sizeof *chain);
  struct use* uses = NULL;
  uint8_t family_ids[MAX_PACKS][KV99_ID];
  struct kv99_bytes object;
  uint64_t i;
  unsigned pack;
  if (chain == NULL || !kv99_open_set(kv, file, ring, &set)) return false;
  for (i = 0; i < set.count; ++i)
    if (!kv99_set_record(kv, &set, i, &object)) return false;
  if (!read_packs(kv, &set, ring, chain)) return false;
  if (chain->all_readable) {
    uses = (struct use*)kv99_alloc(kv, (size_t)set.count, sizeof *uses);
    if (uses == NULL || !chain_rules(kv, chain) || !inventory_rules(kv, &set, chain, uses)) return false;
    for (pack = 0; pack < chain->count; ++pack)
      if (!kv99_family_id(kv, &chain->manifests[pack].family, family_ids[pack])) return false;
  }
  if (!chunk_rules(kv, &set, ring, uses, family_ids)) return false;
  *level = ring != NULL ? KV99_AUTHENTICATED : chain->all_readable ? KV99_INTEGRITY : KV99_FRAMING;
  return true;
}

bool kv99_verify_set(struct kv99* kv, struct kv99_bytes file, const struct kv99_ring* ring, int* level) {
  struct kv99_arena inner = {NULL}, *outer = kv99_enter(kv, &inner);
  const bool good = verify_passes(kv, file, ring, level);
  kv99_leave(kv, outer);
  return good;
}

/* ---- partial reads and proofs */

bool kv99_check_set_footer(struct kv99* kv, struct kv99_bytes footer, const struct kv99_ring* ring) {
  if (footer.size != KV99_PAGE) return kv99_refuse(kv, KV99_TRUNCATED, "truncated pack set");
  return footer_fields(kv, footer.data) && inventory_bounds(kv, footer.data, kv99_le64(footer.data + 40)) &&
         (ring == NULL || authenticate(kv, footer.data, ring));
}

struct proof {
  uint8_t entry[KV99_SET_ENTRY];
  uint8_t footer[KV99_PAGE];
  uint64_t index;
  uint8_t hashes[MAX_PROOF_PATH][KV99_ID];
  struct kv99_bytes path[MAX_PROOF_PATH];
  size_t length;
};

/* A member of hex digits, once. */
static bool hex_member(const struct kv99_json* json, const char* name, size_t bytes, uint8_t* data) {
  unsigned count;
  const uint32_t node = kv99_json_member(json, KV99_JSON_ROOT, name, &count);
  struct kv99_bytes text;
  if (count != 1 || json->nodes[node].kind != KV99_JSON_STRING) return false;
  text = kv99_json_string(json, node);
  return text.size == 2 * bytes && kv99_unhex(text, false, data);
}

static bool proof_members(const struct kv99_json* json, struct proof* proof) {
  uint32_t node, members = 0;
  unsigned count;
  if (json->nodes[KV99_JSON_ROOT].kind != KV99_JSON_OBJECT) return false;
  for (node = KV99_JSON_ROOT + 1; node < json->nodes[KV99_JSON_ROOT].next; node = json->nodes[node + 1].next)
    ++members;
  if (members != 5 || !hex_member(json, "entry", KV99_SET_ENTRY, proof->entry) ||
      !hex_member(json, "footer", FOOTER_FIELDS, proof->footer))
    return false;
  node = kv99_json_member(json, KV99_JSON_ROOT, "index", &count);
  if (count != 1 || json->nodes[node].kind != KV99_JSON_UNSIGNED) return false;
  proof->index = json->nodes[node].value;
  node = kv99_json_member(json, KV99_JSON_ROOT, "kind", &count);
  if (count != 1 || json->nodes[node].kind != KV99_JSON_STRING ||
      !kv99_same(kv99_json_string(json, node), kv99_text("kvpack.pack-set-proof.v1")))
    return false;
  node = kv99_json_member(json, KV99_JSON_ROOT, "path", &count);
  if (count != 1 || json->nodes[node].kind != KV99_JSON_ARRAY) return false;
  proof->length = 0;
  for (members = node + 1; members < json->nodes[node].next; members = json->nodes[members].next) {
    struct kv99_bytes text;
    if (json->nodes[members].kind != KV99_JSON_STRING || proof->length == MAX_PROOF_PATH) return false;
    text = kv99_json_string(json, members);
    if (text.size != 2 * KV99_ID || !kv99_unhex(text, false, proof->hashes[proof->length])) return false;
    proof->path[proof->length] = kv99_bytes_of(proof->hashes[proof->length], KV99_ID);
    ++proof->length;
  }
  return true;
}

static bool check_proof(struct kv99* kv, struct kv99_bytes text, struct kv99_bytes record,
                        const struct kv99_ring* ring) {
  struct proof* proof = (struct proof*)kv99_alloc(kv, 1, sizeof *proof);
  struct kv99_json json;
  struct kv99_bytes canonical;
  struct kv99_set_entry entry;
  uint8_t leaf[32];
  if (proof == NULL) return false;
  if (text.size == 0 || text.size > MAX_PROOF_BYTES)
    return kv99_refuse_number(kv, KV99_VALIDATION, "JSON length ", text.size, " is outside 1..=65536");
  if (!kv99_parse_json(kv, text, KV99_CANONICAL, &json)) return false;
  if (!proof_members(&json, proof)) return kv99_refuse(kv, KV99_CANONICAL, "not a pack set proof");
  if (!kv99_canonical_json(kv, &json, KV99_CANONICAL, &canonical)) return false;
  if (!kv99_same(canonical, text))
    return kv99_refuse(kv, KV99_VALIDATION, "JSON is not in the canonical compact sorted-key encoding");
  if (!kv99_check_set_footer(kv, kv99_bytes_of(proof->footer, KV99_PAGE), ring)) return false;
  kv99_merkle_leaf(kv99_bytes_of(proof->entry, KV99_SET_ENTRY), leaf);
  if (!kv99_merkle_check(kv, leaf, proof->index, kv99_le64(proof->footer + 16), proof->path, proof->length,
                         proof->footer + 96))
    return false;
  entry = entry_of(proof->entry);
  if (!entry_fields(kv, proof->entry) || !entry_size(kv, &entry)) return false;
  return record.data == NULL ||
         record_rules(kv, &entry, record, ring == NULL || ring->count == 0 ? NULL : ring->keys[0].tenant);
}

bool kv99_check_set_proof(struct kv99* kv, struct kv99_bytes proof, struct kv99_bytes record,
                          const struct kv99_ring* ring) {
  struct kv99_arena inner = {NULL}, *outer = kv99_enter(kv, &inner);
  const bool good = check_proof(kv, proof, record, ring);
  kv99_leave(kv, outer);
  return good;
}
