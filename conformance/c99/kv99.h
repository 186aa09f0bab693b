/* A reader of kvpack's formats in C99: it verifies and decodes, and writes nothing.
 *
 * It is written from docs/format and docs/protocol alone and shares no code with the library, so that where
 * the two agree, the documents say what both do. The sections stand in the order of docs/format/README.md;
 * each has a source file of its own. Nothing but the C library is needed, and there is no global state.
 *
 * Every function that can refuse returns false after it has set the category and the text of the refusal in
 * its `struct kv99`. What a decoder gives out points into its input, or into memory of the arena that was set
 * when it was called; it lives as long as both.
 */
#ifndef KV99_H
#define KV99_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- conventions.md */

#define KV99_PAGE 4096u
#define KV99_MAX_PLAINTEXT 4194304u
#define KV99_MAX_CODEC_OVERHEAD 32784u
#define KV99_MAX_CHUNK_OBJECT 4235296u
#define KV99_MAX_RANK 8u
#define KV99_MAX_STATES 65536u
#define KV99_MAX_DEPENDENCIES 64u
#define KV99_MAX_MANIFEST 268435456u
#define KV99_MAX_RESTORED UINT64_C(4398046511104)
#define KV99_MAX_DEPTH 7u
#define KV99_TAG 16u
#define KV99_SALT 16u
#define KV99_NONCE 12u
#define KV99_ID 32u

struct kv99_bytes {
  const uint8_t* data;
  size_t size;
};

/* What is freed together. Starts as all zero. */
struct kv99_arena {
  struct kv99_block* last;
};

/* One line of work: where its memory comes from, and why it was refused. */
struct kv99 {
  struct kv99_arena* arena;
  size_t room; /* bytes that may still be allocated; a refusal of no_memory below that */
  int category;
  struct kv99_bytes text;
  struct kv99_arena texts;
};

/* @param room  most bytes that the work may allocate at once */
void kv99_start(struct kv99* kv, struct kv99_arena* arena, size_t room);
/* Frees what refusals have allocated, not the arena. */
void kv99_end(struct kv99* kv);
/* `count` things of `size` bytes, all zero, or NULL after a refusal. Nothing at all is a valid pointer too.
 */
void* kv99_alloc(struct kv99* kv, size_t count, size_t size);
/* Makes room for one more behind `used` things; the array may move. */
bool kv99_grow(struct kv99* kv, void** array, size_t used, size_t* capacity, size_t size);
/* What is allocated from here on goes to `inner`, which is all zero. @return what to give to kv99_leave */
struct kv99_arena* kv99_enter(struct kv99* kv, struct kv99_arena* inner);
/* Frees the inner arena and goes back. */
void kv99_leave(struct kv99* kv, struct kv99_arena* outer);
void kv99_free(struct kv99* kv, struct kv99_arena* arena);

struct kv99_bytes kv99_bytes_of(const void* data, size_t size);
struct kv99_bytes kv99_text(const char* text);
struct kv99_bytes kv99_part(struct kv99_bytes bytes, size_t at,
                            size_t size); /* the caller has checked that it fits */
bool kv99_same(struct kv99_bytes a, struct kv99_bytes b);
int kv99_compare(struct kv99_bytes a, struct kv99_bytes b); /* as unsigned bytes, the shorter first */
bool kv99_zero(const uint8_t* data, size_t size);
bool kv99_is_utf8(struct kv99_bytes text);
void kv99_copy(uint8_t* target, const uint8_t* source, size_t size);
void kv99_wipe(void* data, size_t size);
bool kv99_equal_secret(const uint8_t* a, const uint8_t* b,
                       size_t size); /* in time that depends on the size alone */
uint16_t kv99_le16(const uint8_t* p);
uint32_t kv99_le32(const uint8_t* p);
uint64_t kv99_le64(const uint8_t* p);
bool kv99_add(uint64_t a, uint64_t b, uint64_t* sum);
bool kv99_multiply(uint64_t a, uint64_t b, uint64_t* product);

/* Where canonical bytes are written: counts, and writes as far as there is a place. */
struct kv99_out {
  uint8_t* data;
  size_t capacity;
  size_t size;
};
void kv99_put(struct kv99_out* out, const void* data, size_t size);
void kv99_put_le(struct kv99_out* out, uint64_t value, size_t bytes);
/* Calls `write` twice, to measure and to write. */
bool kv99_write(struct kv99* kv, void (*write)(struct kv99_out*, const void*), const void* value,
                struct kv99_bytes* bytes);

