/* The line protocol of conformance/README.md, without its operations: words, slots, key rings, answers. */
#ifndef KV99_LINE_PROTOCOL_H
#define KV99_LINE_PROTOCOL_H

#include "kv99.h"

#define KV99_MAX_SLOTS 256u
#define KV99_MAX_EPOCHS 64u
#define KV99_MAX_WORD UINT32_C(314572800)

struct kv99_slot {
  char name[33]; /* empty when the slot is free */
  uint8_t* data;
  size_t size;
};

struct kv99_session {
  struct kv99_slot slots[KV99_MAX_SLOTS];
  struct kv99_keys keys[KV99_MAX_EPOCHS];
  struct kv99_ring ring; /* no schedules: no keys */
  bool has_context;
  uint8_t mac_key[32];
  uint8_t key_id[256];
  struct kv99_handoff_policy policy;
};

/* One request on its way to an answer. */
struct kv99_call {
  struct kv99_session* session;
  struct kv99 kv;
  struct kv99_arena arena;
  struct kv99_bytes* words;
  size_t count, next;
  const char* fault; /* the request is malformed */
  bool unsupported;  /* or nothing that a reader has */
  /* The answer so far. */
  char* answer;
  size_t size, capacity;
  bool no_memory;
};

static inline bool kv99_fault(struct kv99_call* call, const char* text) {
  call->fault = text;
  return false;
}

/* The next word. Each sets the fault and returns false when it is missing or of another form. */
bool kv99_word(struct kv99_call* call, struct kv99_bytes* word);
bool kv99_bytes_word(struct kv99_call* call, struct kv99_bytes* bytes);
bool kv99_optional_word(struct kv99_call* call, struct kv99_bytes* bytes, bool* present);
bool kv99_fixed_word(struct kv99_call* call, size_t size, const uint8_t** data);
bool kv99_number_word(struct kv99_call* call, uint64_t* value);
bool kv99_flag_word(struct kv99_call* call, bool* value);
bool kv99_more(const struct kv99_call* call);

void kv99_answer_raw(struct kv99_call* call, const void* data, size_t size);
void kv99_answer_bytes(struct kv99_call* call, struct kv99_bytes bytes); /* as one more word */
void kv99_answer_number(struct kv99_call* call, uint64_t value);
void kv99_answer_name(struct kv99_call* call, const char* name);
void kv99_answer_refusal(struct kv99_call* call); /* category and text */

struct kv99_operation {
  const char *verb, *kind; /* kind NULL: the verb alone */
  /* Appends the words behind `ok`, or returns false after a fault or a refusal. */
  bool (*run)(struct kv99_call* call);
  bool bare;  /* the words behind `ok` are left out */
  bool whole; /* it writes the whole answer, the verdict included */
};
extern const struct kv99_operation kv99_operations[];
extern const size_t kv99_operation_count;

/* Answers request lines until the input ends. @return exit status */
int kv99_serve(void);

#endif
