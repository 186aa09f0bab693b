/* The line protocol of conformance/README.md: reading requests, words with their edits, writing answers. */
#include "line_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINE_BYTES (UINT64_C(2) * KV99_MAX_WORD + 65536)
#define MAX_WORDS 1048576u
/* What one request may take: a word, what is made of it, and the tables of a parsed object. */
#define ROOM ((size_t)(SIZE_MAX / 2 < UINT64_C(6442450944) ? SIZE_MAX / 2 : UINT64_C(6442450944)))

/* ---- answers */

void kv99_answer_raw(struct kv99_call* call, const void* data, size_t size) {
  if (call->no_memory) return;
  if (size > call->capacity - call->size) {
    const size_t capacity = 2 * call->capacity + size + 256;
    char* larger = (char*)realloc(call->answer, capacity);
    if (larger == NULL) {
      call->no_memory = true;
      return;
    }
    call->answer = larger;
    call->capacity = capacity;
  }
  if (size != 0) memcpy(call->answer + call->size, data, size);
  call->size += size;
}

void kv99_answer_bytes(struct kv99_call* call, struct kv99_bytes bytes) {
  size_t i;
  kv99_answer_raw(call, "\t", 1);
  if (bytes.size == 0) kv99_answer_raw(call, "-", 1);
  for (i = 0; i < bytes.size;) {
    char digits[512];
    const size_t n = bytes.size - i < 256 ? bytes.size - i : 256;
    kv99_hex(bytes.data + i, n, digits);
    kv99_answer_raw(call, digits, 2 * n);
    i += n;
  }
}

void kv99_answer_number(struct kv99_call* call, uint64_t value) {
  char digits[21];
  kv99_decimal(digits, value);
  kv99_answer_name(call, digits);
}

void kv99_answer_name(struct kv99_call* call, const char* name) {
  kv99_answer_raw(call, "\t", 1);
  kv99_answer_raw(call, name, strlen(name));
}

void kv99_answer_refusal(struct kv99_call* call) {
  /* HANDOFF.md has a word of its own for this category. */
  const char* token = call->kv.category == KV99_INVALID_FRAME ? "invalid" : kv99_token(call->kv.category);
  size_t i;
  kv99_answer_raw(call, token, strlen(token));
  kv99_answer_raw(call, ":", 1);
  for (i = 0; i < call->kv.text.size; ++i) {
    const uint8_t c = call->kv.text.data[i];
    char escaped[4] = {'\\', 'x', 0, 0};
    if (c >= 0x20 && c <= 0x7e && c != '\\') {
      kv99_answer_raw(call, &call->kv.text.data[i], 1);
    } else {
      kv99_hex(&c, 1, escaped + 2);
      kv99_answer_raw(call, escaped, sizeof escaped);
    }
  }
}

/* ---- words */

bool kv99_more(const struct kv99_call* call) {
  return call->next < call->count;
}

bool kv99_word(struct kv99_call* call, struct kv99_bytes* word) {
  if (!kv99_more(call)) return kv99_fault(call, "a word is missing");
  *word = call->words[call->next++];
  return true;
}

static bool parse_number(struct kv99_bytes text, uint64_t* value) {
  size_t i;
  *value = 0;
  if (text.size == 0 || (text.size > 1 && text.data[0] == '0')) return false;
  for (i = 0; i < text.size; ++i)
    if (text.data[i] < '0' || text.data[i] > '9' || !kv99_multiply(*value, 10, value) ||
        !kv99_add(*value, (uint64_t)(text.data[i] - '0'), value))
      return false;
  return true;
}

bool kv99_number_word(struct kv99_call* call, uint64_t* value) {
  struct kv99_bytes word;
  return kv99_word(call, &word) && (parse_number(word, value) || kv99_fault(call, "not a number"));
}

bool kv99_flag_word(struct kv99_call* call, bool* value) {
  uint64_t number;
  if (!kv99_number_word(call, &number)) return false;
  *value = number == 1;
  return number <= 1 || kv99_fault(call, "not a flag");
}

