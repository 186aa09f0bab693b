/* docs/protocol/handoff.md, sections 6 to 8 and 10: descriptors, the atomic receiver, a recorded stream. */
#include <string.h>

#include "kv99.h"

/* ---- section 6 */

/* The token ranges of all planes so far: a treap, ordered by plane and first token. */
struct range {
  uint32_t component, role, has_layer, layer;
  uint64_t start, end;
  uint64_t priority;
  uint32_t left, right; /* index + 1, or 0 */
};

struct kv99_ranges {
  struct range* nodes;
  size_t count, capacity;
  uint32_t root;
};

struct kv99_ranges* kv99_new_ranges(struct kv99* kv) {
  return (struct kv99_ranges*)kv99_alloc(kv, 1, sizeof(struct kv99_ranges));
}

static int compare_planes(const struct range* a, const struct range* b) {
  if (a->component != b->component) return a->component < b->component ? -1 : 1;
  if (a->role != b->role) return a->role < b->role ? -1 : 1;
  if (a->has_layer != b->has_layer) return a->has_layer < b->has_layer ? -1 : 1;
  if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
  return 0;
}

static int compare_ranges(const struct range* a, const struct range* b) {
  const int order = compare_planes(a, b);
  if (order != 0) return order;
  return a->start < b->start ? -1 : a->start > b->start;
}

/* Whether it meets one of its plane. Those that are there are disjoint, so that the two neighbours tell. */
static bool overlaps(const struct kv99_ranges* ranges, const struct range* new_one) {
  uint32_t at = ranges->root;
  while (at != 0) {
    const struct range* node = &ranges->nodes[at - 1];
    const int order = compare_planes(new_one, node);
    if (order == 0 && new_one->start < node->end && node->start < new_one->end) return true;
    at = (order != 0 ? order : new_one->start < node->start ? -1 : 1) < 0 ? node->left : node->right;
  }
  return false;
}