/* Reads fields of a canonical object. */
struct kv99_reader {
  struct kv99* kv;
  struct kv99_bytes rest;
};
bool kv99_take(struct kv99_reader* reader, size_t size, const uint8_t** data);
bool kv99_u8(struct kv99_reader* reader, uint8_t* value);
bool kv99_u16(struct kv99_reader* reader, uint16_t* value);
bool kv99_u32(struct kv99_reader* reader, uint32_t* value);
bool kv99_u64(struct kv99_reader* reader, uint64_t* value);
/* A u16 of a closed enum whose values are 1 to `last`. */
bool kv99_enum(struct kv99_reader* reader, const char* what, unsigned last, uint16_t* value);
/* An array for as many things as `count` says and the rest of the input can hold at `least` bytes each. */
void* kv99_array(struct kv99_reader* reader, size_t count, size_t least, size_t size);

struct kv99_state_key {
  uint32_t layer;
  struct kv99_bytes name;
};
bool kv99_read_state_key(struct kv99_reader* reader, struct kv99_state_key* key);
void kv99_put_state_key(struct kv99_out* out, const struct kv99_state_key* key);
int kv99_compare_keys(const struct kv99_state_key* a, const struct kv99_state_key* b);

struct kv99_shape {
  unsigned rank;
  uint64_t dimensions[KV99_MAX_RANK];
};
bool kv99_read_shape(struct kv99_reader* reader, struct kv99_shape* shape);
bool kv99_read_strides(struct kv99_reader* reader, struct kv99_shape* strides);
void kv99_put_shape(struct kv99_out* out, const struct kv99_shape* shape);

#define KV99_SPAN 28u
struct kv99_span {
  uint64_t token_start, token_count, plaintext_offset;
  uint32_t plaintext_bytes;
};
bool kv99_read_span(struct kv99_reader* reader, struct kv99_span* span);
void kv99_put_span(struct kv99_out* out, const struct kv99_span* span);

enum { KV99_RAW = 1, KV99_LOSSLESS = 2 };
enum { KV99_CONTIGUOUS = 1, KV99_STRIDED = 2 };
enum { KV99_NATIVE = 1, KV99_PORTABLE = 2 };
enum { KV99_DIRECT = 1, KV99_GATHER = 2, KV99_TAIL_WINDOW = 3 };
unsigned kv99_dtype_bytes(unsigned dtype);

/* ---------------------------------------------------------------- errors.md */

enum kv99_category {
  KV99_UNKNOWN_ENUM = 100,
  KV99_U64_RANGE,
  KV99_BAD_MAGIC,
  KV99_CHECKSUM,
  KV99_RESERVED,
  KV99_TRUNCATED,
  KV99_BOUNDS,
  KV99_SEMANTICS,
  KV99_GRAPH,
  KV99_AUTHENTICATION,
  KV99_CODEC,
  KV99_POISONED,
  KV99_IO = 200,
  KV99_NOT_FOUND = 207,
  KV99_CANONICAL = 300,
  KV99_VALIDATION = 302,
  KV99_INVALID_FRAME,
  KV99_JSON,
  KV99_CONFIG = 306,
  KV99_PRODUCER_ABORT = 311,
  KV99_MISSING_BEGIN,
  KV99_NO_MEMORY = 900
};
const char* kv99_token(int category);
void kv99_set_refusal(struct kv99* kv, int category, const char* before, struct kv99_bytes middle,
                      const char* after);
void kv99_set_unknown(struct kv99* kv, const char* what, uint64_t value);
/* Each refuses and gives false. The text outlives the refusal. */
static inline bool kv99_refuse(struct kv99* kv, int category, const char* text) {
  kv->category = category;
  kv->text = kv99_text(text);
  return false;
}
static inline bool kv99_refuse_about(struct kv99* kv, int category, const char* before,
                                     struct kv99_bytes middle, const char* after) {
  kv99_set_refusal(kv, category, before, middle, after);
  return false;
}
bool kv99_refuse_number(struct kv99* kv, int category, const char* before, uint64_t number,
                        const char* after);
/* unknown_enum: "unknown {what} {value}". */
static inline bool kv99_refuse_value(struct kv99* kv, const char* what, uint64_t value) {
  kv99_set_unknown(kv, what, value);
  return false;
}
/* The decimal digits of `value` and a NUL. @return how many digits */
size_t kv99_decimal(char digits[21], uint64_t value);

/* ---------------------------------------------------------------- keys.md */

