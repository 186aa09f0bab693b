/* docs/format/stats-sidecar.md: what a chunk of binary16 keys looks like. */
#include "kv99.h"

#define MAGIC "KVSSC1\0"

static bool finite(uint16_t half) {
  return (half & 0x7c00) != 0x7c00;
}

/* A finite half as a number in the same order, both zeros equal. */
static int value_of(uint16_t half) {
  return half & 0x8000 ? -(half & 0x7fff) : half;
}

/* A norm in IEEE total order: -0 below +0. */
static int rank_of(uint16_t norm) {
  return norm == 0x8000 ? -1 : norm;
}

/* Whether the sinks are the largest norms, of equal ones the earlier token. */
static bool sinks_are_the_largest(const struct kv99_sidecar* sidecar) {
  bool chosen[768] = {false};
  unsigned i, token;
  if (sidecar->sink_count > sidecar->token_count) return false;
  for (i = 0; i < sidecar->sink_count; ++i) {
    unsigned best = sidecar->token_count;
    for (token = 0; token < sidecar->token_count; ++token)
      if (!chosen[token] &&
          (best == sidecar->token_count || rank_of(sidecar->norms[token]) > rank_of(sidecar->norms[best])))
        best = token;
    if (sidecar->sinks[i].token != best || sidecar->sinks[i].norm != sidecar->norms[best]) return false;
    chosen[best] = true;
  }
  return true;
}

static bool fields(struct kv99_reader* reader, struct kv99_sidecar* sidecar) {
  struct kv99* kv = reader->kv;
  uint16_t zero;
  unsigned i;
  if (!kv99_u32(reader, &sidecar->channel_count)) return false;
  if (sidecar->channel_count == 0 || sidecar->channel_count > 512)
    return kv99_refuse(kv, KV99_BOUNDS, "stats sidecar channel count is outside bounds");
  for (i = 0; i < sidecar->channel_count; ++i) {
    uint16_t* range = sidecar->channels[i];
    if (!kv99_u16(reader, &range[0]) || !kv99_u16(reader, &range[1])) return false;
    if (!finite(range[0]) || !finite(range[1]) || value_of(range[0]) > value_of(range[1]))
      return kv99_refuse(kv, KV99_SEMANTICS, "stats sidecar channel range is not finite and ordered");
  }
  if (!kv99_u32(reader, &sidecar->token_count)) return false;
  if (sidecar->token_count == 0 || sidecar->token_count > 768)
    return kv99_refuse(kv, KV99_BOUNDS, "stats sidecar token count is outside bounds");
  for (i = 0; i < sidecar->token_count; ++i) {
    if (!kv99_u16(reader, &sidecar->norms[i])) return false;
    if (!finite(sidecar->norms[i]) || value_of(sidecar->norms[i]) < 0)
      return kv99_refuse(kv, KV99_SEMANTICS, "stats sidecar key norm is not a finite non-negative value");
  }
  if (!kv99_u16(reader, &sidecar->sink_count)) return false;
  if (sidecar->sink_count == 0 || sidecar->sink_count > 8)
    return kv99_refuse(kv, KV99_BOUNDS, "stats sidecar sink count is outside bounds");
  for (i = 0; i < sidecar->sink_count; ++i) {
    if (!kv99_u32(reader, &sidecar->sinks[i].token) || !kv99_u16(reader, &sidecar->sinks[i].norm) ||
        !kv99_u16(reader, &zero))
      return false;
    if (zero != 0) return kv99_refuse(kv, KV99_RESERVED, "stats sidecar sink reserved field is nonzero");
  }
  return true;
}

bool kv99_decode_sidecar(struct kv99* kv, struct kv99_bytes object, struct kv99_sidecar* sidecar) {
  struct kv99_reader reader;
  if (object.size > KV99_MAX_SIDECAR)
    return kv99_refuse(kv, KV99_BOUNDS, "stats sidecar exceeds the chunk header capacity");
  if (!kv99_object_start(kv, object, MAGIC, "unsupported stats sidecar version",
                         "stats sidecar reserved field is nonzero", &reader) ||
      !fields(&reader, sidecar) || !kv99_object_end(&reader))
    return false;
  if (!sinks_are_the_largest(sidecar))
    return kv99_refuse(kv, KV99_SEMANTICS, "stats sidecar sink scores are not the exact top-m norms");
  return kv99_object_is_canonical(kv, kv99_write_sidecar, sidecar, object, "stats sidecar is not canonical");
}

void kv99_write_sidecar(struct kv99_out* out, const void* value) {
  const struct kv99_sidecar* sidecar = (const struct kv99_sidecar*)value;
  unsigned i;
  kv99_put_object_start(out, MAGIC, true);
  kv99_put_le(out, sidecar->channel_count, 4);
  for (i = 0; i < sidecar->channel_count; ++i) {
    kv99_put_le(out, sidecar->channels[i][0], 2);
    kv99_put_le(out, sidecar->channels[i][1], 2);
  }
  kv99_put_le(out, sidecar->token_count, 4);
  for (i = 0; i < sidecar->token_count; ++i) kv99_put_le(out, sidecar->norms[i], 2);
  kv99_put_le(out, sidecar->sink_count, 2);
  for (i = 0; i < sidecar->sink_count; ++i) {
    kv99_put_le(out, sidecar->sinks[i].token, 4);
    kv99_put_le(out, sidecar->sinks[i].norm, 2);
    kv99_put_le(out, 0, 2);
  }
}