static const struct kv99_slot* find_slot(const struct kv99_session* session, struct kv99_bytes name) {
  size_t i;
  for (i = 0; i < KV99_MAX_SLOTS; ++i)
    if (session->slots[i].name[0] != 0 && kv99_same(kv99_text(session->slots[i].name), name))
      return &session->slots[i];
  return NULL;
}

/* The text up to the next separator, which is left out of both. */
static struct kv99_bytes cut_off(struct kv99_bytes* rest, uint8_t separator) {
  struct kv99_bytes head = *rest;
  size_t i;
  for (i = 0; i < rest->size; ++i) {
    if (rest->data[i] != separator) continue;
    head.size = i;
    *rest = kv99_part(*rest, i + 1, rest->size - i - 1);
    return head;
  }
  *rest = kv99_part(*rest, rest->size, 0);
  return head;
}

static bool unhex(struct kv99_call* call, struct kv99_bytes digits, struct kv99_bytes* bytes) {
  uint8_t* data = (uint8_t*)kv99_alloc(&call->kv, digits.size / 2, 1);
  if (data == NULL) return kv99_fault(call, "out of memory");
  if (!kv99_unhex(digits, false, data)) return kv99_fault(call, "not lower-case hex of even length");
  *bytes = kv99_bytes_of(data, digits.size / 2);
  return true;
}

/* Bytes that are being edited. */
struct draft {
  uint8_t* data;
  size_t size, capacity;
};

static bool reserve(struct kv99_call* call, struct draft* draft, size_t more) {
  uint8_t* data;
  if (more > KV99_MAX_WORD || draft->size > KV99_MAX_WORD - more)
    return kv99_fault(call, "bytes grow too long");
  if (draft->size + more <= draft->capacity) return true;
  draft->capacity = draft->size + more + draft->size / 2;
  data = (uint8_t*)kv99_alloc(&call->kv, draft->capacity, 1);
  if (data == NULL) return kv99_fault(call, "out of memory");
  kv99_copy(data, draft->data, draft->size);
  draft->data = data;
  return true;
}

/* Where frame `index` begins and ends, by the lengths of the frames. */
static bool find_frame(const struct draft* draft, uint64_t index, size_t* begin, size_t* end) {
  size_t at = 0;
  for (;; --index) {
    const uint8_t* p = draft->data + at;
    const size_t left = draft->size - at;
    uint64_t size = left;
    unsigned i;
    if (left == 0) return false;
    if (left >= 20) {
      uint64_t header = 0, payload = 0;
      if (memcmp(p, "KVHF", 4) == 0) {
        for (i = 0; i < 4; ++i) header = header << 8 | p[8 + i];
        for (i = 0; i < 8; ++i) payload = payload << 8 | p[12 + i];
      } else {
        header = kv99_le32(p + 8);
        payload = kv99_le64(p + 12);
      }
      if (payload > left || header > left || 20 + header + payload > left) {
        size = left;
      } else {
        size = 20 + header + payload;
      }
    }
    *begin = at;
    *end = at + (size_t)size;
    if (index == 0) return true;
    at = *end;
  }
}

static bool edit_frames(struct kv99_call* call, struct draft* draft, struct kv99_bytes name, uint64_t index) {
  size_t begin, end, begin2, end2;
  uint8_t* copy;
  if (!find_frame(draft, index, &begin, &end)) return kv99_fault(call, "no such frame");
  if (kv99_same(name, kv99_text("drop"))) {
    kv99_copy(draft->data + begin, draft->data + end, draft->size - end);
    draft->size -= end - begin;
    return true;
  }
  if (kv99_same(name, kv99_text("double"))) {
    if (!reserve(call, draft, end - begin)) return false;
    kv99_copy(draft->data + end + (end - begin), draft->data + end, draft->size - end);
    kv99_copy(draft->data + end, draft->data + begin, end - begin);
    draft->size += end - begin;
    return true;
  }
  if (!find_frame(draft, index + 1, &begin2, &end2)) return kv99_fault(call, "no such frame");
  copy = (uint8_t*)kv99_alloc(&call->kv, end - begin, 1);
  if (copy == NULL) return kv99_fault(call, "out of memory");
  kv99_copy(copy, draft->data + begin, end - begin);
  kv99_copy(draft->data + begin, draft->data + begin2, end2 - begin2);
  kv99_copy(draft->data + begin + (end2 - begin2), copy, end - begin);
  return true;
}