struct kv99_sha256 {
  uint32_t state[8];
  uint64_t bytes;
  uint8_t block[64];
};
void kv99_sha256_start(struct kv99_sha256* hash);
void kv99_sha256_add(struct kv99_sha256* hash, const void* data, size_t size);
void kv99_sha256_end(struct kv99_sha256* hash, uint8_t digest[32]);
void kv99_hash(struct kv99_bytes bytes, uint8_t digest[32]);

struct kv99_hmac {
  struct kv99_sha256 inner, outer;
};
void kv99_hmac_start(struct kv99_hmac* mac, struct kv99_bytes key);
void kv99_hmac_add(struct kv99_hmac* mac, const void* data, size_t size);
void kv99_hmac_end(struct kv99_hmac* mac, uint8_t tag[32]);
/* HKDF-SHA-256 with an output of 32 bytes; info is the two parts. */
void kv99_hkdf(struct kv99_bytes salt, const uint8_t key[32], struct kv99_bytes info, struct kv99_bytes more,
               uint8_t out[32]);

/* Opens `sealed`, ciphertext and tag, into `plaintext`, which has room for the ciphertext. @return whether
 * the tag is right; otherwise nothing was written */
bool kv99_aead_open(const uint8_t key[32], const uint8_t nonce[12], struct kv99_bytes aad,
                    struct kv99_bytes sealed, uint8_t* plaintext);

struct kv99_keys {
  uint8_t tenant[32];
  uint64_t epoch;
  uint8_t namespace_id[32], prefix[32], chunk_identity[32];
  uint8_t manifest_auth[32], manifest_encryption[32], object_identity[32], chunk_encryption[32];
};
bool kv99_derive_keys(struct kv99* kv, const uint8_t stable_root[32], const uint8_t epoch_root[32],
                      const uint8_t tenant[32], uint64_t epoch, struct kv99_keys* keys);
/* One tenant's schedules. */
struct kv99_ring {
  const struct kv99_keys* keys;
  size_t count;
};
bool kv99_find_keys(struct kv99* kv, const struct kv99_ring* ring, uint64_t epoch,
                    const struct kv99_keys** keys);
/* The namespace depends on neither epoch nor epoch root. */
bool kv99_tenant_namespace(struct kv99* kv, const uint8_t stable_root[32], const uint8_t epoch_root[32],
                           uint64_t epoch, struct kv99_bytes operator_id, uint8_t tenant[32]);

/* ---------------------------------------------------------------- identities.md */

/* SHA-256 over a domain, its NUL included, and bytes. */
void kv99_domain_hash(const char* domain, struct kv99_bytes bytes, uint8_t id[32]);
void kv99_namespace_id(const uint8_t namespace_key[32], struct kv99_bytes operator_id, uint8_t id[32]);
bool kv99_content_id(struct kv99* kv, const struct kv99_keys* keys, const uint8_t family_id[32],
                     const struct kv99_state_key* state, const struct kv99_span* span,
                     struct kv99_bytes plaintext, uint8_t id[32]);
struct kv99_object_key {
  const uint8_t *family_id, *content_id;
  uint64_t epoch;
  unsigned codec, codec_version;
  bool encrypted;
  const uint8_t *salt, *nonce;
  const uint8_t* stats_digest; /* NULL for none */
};
void kv99_make_object_key(const struct kv99_keys* keys, const struct kv99_object_key* parts, uint8_t id[32]);
void kv99_restore_chain_id(struct kv99_bytes manifest_ids, uint8_t id[32]);
void kv99_rotation_abi(const uint8_t base_abi[32], const uint8_t rotation_id[32], uint8_t id[32]);

/* ---------------------------------------------------------------- prefix-chain.md */

bool kv99_auxiliary_root(struct kv99* kv, const struct kv99_keys* keys, struct kv99_bytes pairs,
                         uint8_t root[32]);
struct kv99_prefix_node {
  uint64_t tokens; /* up to and with this block */
  bool reusable;
  uint8_t id[32];
};
struct kv99_input_cut {
  uint8_t token_root[32], auxiliary_root[32];
  uint64_t token_count;
  const struct kv99_prefix_node* nodes;
  size_t node_count;
};
/* @param tokens  u32 little-endian each */
bool kv99_derive_input_cut(struct kv99* kv, const struct kv99_keys* keys, const uint8_t model_id[32],
                           const uint8_t family_id[32], struct kv99_bytes pairs, struct kv99_bytes tokens,
                           struct kv99_input_cut* cut);

