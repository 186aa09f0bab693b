/* docs/format/state-declaration.md: one state before any payload exists. */
#include "kv99.h"

#define MAGIC "KVSTS1\0"

bool kv99_decode_declaration(struct kv99* kv, struct kv99_bytes object,
                             struct kv99_declaration* declaration) {
  struct kv99_reader reader;
  return kv99_object_start(kv, object, MAGIC, "unsupported state-schema version",
                           "state-schema reserved field is nonzero", &reader) &&
         kv99_read_state_key(&reader, &declaration->key) && kv99_read_shape(&reader, &declaration->full) &&
         kv99_read_shape(&reader, &declaration->segment) &&
         kv99_read_strides(&reader, &declaration->strides) &&
         kv99_u64(&reader, &declaration->logical_start) && kv99_u64(&reader, &declaration->logical_count) &&
         kv99_u64(&reader, &declaration->absolute_position) && kv99_u64(&reader, &declaration->window) &&
         kv99_u32(&reader, &declaration->atomic_group) && kv99_object_end(&reader) &&
         kv99_object_is_canonical(kv, kv99_write_declaration, declaration, object,
                                  "state-schema encoding is not canonical");
}

void kv99_write_declaration(struct kv99_out* out, const void* value) {
  const struct kv99_declaration* declaration = (const struct kv99_declaration*)value;
  kv99_put_object_start(out, MAGIC, true);
  kv99_put_state_key(out, &declaration->key);
  kv99_put_shape(out, &declaration->full);
  kv99_put_shape(out, &declaration->segment);
  kv99_put_shape(out, &declaration->strides);
  kv99_put_le(out, declaration->logical_start, 8);
  kv99_put_le(out, declaration->logical_count, 8);
  kv99_put_le(out, declaration->absolute_position, 8);
  kv99_put_le(out, declaration->window, 8);
  kv99_put_le(out, declaration->atomic_group, 4);
}