static bool edit(struct kv99_call* call, struct draft* draft, struct kv99_bytes text) {
  const struct kv99_bytes name = cut_off(&text, ':');
  struct kv99_bytes bytes;
  uint64_t number;
  size_t i;
  if (kv99_same(name, kv99_text("add"))) {
    if (!unhex(call, text, &bytes) || !reserve(call, draft, bytes.size)) return false;
    kv99_copy(draft->data + draft->size, bytes.data, bytes.size);
    draft->size += bytes.size;
    return true;
  }
  if (!parse_number(cut_off(&text, ':'), &number)) return kv99_fault(call, "not a number in an edit");
  if (kv99_same(name, kv99_text("cut"))) {
    if (number > draft->size) return kv99_fault(call, "cut behind the end");
    draft->size = (size_t)number;
    return true;
  }
  if (kv99_same(name, kv99_text("drop")) || kv99_same(name, kv99_text("double")) ||
      kv99_same(name, kv99_text("swap")))
    return edit_frames(call, draft, name, number);
  if (!unhex(call, text, &bytes)) return false;
  if (kv99_same(name, kv99_text("fill"))) {
    if (bytes.size != 1) return kv99_fault(call, "fill takes one byte");
    if (number > KV99_MAX_WORD || !reserve(call, draft, (size_t)number))
      return kv99_fault(call, "bytes grow too long");
    memset(draft->data + draft->size, bytes.data[0], (size_t)number);
    draft->size += (size_t)number;
    return true;
  }
  if (number > draft->size || bytes.size > draft->size - number)
    return kv99_fault(call, "edit outside the bytes");
  if (kv99_same(name, kv99_text("xor"))) {
    for (i = 0; i < bytes.size; ++i) draft->data[number + i] ^= bytes.data[i];
    return true;
  }
  if (kv99_same(name, kv99_text("set"))) {
    kv99_copy(draft->data + number, bytes.data, bytes.size);
    return true;
  }
  return kv99_fault(call, "unknown edit");
}

static bool parse_bytes(struct kv99_call* call, struct kv99_bytes word, struct kv99_bytes* bytes) {
  const struct kv99_bytes base = cut_off(&word, '/');
  struct draft draft = {NULL, 0, 0};
  if (kv99_same(base, kv99_text("-"))) {
    *bytes = kv99_text("");
  } else if (base.size != 0 && base.data[0] == '@') {
    const struct kv99_slot* slot = find_slot(call->session, kv99_part(base, 1, base.size - 1));
    if (slot == NULL) return kv99_fault(call, "unknown slot");
    *bytes = kv99_bytes_of(slot->data, slot->size);
  } else if (base.size == 0 || base.size / 2 > KV99_MAX_WORD) {
    return kv99_fault(call, "not bytes");
  } else if (!unhex(call, base, bytes)) {
    return false;
  }
  if (word.size == 0) return true;
  if (!reserve(call, &draft, bytes->size)) return false;
  kv99_copy(draft.data, bytes->data, bytes->size);
  draft.size = bytes->size;
  /* Nothing was reserved for no bytes. */
  if (draft.data == NULL && (draft.data = (uint8_t*)kv99_alloc(&call->kv, 1, 1)) == NULL)
    return kv99_fault(call, "out of memory");
  while (word.size != 0)
    if (!edit(call, &draft, cut_off(&word, '/'))) return false;
  *bytes = kv99_bytes_of(draft.data, draft.size);
  return true;
}

bool kv99_bytes_word(struct kv99_call* call, struct kv99_bytes* bytes) {
  struct kv99_bytes word;
  return kv99_word(call, &word) && parse_bytes(call, word, bytes);
}

bool kv99_optional_word(struct kv99_call* call, struct kv99_bytes* bytes, bool* present) {
  struct kv99_bytes word;
  *bytes = kv99_bytes_of(NULL, 0);
  if (!kv99_word(call, &word)) return false;
  *present = !kv99_same(word, kv99_text("none"));
  return !*present || parse_bytes(call, word, bytes);
}