/* Cut chain. Policy flat: head_tokens is 0 and tail_stride the stride. */
struct kv99_cut_chain {
  uint8_t key[32], tip[32];
  bool two_tier, poisoned;
  uint64_t head_tokens, head_stride, tail_stride;
  uint64_t start; /* first token of the cut that is not complete yet */
  unsigned cuts;
  uint64_t held; /* its tokens so far, which are in `mac` */
  struct kv99_hmac mac;
};
bool kv99_cut_chain_start(struct kv99* kv, struct kv99_cut_chain* chain, const uint8_t key[32],
                          const uint8_t name_space[32]);
/* The tips that these tokens complete, one after the other. */
bool kv99_cut_chain_push(struct kv99* kv, struct kv99_cut_chain* chain, struct kv99_bytes tokens,
                         struct kv99_bytes* tips);

/* ---------------------------------------------------------------- canonical-objects.md */

/* What is behind magic, version and zero word. @param zero  refusal of a zero word that is not; NULL where
 * there is none */
bool kv99_object_start(struct kv99* kv, struct kv99_bytes object, const char* magic, const char* version,
                       const char* zero, struct kv99_reader* reader);
bool kv99_object_end(struct kv99_reader* reader);
void kv99_put_object_start(struct kv99_out* out, const char* magic, bool zero_word);
/* Step 7: whether `write` makes of `value` the object that it was decoded from. */
bool kv99_object_is_canonical(struct kv99* kv, void (*write)(struct kv99_out*, const void*),
                              const void* value, struct kv99_bytes object, const char* refusal);

/* ---------------------------------------------------------------- family.md */

struct kv99_static_state {
  struct kv99_state_key key;
  uint16_t cache_kind, dtype, codec, codec_version, layout, token_axis_rule;
  uint8_t token_axis;
  uint64_t elements_per_token;
  struct kv99_shape shape;
  uint16_t dependency_count;
  struct kv99_state_key* dependencies;
};
struct kv99_family {
  const uint8_t *engine_cache_abi, *topology, *shard_map;
  uint16_t representation_mode;
  uint32_t page_size_tokens, state_count;
  struct kv99_static_state* states;
};
bool kv99_family_body(struct kv99_reader* reader, struct kv99_family* family);
bool kv99_decode_family(struct kv99* kv, struct kv99_bytes object, struct kv99_family* family);
void kv99_put_family_body(struct kv99_out* out, const struct kv99_family* family);
void kv99_write_family(struct kv99_out* out, const void* family);
bool kv99_family_rules(struct kv99* kv, const struct kv99_family* family);
/* By binary search; NULL where it finds none. */
const struct kv99_static_state* kv99_family_state(const struct kv99_family* family,
                                                  const struct kv99_state_key* key);
bool kv99_family_id(struct kv99* kv, const struct kv99_family* family, uint8_t id[32]);

/* ---------------------------------------------------------------- schema.md */

struct kv99_realized_state {
  struct kv99_state_key key;
  struct kv99_shape full, segment, strides;
  uint64_t logical_start, logical_count, physical_offset, physical_span, complete_physical, absolute_position,
      window;
  uint32_t span_count;
  struct kv99_span* spans;
};
struct kv99_atomic_group {
  uint32_t id, count;
  struct kv99_state_key* members;
};
struct kv99_schema {
  uint8_t kind; /* 0 full, 1 delta */
  uint8_t depth;
  const uint8_t *parent_id, *parent_token_root, *parent_auxiliary_root;
  uint64_t parent_tokens;
  uint32_t state_count, group_count;
  struct kv99_realized_state* states;
  struct kv99_atomic_group* groups;
  uint64_t segment_restored, complete_restored;
};
bool kv99_schema_body(struct kv99_reader* reader, struct kv99_schema* schema);
bool kv99_decode_schema(struct kv99* kv, struct kv99_bytes object, struct kv99_schema* schema);
void kv99_put_schema_body(struct kv99_out* out, const struct kv99_schema* schema);
void kv99_write_schema(struct kv99_out* out, const void* schema);

/* ---------------------------------------------------------------- state-declaration.md */

struct kv99_declaration {
  struct kv99_state_key key;
  struct kv99_shape full, segment, strides;
  uint64_t logical_start, logical_count, absolute_position, window;
  uint32_t atomic_group;
};
bool kv99_decode_declaration(struct kv99* kv, struct kv99_bytes object, struct kv99_declaration* declaration);
void kv99_write_declaration(struct kv99_out* out, const void* declaration);

/* ---------------------------------------------------------------- manifest.md */

