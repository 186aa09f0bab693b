/* docs/protocol/delta.md, section 2: the span schedule. */
#include <string.h>

#include "kv99.h"

#define ALIGNMENT 256u
#define TILE 512u
#define WINDOW 2048u
#define ROW_ELEMENTS 6656u

struct rows {
  struct kv99* kv;
  struct kv99_segment* rows;
  size_t count, capacity;
};

/* @param shape  component, role, layer, element type and size of a row; the rest is filled in */
static bool emit(struct rows* rows, struct kv99_segment shape, uint64_t start, uint64_t tokens) {
  const uint64_t element_bytes = shape.element_type.data[1] == '1' ? 2 : 4; /* f16_le, f32_le */
  void* array = rows->rows;
  if (rows->count >= KV99_MAX_SEGMENTS)
    return kv99_refuse(rows->kv, KV99_BOUNDS, "the schedule has too many segments");
  if (!kv99_grow(rows->kv, &array, rows->count, &rows->capacity, sizeof *rows->rows)) return false;
  rows->rows = (struct kv99_segment*)array;
  shape.sequence = (uint32_t)rows->count;
  shape.logical_start = start;
  shape.logical_count = tokens;
  /* Both factors fit u32, so that only the width can carry beyond u64. */
  if (!kv99_multiply(tokens * shape.elements_per_token, element_bytes, &shape.byte_len))
    return kv99_refuse(rows->kv, KV99_BOUNDS, "segment byte geometry overflow");
  shape.sha256 = kv99_text("");
  rows->rows[rows->count++] = shape;
  return true;
}

static struct kv99_segment row_shape(const char* component, const char* element_type, uint32_t elements,
                                     unsigned role) {
  struct kv99_segment shape;
  memset(&shape, 0, sizeof shape);
  shape.component_id = kv99_text(component);
  shape.element_type = kv99_text(element_type);
  shape.elements_per_token = elements;
  shape.role = role;
  return shape;
}

static bool target_rows(struct rows* rows, uint64_t position, uint64_t cut) {
  static const uint32_t heads[3] = {0, 17, 34};
  const uint64_t window = position > WINDOW ? position - WINDOW : 0;
  const uint64_t window_start = cut > window ? cut : window;
  struct kv99_segment shape = row_shape("target", "f16_le", ROW_ELEMENTS, KV99_SWA_TILE);
  uint64_t s;
  unsigned head;
  shape.has_layer = true;
  for (head = 0; head < 3; ++head) {
    shape.layer = heads[head];
    for (s = cut; s < position; s += TILE) {
      const uint64_t end = position - s < TILE ? position : s + TILE;
      const uint64_t first = s > window_start ? s : window_start;
      if (end > window_start && !emit(rows, shape, first, end - first)) return false;
    }
  }
  shape = row_shape("target", "f16_le", ROW_ELEMENTS, KV99_NOPE_TILE);
  for (s = cut; s < position; s += TILE)
    if (!emit(rows, shape, s, position - s < TILE ? position - s : TILE)) return false;
  return true;
}

static bool draft_rows(struct rows* rows, uint64_t position, const struct kv99_draft_geometry* draft) {
  const bool whole = position <= (uint64_t)draft->sink + draft->window;
  uint32_t layer;
  unsigned role;
  for (layer = 0; layer < draft->layers; ++layer) {
    for (role = KV99_DFLASH_KEY; role <= KV99_DFLASH_VALUE; ++role) {
      struct kv99_segment shape = row_shape("dflash", "f32_le", draft->elements, role);
      shape.has_layer = true;
      shape.layer = layer;
      if (whole ? !emit(rows, shape, 0, position)
                : !emit(rows, shape, 0, draft->sink) ||
                      !emit(rows, shape, position - draft->window, draft->window))
        return false;
    }
  }
  return true;
}

bool kv99_span_schedule(struct kv99* kv, uint64_t position, uint64_t cut,
                        const struct kv99_draft_geometry* draft, struct kv99_segment** segments,
                        size_t* count) {
  struct rows rows = {NULL, NULL, 0, 0};
  rows.kv = kv;
  /* More tokens than a prompt can have are no schedule of it. */
  if (position == 0 || cut >= position || cut % ALIGNMENT != 0 || position > UINT32_MAX) return false;
  if (!target_rows(&rows, position, cut) || (draft != NULL && !draft_rows(&rows, position, draft)))
    return false;
  *segments = rows.rows;
  *count = rows.count;
  return true;
}