bool kv99_fixed_word(struct kv99_call* call, size_t size, const uint8_t** data) {
  struct kv99_bytes bytes;
  if (!kv99_bytes_word(call, &bytes)) return false;
  *data = bytes.data;
  return bytes.size == size || kv99_fault(call, "bytes of another length");
}

/* ---- control requests */

static bool is_slot_name(struct kv99_bytes name) {
  size_t i;
  if (name.size == 0 || name.size > 32) return false;
  for (i = 0; i < name.size; ++i)
    if (name.data[i] == 0 || strchr("abcdefghijklmnopqrstuvwxyz0123456789_.", name.data[i]) == NULL)
      return false;
  return true;
}

static void free_slot(struct kv99_slot* slot) {
  free(slot->data);
  memset(slot, 0, sizeof *slot);
}

static bool fill_slot(struct kv99_call* call) {
  struct kv99_bytes name, bytes;
  struct kv99_slot* slot;
  uint8_t* copy;
  size_t i;
  if (!kv99_word(call, &name) || !kv99_bytes_word(call, &bytes)) return false;
  if (!is_slot_name(name)) return kv99_fault(call, "not a slot name");
  slot = (struct kv99_slot*)find_slot(call->session, name);
  for (i = 0; slot == NULL && i < KV99_MAX_SLOTS; ++i)
    if (call->session->slots[i].name[0] == 0) slot = &call->session->slots[i];
  if (slot == NULL) return kv99_fault(call, "too many slots");
  copy = (uint8_t*)malloc(bytes.size + 1);
  if (copy == NULL) return kv99_fault(call, "out of memory");
  kv99_copy(copy, bytes.data, bytes.size);
  free_slot(slot);
  kv99_copy((uint8_t*)slot->name, name.data, name.size);
  slot->data = copy;
  slot->size = bytes.size;
  kv99_answer_number(call, bytes.size);
  return true;
}

static bool drop_slot(struct kv99_call* call) {
  struct kv99_bytes name;
  struct kv99_slot* slot;
  if (!kv99_word(call, &name)) return false;
  slot = (struct kv99_slot*)find_slot(call->session, name);
  if (slot != NULL) free_slot(slot);
  return true;
}

static bool set_keys(struct kv99_call* call) {
  struct kv99_session* session = call->session;
  const uint8_t *stable, *epoch_root, *tenant;
  struct kv99_keys* keys;
  size_t count = 0;
  uint64_t epoch;
  if (kv99_more(call) && kv99_same(call->words[call->next], kv99_text("none"))) {
    ++call->next;
    session->ring.count = 0;
    return true;
  }
  if (!kv99_fixed_word(call, 32, &stable) || !kv99_fixed_word(call, 32, &epoch_root) ||
      !kv99_fixed_word(call, 32, &tenant))
    return false;
  keys = (struct kv99_keys*)kv99_alloc(&call->kv, KV99_MAX_EPOCHS, sizeof *keys);
  if (keys == NULL) return false;
  do {
    if (count == KV99_MAX_EPOCHS) return kv99_fault(call, "too many epochs");
    if (!kv99_number_word(call, &epoch)) return false;
    if (!kv99_derive_keys(&call->kv, stable, epoch_root, tenant, epoch, &keys[count++])) return false;
  } while (kv99_more(call));
  memcpy(session->keys, keys, sizeof session->keys);
  session->ring.keys = session->keys;
  session->ring.count = count;
  return true;
}

static bool hello(struct kv99_call* call) {
  kv99_answer_name(call, "kvpack-endpoint/1");
  kv99_answer_name(call, "c99");
  return true;
}

static const struct kv99_operation kControls[] = {{"hello", NULL, hello, false, false},
                                                  {"slot", NULL, fill_slot, false, false},
                                                  {"drop", NULL, drop_slot, false, false},
                                                  {"keys", NULL, set_keys, false, false}};

/* ---- serving */