#define KV99_REF 112u
struct kv99_chunk_ref {
  const uint8_t *content_id, *object_key, *digest;
  uint64_t epoch;
  uint32_t plaintext_bytes, object_bytes;
};
bool kv99_read_chunk_ref(struct kv99_reader* reader, struct kv99_chunk_ref* ref);
struct kv99_payload_state {
  struct kv99_state_key key;
  uint32_t ref_count;
  struct kv99_chunk_ref* refs;
};
struct kv99_manifest {
  const uint8_t* tenant;
  uint64_t epoch;
  const uint8_t* model; /* 160 bytes */
  const uint8_t *token_root, *auxiliary_root;
  uint64_t token_count;
  struct kv99_family family;
  struct kv99_schema schema;
  uint32_t payload_count;
  struct kv99_payload_state* payloads;
};
struct kv99_limits {
  uint64_t states, chunks, restored_bytes;
};
struct kv99_limits kv99_default_limits(void);
bool kv99_decode_manifest(struct kv99* kv, struct kv99_bytes object, struct kv99_manifest* manifest);
void kv99_write_manifest(struct kv99_out* out, const void* manifest);
bool kv99_manifest_rules(struct kv99* kv, const struct kv99_manifest* manifest,
                         const struct kv99_limits* limits);
void kv99_manifest_id(struct kv99_bytes object, uint8_t id[32]);

/* ---------------------------------------------------------------- chunk.md */

struct kv99_chunk_header {
  bool encrypted;
  uint16_t codec, codec_version;
  uint32_t plaintext_bytes, frame_bytes, payload_bytes, object_bytes;
  uint64_t epoch;
  const uint8_t *tenant, *family_id, *content_id, *object_key, *salt, *nonce;
  struct kv99_bytes sidecar; /* empty for none */
};
/* What the object has to be. */
struct kv99_chunk_claim {
  struct kv99_chunk_ref ref;
  const struct kv99_span* span;       /* NULL: no manifest is known, and steps 16 and 19 to 21 are left out */
  const struct kv99_state_key* state; /* with a span */
  const struct kv99_family* family;   /* with a span */
  const uint8_t *family_id, *tenant;  /* with a span */
  const struct kv99_keys* keys;       /* NULL: integrity alone. Of the reference's epoch */
};
/* Steps 1 to 15. */
bool kv99_inspect_chunk(struct kv99* kv, struct kv99_bytes object, struct kv99_chunk_header* header);
/* All steps. @param plaintext  empty for an encrypted chunk without keys */
bool kv99_open_chunk(struct kv99* kv, struct kv99_bytes object, const struct kv99_chunk_claim* claim,
                     struct kv99_chunk_header* header, struct kv99_bytes* plaintext);
bool kv99_decode_frame(struct kv99* kv, unsigned codec, struct kv99_bytes frame, uint64_t expected,
                       struct kv99_bytes* plaintext);

/* ---------------------------------------------------------------- stats-sidecar.md */

#define KV99_MAX_SIDECAR 3858u
struct kv99_sidecar {
  uint32_t channel_count, token_count;
  uint16_t sink_count;
  uint16_t channels[512][2]; /* bits of the smallest and the largest */
  uint16_t norms[768];
  struct {
    uint32_t token;
    uint16_t norm;
  } sinks[8];
};
bool kv99_decode_sidecar(struct kv99* kv, struct kv99_bytes object, struct kv99_sidecar* sidecar);
void kv99_write_sidecar(struct kv99_out* out, const void* sidecar);

/* ---------------------------------------------------------------- pack.md */

struct kv99_pack_header {
  bool encrypted;
  uint64_t stored_bytes, plaintext_bytes, epoch;
  const uint8_t *tenant, *manifest_id, *salt, *nonce;
};
/* Header inspection alone. */
bool kv99_inspect_pack(struct kv99* kv, struct kv99_bytes pack, struct kv99_pack_header* header);
/* Steps 1 to 11, which need no keys. */
bool kv99_check_pack(struct kv99* kv, struct kv99_bytes pack, struct kv99_pack_header* header);
/* Step 12 of a pack that has passed those. */
bool kv99_authenticate_pack(struct kv99* kv, struct kv99_bytes pack, const struct kv99_pack_header* header,
                            const struct kv99_keys* keys);
/* Steps 13 to 18. Without keys (NULL) an encrypted pack ends after 13 with *readable false. */
bool kv99_read_pack(struct kv99* kv, struct kv99_bytes pack, const struct kv99_pack_header* header,
                    const struct kv99_keys* keys, const struct kv99_limits* limits,
                    struct kv99_manifest* manifest, struct kv99_bytes* plaintext, bool* readable);

/* ---------------------------------------------------------------- blob.md */

/* The blob in the rows of its state. */
bool kv99_decode_blob(struct kv99* kv, struct kv99_bytes rows, uint64_t row_bytes, struct kv99_bytes* blob);