static uint64_t mixed(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

/* Splits the tree at `at` into what is below `key` and what is above. */
static void split(struct range* nodes, uint32_t at, const struct range* key, uint32_t* below,
                  uint32_t* above) {
  while (at != 0) {
    struct range* node = &nodes[at - 1];
    if (compare_ranges(node, key) < 0) {
      *below = at;
      below = &node->right;
      at = node->right;
    } else {
      *above = at;
      above = &node->left;
      at = node->left;
    }
  }
  *below = 0;
  *above = 0;
}

static bool record(struct kv99* kv, struct kv99_ranges* ranges, const struct range* new_one) {
  void* nodes = ranges->nodes;
  uint32_t* link = &ranges->root;
  struct range* node;
  if (!kv99_grow(kv, &nodes, ranges->count, &ranges->capacity, sizeof *ranges->nodes)) return false;
  ranges->nodes = (struct range*)nodes;
  node = &ranges->nodes[ranges->count];
  *node = *new_one;
  node->priority = mixed(ranges->count);
  while (*link != 0 && ranges->nodes[*link - 1].priority >= node->priority)
    link = compare_ranges(&ranges->nodes[*link - 1], node) < 0 ? &ranges->nodes[*link - 1].right
                                                               : &ranges->nodes[*link - 1].left;
  split(ranges->nodes, *link, node, &node->left, &node->right);
  *link = (uint32_t)++ranges->count;
  return true;
}

bool kv99_check_segment(struct kv99* kv, const struct kv99_begin* begin, const struct kv99_segment* segment,
                        struct kv99_ranges* ranges) {
  const size_t component = kv99_component_of(begin, segment->component_id);
  struct range range;
  uint64_t bytes, width, end;
  if (component == begin->component_count || segment->logical_count == 0 ||
      segment->elements_per_token == 0 || segment->byte_len == 0)
    return kv99_refuse(kv, KV99_VALIDATION, "segment has unknown component or empty range");
  if (!kv99_is_hex(segment->sha256, 64))
    return kv99_refuse(kv, KV99_VALIDATION, "segment digest must be lowercase SHA-256");
  width = kv99_same(segment->element_type, kv99_text("f16_le"))   ? 2
          : kv99_same(segment->element_type, kv99_text("f32_le")) ? 4
                                                                  : 0;
  if (width == 0) return kv99_refuse(kv, KV99_VALIDATION, "unsupported segment element type");
  if (!kv99_multiply(segment->logical_count, segment->elements_per_token, &bytes) ||
      !kv99_multiply(bytes, width, &bytes))
    return kv99_refuse(kv, KV99_VALIDATION, "segment byte geometry overflow");
  if (bytes != segment->byte_len)
    return kv99_refuse(kv, KV99_VALIDATION, "segment byte length disagrees with row geometry");
  if (!kv99_add(segment->logical_start, segment->logical_count, &end))
    return kv99_refuse(kv, KV99_VALIDATION, "segment logical range overflow");
  memset(&range, 0, sizeof range);
  range.component = (uint32_t)component;
  range.role = segment->role;
  range.has_layer = segment->has_layer;
  range.layer = segment->layer;
  range.start = segment->logical_start;
  range.end = end;
  if (overlaps(ranges, &range)) return kv99_refuse(kv, KV99_VALIDATION, "overlapping segment logical ranges");
  return record(kv, ranges, &range);
}

/* ---- section 8 */

enum state { RECEIVING, PREPARED, COMMITTED, ABORTED };

struct kv99_receiver {
  struct kv99* kv;
  struct kv99_arena* arena; /* of what outlives a call */
  const struct kv99_begin* begin;
  const struct kv99_handoff_policy* policy;
  struct kv99_sink* sink;
  enum state state;
  uint64_t next, total_bytes;
  struct kv99_sha256 descriptors, payloads;
  struct kv99_ranges* ranges;
  bool* seen; /* by component */
  struct kv99_segment*
      targets; /* of a deferred transfer: role, layer and range of what came for the target */
  size_t target_count, target_capacity;
};

static bool sink_call(struct kv99_receiver* r, const char* name) {
  if (r->sink->fails_at == NULL || strcmp(r->sink->fails_at, name) != 0) return true;
  return kv99_refuse_about(r->kv, KV99_VALIDATION, "sink ", kv99_text(name), "");
}

struct kv99_receiver* kv99_open_receiver(struct kv99* kv, const struct kv99_begin* begin,
                                         const struct kv99_handoff_policy* policy, struct kv99_sink* sink) {
  struct kv99_receiver* r = (struct kv99_receiver*)kv99_alloc(kv, 1, sizeof *r);
  if (r == NULL) return NULL;
  r->kv = kv;
  r->arena = kv->arena;
  r->begin = begin;
  r->policy = policy;
  r->sink = sink;
  r->ranges = kv99_new_ranges(kv);
  r->seen = (bool*)kv99_alloc(kv, begin->component_count, sizeof *r->seen);
  if (r->ranges == NULL || r->seen == NULL) return NULL;
  kv99_sha256_start(&r->descriptors);
  kv99_sha256_start(&r->payloads);
  sink->begun = true;
  return sink_call(r, "begin") ? r : NULL;
}

void kv99_receive_abort(struct kv99_receiver* r) {
  if (r->state != RECEIVING && r->state != PREPARED) return;
  r->sink->aborted = true;
  r->state = ABORTED;
}

/* Abort, and the refusal that is set. */
static bool stop(struct kv99_receiver* r) {
  kv99_receive_abort(r);
  return false;
}

static bool fail(struct kv99_receiver* r, const char* text) {
  kv99_receive_abort(r);
  return kv99_refuse(r->kv, KV99_VALIDATION, text);
}

static bool accept(struct kv99_receiver* r, const struct kv99_segment* segment, struct kv99_bytes payload) {
  struct kv99_arena inner = {NULL}, *outer;
  struct kv99_bytes canonical;
  uint8_t hash[32];
  char digits[64];
  bool written;
  size_t component;
  kv99_hash(payload, hash);
  kv99_hex(hash, 32, digits);
  if (payload.size != segment->byte_len || !kv99_same(segment->sha256, kv99_bytes_of(digits, 64)))
    return fail(r, "segment length or digest mismatch");
  outer = kv99_enter(r->kv, &inner);
  written = kv99_write(r->kv, kv99_write_segment, segment, &canonical);
  if (written) kv99_sha256_add(&r->descriptors, canonical.data, canonical.size);
  kv99_leave(r->kv, outer);
  if (!written) return stop(r);
  kv99_sha256_add(&r->payloads, payload.data, payload.size);
  if (!kv99_add(r->total_bytes, payload.size, &r->total_bytes)) return fail(r, "total byte count overflow");
  ++r->sink->segments;
  if (r->sink->ready != NULL) r->sink->ready(r->sink->context, segment, payload);
  if (!sink_call(r, "segment_ready")) return stop(r);
  component = kv99_component_of(r->begin, segment->component_id);
  if (component < r->begin->component_count) r->seen[component] = true;
  ++r->next;
  return true;
}

bool kv99_receive_declared(struct kv99_receiver* r, uint32_t sequence, struct kv99_bytes payload) {
  if (r->state != RECEIVING) return fail(r, "segment outside receiving state");
  if (r->begin->deferred || r->next >= r->begin->segment_count) return fail(r, "extra segment");
  if (r->begin->segments[r->next].sequence != sequence)
    return fail(r, "dropped, duplicate, or reordered segment");
  return accept(r, &r->begin->segments[r->next], payload);
}

/* What the schedule of a cut is compared with. */
static bool remember_target(struct kv99_receiver* r, const struct kv99_segment* segment) {
  const size_t component = kv99_component_of(r->begin, segment->component_id);
  struct kv99_arena* outer = r->kv->arena;
  void* targets = r->targets;
  bool grown;
  if (component == r->begin->component_count || r->begin->components[component].kind != KV99_TARGET_KV)
    return true;
  r->kv->arena = r->arena;
  grown = kv99_grow(r->kv, &targets, r->target_count, &r->target_capacity, sizeof *r->targets);
  r->kv->arena = outer;
  if (!grown) return false;
  r->targets = (struct kv99_segment*)targets;
  r->targets[r->target_count] = *segment;
  /* Its texts are those of a frame that is about to go. */
  r->targets[r->target_count].component_id = r->begin->components[component].id;
  r->targets[r->target_count].element_type = r->targets[r->target_count].sha256 = kv99_text("");
  ++r->target_count;
  return true;
}

bool kv99_receive_deferred(struct kv99_receiver* r, const struct kv99_segment* segment,
                           struct kv99_bytes payload) {
  struct kv99_arena* outer = r->kv->arena;
  bool checked;
  if (r->state != RECEIVING || !r->begin->deferred)
    return fail(r, "deferred segment outside deferred receiving mode");
  if (r->policy->strict && r->next >= r->policy->max_segments) {
    kv99_receive_abort(r);
    return kv99_refuse_number(r->kv, KV99_VALIDATION, "transfer exceeds ", r->policy->max_segments,
                              " segments");
  }
  if (segment->sequence != r->next) return fail(r, "dropped, duplicate, or reordered deferred segment");
  r->kv->arena = r->arena;
  checked = kv99_check_segment(r->kv, r->begin, segment, r->ranges);
  r->kv->arena = outer;
  if (!checked) return stop(r);
  if (r->policy->has_max_total && segment->byte_len > r->policy->max_total - r->total_bytes) {
    kv99_receive_abort(r);
    return kv99_refuse_number(r->kv, KV99_VALIDATION, "transfer exceeds ", r->policy->max_total,
                              " payload bytes");
  }
  return remember_target(r, segment) ? accept(r, segment, payload) : stop(r);
}

static bool is_digest(struct kv99_bytes text, const uint8_t hash[32]) {
  char digits[64];
  kv99_hex(hash, 32, digits);
  return kv99_same(text, kv99_bytes_of(digits, 64));
}

/* Steps 3 to 5 of prepare_commit. */
static bool seal_rules(struct kv99_receiver* r, const struct kv99_seal* seal) {
  struct kv99_sha256 descriptors = r->descriptors, payloads = r->payloads;
  uint8_t begin_hash[32], descriptor_hash[32], payload_hash[32];
  struct kv99_bytes canonical;
  if (!kv99_write(r->kv, kv99_write_begin, r->begin, &canonical)) return false;
  kv99_hash(canonical, begin_hash);
  kv99_sha256_end(&descriptors, descriptor_hash);
  kv99_sha256_end(&payloads, payload_hash);
  if (!is_digest(seal->begin_sha256, begin_hash) || !is_digest(seal->descriptor_sha256, descriptor_hash) ||
      !is_digest(seal->payload_sha256, payload_hash) || seal->generation != r->begin->generation ||
      seal->segment_count != r->next || seal->total_bytes != r->total_bytes ||
      !kv99_same(seal->transfer_id, r->begin->transfer_id))
    return kv99_refuse(r->kv, KV99_VALIDATION, "seal identity or digest mismatch");
  if (!kv99_is_hex(seal->hmac_sha256, 64))
    return kv99_refuse(r->kv, KV99_VALIDATION, "seal HMAC digest must be lowercase SHA-256");
  return kv99_write(r->kv, kv99_write_seal_core, seal, &canonical) &&
         kv99_check_plain_tag(r->kv, r->policy->key, canonical, seal->hmac_sha256);
}

bool kv99_receive_seal(struct kv99_receiver* r, const struct kv99_seal* seal) {
  struct kv99_arena inner = {NULL}, *outer;
  size_t i;
  bool good;
  if (r->state != RECEIVING || (r->begin->deferred ? r->next == 0 : r->next != r->begin->segment_count))
    return fail(r, "seal before every segment");
  for (i = 0; r->begin->deferred && i < r->begin->component_count; ++i)
    if (r->begin->components[i].required && !r->seen[i])
      return fail(r, "required component has no deferred segment");
  outer = kv99_enter(r->kv, &inner);
  good = seal_rules(r, seal);
  kv99_leave(r->kv, outer);
  if (!good) return stop(r);
  r->sink->prepared = true;
  if (!sink_call(r, "prepare_commit")) return stop(r);
  r->state = PREPARED;
  return true;
}

bool kv99_receive_commit(struct kv99_receiver* r) {
  if (r->state != PREPARED) return fail(r, "commit before prepared seal");
  r->sink->committed = true;
  if (!sink_call(r, "commit")) return stop(r);
  r->state = COMMITTED;
  return true;
}

/* ---- delta.md, section 3, as far as it goes without a session */

static bool same_row(const struct kv99_segment* a, const struct kv99_segment* b, bool declared) {
  return a->role == b->role && a->has_layer == b->has_layer && a->layer == b->layer &&
         a->logical_start == b->logical_start && a->logical_count == b->logical_count &&
         (!declared || (a->sequence == b->sequence && a->elements_per_token == b->elements_per_token &&
                        kv99_same(a->element_type, b->element_type)));
}

static bool cut_rules(struct kv99_receiver* r, uint64_t cut) {
  const bool declared = !r->begin->deferred;
  const char* differs = declared ? "declared target schedule is not the span schedule for the prefix cut"
                                 : "deferred target stream is not the span schedule for the prefix cut";
  struct kv99_segment* rows;
  size_t count, at = 0, i;
  if (cut % 256 != 0 || cut >= r->begin->token_count)
    return kv99_refuse(r->kv, KV99_VALIDATION, "delta prefix cut is not a 256-aligned cut inside the prompt");
  r->kv->category = 0;
  if (!kv99_span_schedule(r->kv, r->begin->token_count, cut, NULL, &rows, &count))
    return r->kv->category != 0
               ? false
               : kv99_refuse(r->kv, KV99_VALIDATION,
                             declared ? differs : "delta prefix cut cannot form a span schedule");
  for (i = 0; i < (declared ? r->begin->segment_count : r->target_count); ++i) {
    const struct kv99_segment* row = declared ? &r->begin->segments[i] : &r->targets[i];
    const size_t component = kv99_component_of(r->begin, row->component_id);
    if (component == r->begin->component_count || r->begin->components[component].kind != KV99_TARGET_KV)
      continue;
    if (at == count || !same_row(row, &rows[at], declared))
      return kv99_refuse(r->kv, KV99_VALIDATION, differs);
    ++at;
  }
  return at == count || kv99_refuse(r->kv, KV99_VALIDATION, differs);
}

/* ---- section 10 */

static bool declared_bytes(struct kv99* kv, const struct kv99_begin* begin,
                           const struct kv99_handoff_policy* policy) {
  uint64_t sum = 0;
  size_t i;
  for (i = 0; policy->has_max_total && i < begin->segment_count; ++i)
    if (!kv99_add(sum, begin->segments[i].byte_len, &sum) || sum > policy->max_total)
      return kv99_refuse_number(kv, KV99_VALIDATION, "transfer exceeds ", policy->max_total,
                                " payload bytes");
  return true;
}

static bool expiry(struct kv99* kv, const struct kv99_begin* begin, uint64_t now) {
  char text[160] = "handoff expired at ";
  size_t size = strlen(text);
  if (now <= begin->expires) return true;
  size += kv99_decimal(text + size, begin->expires);
  strcpy(text + size, " unix ms while the receiver clock reads ");
  return kv99_refuse_number(kv, KV99_VALIDATION, text, now, " unix ms: check producer/receiver clock skew");
}

/* One frame behind the begin. @param done  set once the seal has been committed */
static bool next_frame(struct kv99_receiver* r, struct kv99_bytes* rest, uint64_t cut, bool* done) {
  struct kv99_frame* frame = (struct kv99_frame*)kv99_alloc(r->kv, 1, sizeof *frame);
  if (frame == NULL || !kv99_read_frame(r->kv, *rest, r->policy->strict, frame)) return false;
  *rest = kv99_part(*rest, frame->bytes, rest->size - frame->bytes);
  switch (frame->kind) {
    case KV99_FRAME_BEGIN: return kv99_refuse(r->kv, KV99_VALIDATION, "duplicate begin");
    case KV99_FRAME_ACK: return kv99_refuse(r->kv, KV99_VALIDATION, "producer sent an ACK to the receiver");
    case KV99_FRAME_ABORT: return kv99_refuse_about(r->kv, KV99_PRODUCER_ABORT, "", frame->reason, "");
    case KV99_FRAME_SEGMENT:
      return frame->has_descriptor ? kv99_receive_deferred(r, &frame->descriptor, frame->payload)
                                   : kv99_receive_declared(r, frame->sequence, frame->payload);
    case KV99_FRAME_SEAL: break;
  }
  if (r->policy->recorded && rest->size != 0)
    return kv99_refuse(r->kv, KV99_INVALID_FRAME, "recorded stream carries bytes after the seal");
  *done = true;
  return kv99_receive_seal(r, &frame->seal) && (cut == 0 || cut_rules(r, cut)) && kv99_receive_commit(r);
}

bool kv99_receive(struct kv99* kv, struct kv99_bytes stream, const struct kv99_handoff_policy* policy,
                  struct kv99_sink* sink, struct kv99_transfer* transfer) {
  struct kv99_frame* first = (struct kv99_frame*)kv99_alloc(kv, 1, sizeof *first);
  struct kv99_receiver* r;
  bool good = true, done = false;
  if (first == NULL || !kv99_read_frame(kv, stream, policy->strict, first)) return false;
  if (first->kind != KV99_FRAME_BEGIN) return kv99_refuse(kv, KV99_MISSING_BEGIN, "expected begin frame");
  if (!expiry(kv, &first->begin, policy->now) || !kv99_check_begin(kv, &first->begin, policy) ||
      !declared_bytes(kv, &first->begin, policy))
    return false;
  r = kv99_open_receiver(kv, &first->begin, policy, sink);
  if (r == NULL) return false;
  stream = kv99_part(stream, first->bytes, stream.size - first->bytes);
  while (good && !done) {
    struct kv99_arena inner = {NULL}, *outer = kv99_enter(kv, &inner);
    good = next_frame(r, &stream, first->cut, &done);
    kv99_leave(kv, outer);
  }
  kv99_receive_abort(r);
  transfer->transfer_id = first->begin.transfer_id;
  transfer->generation = first->begin.generation;
  transfer->cut = first->cut;
  return good;
}