static const struct kv99_operation* find_operation(struct kv99_call* call) {
  size_t i;
  if (call->count == 0) return NULL;
  call->next = 1;
  for (i = 0; i < sizeof kControls / sizeof *kControls; ++i)
    if (kv99_same(call->words[0], kv99_text(kControls[i].verb))) return &kControls[i];
  for (i = 0; i < kv99_operation_count; ++i) {
    const struct kv99_operation* operation = &kv99_operations[i];
    if (!kv99_same(call->words[0], kv99_text(operation->verb))) continue;
    if (operation->kind == NULL) return operation;
    call->next = 2;
    if (call->count > 1 && kv99_same(call->words[1], kv99_text(operation->kind))) return operation;
    call->next = 1;
  }
  return NULL;
}

static bool split_words(struct kv99_call* call, struct kv99_bytes line) {
  size_t i, count = 1;
  for (i = 0; i < line.size; ++i) count += line.data[i] == '\t';
  if (count > MAX_WORDS) return kv99_fault(call, "too many words");
  call->words = (struct kv99_bytes*)kv99_alloc(&call->kv, count, sizeof *call->words);
  if (call->words == NULL) return kv99_fault(call, "out of memory");
  for (i = 0; i < count; ++i) call->words[i] = cut_off(&line, '\t');
  call->count = count;
  return true;
}

static void set_answer(struct kv99_call* call, const char* text, const char* more) {
  call->size = 0;
  kv99_answer_raw(call, text, strlen(text));
  kv99_answer_raw(call, more, strlen(more));
}

static void answer(struct kv99_call* call, struct kv99_bytes line) {
  const struct kv99_operation* operation = NULL;
  bool good = false;
  kv99_start(&call->kv, &call->arena, ROOM);
  if (split_words(call, line)) {
    operation = find_operation(call);
    if (operation == NULL) {
      call->unsupported = true;
    } else {
      if (!operation->whole) set_answer(call, "ok", "");
      good = operation->run(call);
      if (good && kv99_more(call)) good = kv99_fault(call, "too many words");
    }
  }
  if (call->unsupported) {
    set_answer(call, "unsupported", "");
  } else if (call->fault != NULL) {
    set_answer(call, "fault:", call->fault);
  } else if (good && operation->bare) {
    set_answer(call, "ok", "");
  } else if (!good) {
    call->size = 0;
    kv99_answer_refusal(call);
  }
  kv99_end(&call->kv);
  kv99_free(&call->kv, &call->arena);
}

/* Reads up to the end of a line, which is left out. @return false at the end of input, or when a line is too
 * long */
static bool read_line(char** line, size_t* capacity, size_t* size) {
  *size = 0;
  for (;;) {
    if (*capacity - *size < 65536) {
      const size_t larger = 2 * *capacity + 65536;
      char* moved = larger > MAX_LINE_BYTES * 2 ? NULL : (char*)realloc(*line, larger);
      if (moved == NULL) {
        fputs("a request line is too long\n", stderr);
        return false;
      }
      *line = moved;
      *capacity = larger;
    }
    if (fgets(*line + *size, 65536, stdin) == NULL) return false; /* a line without its end is no request */
    *size += strlen(*line + *size);
    if (*size > 0 && (*line)[*size - 1] == '\n') {
      --*size;
      return true;
    }
  }
}

int kv99_serve(void) {
  struct kv99_session* session = (struct kv99_session*)calloc(1, sizeof *session);
  struct kv99_call call;
  char* line = NULL;
  size_t capacity = 0, size, i;
  int status = 0;
  memset(&call, 0, sizeof call);
  if (session == NULL) return 1;
  call.session = session;
  while (status == 0 && read_line(&line, &capacity, &size)) {
    call.words = NULL;
    call.count = call.next = call.size = 0;
    call.fault = NULL;
    call.unsupported = call.no_memory = false;
    call.arena.last = NULL;
    answer(&call, kv99_bytes_of(line, size));
    kv99_answer_raw(&call, "\n", 1);
    if (call.no_memory) {
      fputs("out of memory\n", stderr);
      status = 1;
    } else if (fwrite(call.answer, 1, call.size, stdout) != call.size || fflush(stdout) != 0) {
      status = 1;
    }
  }
  if (!feof(stdin)) status = 1;
  for (i = 0; i < KV99_MAX_SLOTS; ++i) free(session->slots[i].data);
  kv99_wipe(session, sizeof *session);
  free(session);
  free(line);
  free(call.answer);
  return status;
}