/* ---------------------------------------------------------------- pack-set.md */

void kv99_merkle_leaf(struct kv99_bytes data, uint8_t hash[32]);
/* A tree that is read leaf by leaf, with memory for its height. */
struct kv99_merkle {
  uint64_t count;
  uint8_t peaks[64][32];
};
void kv99_merkle_add(struct kv99_merkle* tree, const uint8_t leaf_hash[32]);
bool kv99_merkle_root(struct kv99* kv, const struct kv99_merkle* tree, uint8_t root[32]);
/* The audit path of leaf `index` among `count` leaf hashes. */
bool kv99_merkle_path(struct kv99* kv, const uint8_t (*leaves)[32], uint64_t count, uint64_t index,
                      uint8_t (*path)[32], size_t* length);
bool kv99_merkle_check(struct kv99* kv, const uint8_t leaf_hash[32], uint64_t index, uint64_t count,
                       const struct kv99_bytes* path, size_t length, const uint8_t root[32]);

#define KV99_SET_ENTRY 128u
struct kv99_set_entry {
  uint16_t kind; /* 1 chunk, 2 pack */
  uint64_t offset, bytes, epoch;
  const uint8_t *identity, *digest, *relation;
};
struct kv99_pack_set {
  struct kv99_bytes file;
  const uint8_t *tenant, *head, *root;
  uint64_t epoch, count;
  struct kv99_bytes inventory;
};
enum { KV99_AUTHENTICATED = 1, KV99_INTEGRITY, KV99_FRAMING };
struct kv99_set_entry kv99_read_set_entry(const struct kv99_pack_set* set, uint64_t index);
/* @param ring  NULL without keys */
bool kv99_open_set(struct kv99* kv, struct kv99_bytes file, const struct kv99_ring* ring,
                   struct kv99_pack_set* set);
/* R1 to R3. */
bool kv99_set_record(struct kv99* kv, const struct kv99_pack_set* set, uint64_t index,
                     struct kv99_bytes* object);
bool kv99_verify_set(struct kv99* kv, struct kv99_bytes file, const struct kv99_ring* ring, int* level);
bool kv99_check_set_footer(struct kv99* kv, struct kv99_bytes footer, const struct kv99_ring* ring);
/* @param record  its exact bytes; data NULL for none */
bool kv99_check_set_proof(struct kv99* kv, struct kv99_bytes proof, struct kv99_bytes record,
                          const struct kv99_ring* ring);

/* ---------------------------------------------------------------- transform.md */

#define KV99_MAX_TRANSFORM_OPS 64u
#define KV99_MAX_PERMUTATION 16384u
struct kv99_transform_op {
  uint16_t tag;
  uint16_t width;
  const uint8_t* order; /* u32 little-endian each */
  uint64_t target_bytes;
  uint16_t from, to;
  uint8_t has_scale;
  const uint8_t* scale_id;
  uint16_t direction;
  uint32_t head_dim;
};
struct kv99_transform {
  struct kv99_bytes name, source_layout;
  uint16_t op_count;
  struct kv99_transform_op* ops;
};
bool kv99_decode_transform(struct kv99* kv, struct kv99_bytes object, struct kv99_transform* transform);
void kv99_write_transform(struct kv99_out* out, const void* transform);

/* ---------------------------------------------------------------- rotation.md */

struct kv99_rotation {
  uint32_t dimension;
  const uint8_t *coefficients, *model;
  struct kv99_bytes table;
  const uint8_t* table_hash;
};
bool kv99_decode_rotation(struct kv99* kv, struct kv99_bytes object, struct kv99_rotation* rotation);
void kv99_write_rotation(struct kv99_out* out, const void* rotation);

/* ---------------------------------------------------------------- canonical-json.md */

enum kv99_json_kind {
  KV99_JSON_NULL,
  KV99_JSON_FALSE,
  KV99_JSON_TRUE,
  KV99_JSON_UNSIGNED, /* digits alone, up to 2^64 - 1 */
  KV99_JSON_NUMBER,   /* any other number */
  KV99_JSON_STRING,
  KV99_JSON_ARRAY,
  KV99_JSON_OBJECT
};
/* Values in document order. What an array or an object contains follows it up to `next`; in an object, each
 * member is the string of its key, then its value. */
struct kv99_json_node {
  uint64_t value; /* the number, or place and length of the string in `text` */
  uint32_t next;
  uint8_t kind;
};
struct kv99_json {
  struct kv99_json_node* nodes;
  size_t count;
  const uint8_t* text;
};
#define KV99_JSON_ROOT 0u
#define KV99_JSON_ABSENT UINT32_MAX
/* One JSON value, or a refusal of `category`. Keys may repeat. */
bool kv99_parse_json(struct kv99* kv, struct kv99_bytes text, int category, struct kv99_json* json);
struct kv99_bytes kv99_json_string(const struct kv99_json* json, uint32_t node);
/* The value of the last member of that name. @param count  how often it occurs; may be NULL */
uint32_t kv99_json_member(const struct kv99_json* json, uint32_t object, const char* name, unsigned* count);
/* The first key in the document that repeats another of its object, or KV99_JSON_ABSENT. */
bool kv99_json_repeat(struct kv99* kv, const struct kv99_json* json, uint32_t* node);
/* The canonical encoding; a refusal of `category` where the value has none: other numbers, repeated keys. */
bool kv99_canonical_json(struct kv99* kv, const struct kv99_json* json, int category,
                         struct kv99_bytes* bytes);
/* Strict decode, section 1.3 of handoff.md, as far as it goes without a type. */
bool kv99_strict_json(struct kv99* kv, struct kv99_bytes text, uint64_t most, struct kv99_json* json);
void kv99_put_json_string(struct kv99_out* out, struct kv99_bytes text);
bool kv99_is_hex(struct kv99_bytes text, size_t digits);       /* lower case */
void kv99_hex(const uint8_t* data, size_t size, char* digits); /* no NUL */
bool kv99_unhex(struct kv99_bytes text, bool upper_too, uint8_t* data);

/* ---------------------------------------------------------------- protocol/handoff.md, protocol/delta.md */

#define KV99_MAX_FRAME_HEADER 8388608u
#define KV99_MAX_FRAME_PAYLOAD 536870912u
#define KV99_MAX_SEGMENTS 1048576u

enum { KV99_TARGET_KV, KV99_DFLASH_CONTEXT, KV99_VISION_CONTEXT };
enum {
  KV99_NOPE_KEY,
  KV99_NOPE_VALUE,
  KV99_SWA_KEY,
  KV99_SWA_VALUE,
  KV99_NOPE_TILE,
  KV99_SWA_TILE,
  KV99_DFLASH_KEY,
  KV99_DFLASH_VALUE,
  KV99_AUXILIARY
};
struct kv99_component {
  struct kv99_bytes id, identity;
  unsigned kind;
  bool required;
};
struct kv99_segment {
  uint64_t byte_len, logical_count, logical_start;
  struct kv99_bytes component_id, element_type, sha256;
  uint32_t elements_per_token, layer, sequence;
  bool has_layer;
  unsigned role;
};
struct kv99_exact_identity {
  struct kv99_bytes adapter, chat_template, context_policy, model_revision, model, tokenizer_revision,
      tokenizer;
};
struct kv99_multimodal {
  struct kv99_bytes image_sequence, preprocessing, projector;
};
struct kv99_begin {
  struct kv99_component* components;
  const struct kv99_component** by_id; /* the same in the order of their ids, of equal ones the first first */
  size_t component_count;
  uint64_t created, expires, generation, key_epoch;
  bool deferred, has_multimodal;
  struct kv99_bytes key_id, protocol, transfer_id;
  struct kv99_exact_identity identity;
  struct kv99_multimodal multimodal;
  uint32_t* tokens;
  size_t token_count;
  struct kv99_segment* segments;
  size_t segment_count;
};
struct kv99_seal {
  struct kv99_bytes begin_sha256, descriptor_sha256, payload_sha256, transfer_id, hmac_sha256;
  uint64_t generation, total_bytes;
  uint32_t segment_count;
};
/* The typed parse of one value; a refusal is json. */
bool kv99_parse_begin(struct kv99* kv, const struct kv99_json* json, uint32_t node, struct kv99_begin* begin);
/* The index of the first component of that id, or component_count. */
size_t kv99_component_of(const struct kv99_begin* begin, struct kv99_bytes id);
bool kv99_parse_segment(struct kv99* kv, const struct kv99_json* json, uint32_t node,
                        struct kv99_segment* segment);
bool kv99_parse_seal(struct kv99* kv, const struct kv99_json* json, uint32_t node, struct kv99_seal* seal);
void kv99_write_begin(struct kv99_out* out, const void* begin);
void kv99_write_segment(struct kv99_out* out, const void* segment);
void kv99_write_seal(struct kv99_out* out, const void* seal);
void kv99_write_seal_core(struct kv99_out* out, const void* seal);

void kv99_token_digest(struct kv99_bytes tokens, uint8_t digest[32]);
void kv99_plain_tag(const uint8_t key[32], struct kv99_bytes stream, uint8_t tag[32]);
bool kv99_check_plain_tag(struct kv99* kv, const uint8_t key[32], struct kv99_bytes stream,
                          struct kv99_bytes tag);
bool kv99_domain_tag(struct kv99* kv, const uint8_t key[32], struct kv99_bytes domain,
                     struct kv99_bytes stream, uint8_t tag[32]);
bool kv99_check_domain_tag(struct kv99* kv, const uint8_t key[32], struct kv99_bytes domain,
                           struct kv99_bytes stream, struct kv99_bytes tag);
/* The key in a key file whose type, mode and links are in order. */
bool kv99_mac_key(struct kv99* kv, struct kv99_bytes content, uint8_t key[32]);

enum kv99_frame_kind {
  KV99_FRAME_BEGIN,
  KV99_FRAME_SEGMENT,
  KV99_FRAME_SEAL,
  KV99_FRAME_ACK,
  KV99_FRAME_ABORT
};
struct kv99_frame {
  enum kv99_frame_kind kind;
  size_t bytes; /* of the whole frame */
  struct kv99_begin begin;
  uint64_t cut;
  uint32_t sequence;
  bool has_descriptor;
  struct kv99_segment descriptor;
  struct kv99_bytes payload;
  struct kv99_seal seal;
  struct kv99_bytes transfer_id, reason;
  uint64_t generation;
};
/* The first frame of `stream`. @param strict  repeated keys are refused */
bool kv99_read_frame(struct kv99* kv, struct kv99_bytes stream, bool strict, struct kv99_frame* frame);

struct kv99_handoff_policy {
  const uint8_t* key; /* 32 bytes */
  struct kv99_bytes key_id;
  uint64_t min_epoch, now;
  bool strict, recorded;
  uint64_t max_segments;
  bool has_max_total;
  uint64_t max_total;
};
/* Section 6: the ranges of a transfer so far, and one descriptor, which adds its own. */
struct kv99_ranges;
struct kv99_ranges* kv99_new_ranges(struct kv99* kv);
bool kv99_check_segment(struct kv99* kv, const struct kv99_begin* begin, const struct kv99_segment* segment,
                        struct kv99_ranges* ranges);
/* Section 5, and S7 of section 12 where the policy is strict. */
bool kv99_check_begin(struct kv99* kv, const struct kv99_begin* begin,
                      const struct kv99_handoff_policy* policy);

/* The sink's calls so far, each in its place: begin, segment_ready some times, prepare_commit, commit or
 * abort. */
struct kv99_sink {
  const char* fails_at;
  bool begun, prepared, committed, aborted;
  uint64_t segments;
  /* Called with every payload that has its digest; the transfer is not authentic before its seal. May be
   * NULL. */
  void (*ready)(void* context, const struct kv99_segment* segment, struct kv99_bytes payload);
  void* context;
};
struct kv99_receiver;
/* Section 8: begin of the sink included. @return NULL after a refusal */
struct kv99_receiver* kv99_open_receiver(struct kv99* kv, const struct kv99_begin* begin,
                                         const struct kv99_handoff_policy* policy, struct kv99_sink* sink);
bool kv99_receive_declared(struct kv99_receiver* receiver, uint32_t sequence, struct kv99_bytes payload);
bool kv99_receive_deferred(struct kv99_receiver* receiver, const struct kv99_segment* segment,
                           struct kv99_bytes payload);
bool kv99_receive_seal(struct kv99_receiver* receiver, const struct kv99_seal* seal);
bool kv99_receive_commit(struct kv99_receiver* receiver);
void kv99_receive_abort(struct kv99_receiver* receiver); /* also what its end means */

struct kv99_transfer {
  struct kv99_bytes transfer_id;
  uint64_t generation, cut;
};
/* Section 10, of a recorded stream. */
bool kv99_receive(struct kv99* kv, struct kv99_bytes stream, const struct kv99_handoff_policy* policy,
                  struct kv99_sink* sink, struct kv99_transfer* transfer);

/* Section 2 of delta.md. @param draft  NULL for none. @return false where there is no schedule, or after a
 * refusal */
struct kv99_draft_geometry {
  uint32_t layers, elements, sink, window;
};
bool kv99_span_schedule(struct kv99* kv, uint64_t position, uint64_t cut,
                        const struct kv99_draft_geometry* draft, struct kv99_segment** segments,
                        size_t* count);

#ifdef __cplusplus
}
#endif
#endif
