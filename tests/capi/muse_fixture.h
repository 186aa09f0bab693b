/* What the tests of Muse share: a configuration, an identity, a model file, and an engine in memory. Each
 * test uses a part. */
#ifndef KVPACK_TESTS_CAPI_MUSE_FIXTURE_H
#define KVPACK_TESTS_CAPI_MUSE_FIXTURE_H

#include "store_fixture.h"

enum { VOCABULARY = 128, ROW_BYTES = 512, MOST_TOKENS = 2304 };

/* ---- configurations and identities ---- */

/* The numbers of the released model, but for the vocabulary, as JSON. */
MAY_BE_UNUSED static size_t config_json(char* out, size_t size, unsigned vocabulary, unsigned window) {
  size_t used;
  int layer;
  used = (size_t)snprintf(
      out, size,
      "{\"bos_token_id\":null,\"context_length\":131072,\"eos_tokens\":[200001,200008],"
      "\"final_logit_softcap\":\"41a00000\",\"head_dim\":128,\"hidden_dim\":6656,\"intermediate_dim\":19968,"
      "\"layer_kinds\":[");
  for (layer = 0; layer < KVPACK_MUSE_LAYERS; ++layer)
    used += (size_t)snprintf(out + used, size - used, "%s\"%s\"", layer == 0 ? "" : ",",
                             layer % 4 == 3 ? "nope" : "swa");
  used += (size_t)snprintf(
      out + used, size - used,
      "],\"logit_scale\":\"3e48d37e\",\"n_heads\":32,\"n_kv_heads\":2,\"n_layers\":52,"
      "\"post_norm_eps\":\"322bcc77\",\"qk_scale_factor\":\"4077ae14\",\"rms_eps\":\"3727c5ac\","
      "\"rope_base_full\":\"48f42400\",\"rope_base_swa\":\"48f42400\",\"rope_dim\":128,\"sliding_window\":%u,"
      "\"value_head_dim\":128,\"vocab_size\":%u}",
      window, vocabulary);
  return used;
}

MAY_BE_UNUSED static kvpack_muse_config* make_config(unsigned vocabulary) {
  kvpack_muse_config* config = NULL;
  char json[4096];
  const size_t size = config_json(json, sizeof(json), vocabulary, KVPACK_MUSE_WINDOW_TOKENS);
  EXPECT_OK(kvpack_muse_config_from_json(&config, json, size, &error));
  return config;
}

MAY_BE_UNUSED static kvpack_muse_identity_fields identity_fields(void) {
  STRUCT(kvpack_muse_identity_fields, fields);
  fields.model_sha256 = filled(1);
  fields.tokenizer_sha256 = filled(2);
  fields.chat_template_sha256 = filled(3);
  fields.context_policy_sha256 = filled(4);
  fields.model_revision = "test-muse";
  fields.model_revision_size = 9;
  fields.tokenizer_revision = "test-tokenizer";
  fields.tokenizer_revision_size = 14;
  fields.weight_precision = "nvfp4";
  fields.weight_precision_size = 5;
  return fields;
}

MAY_BE_UNUSED static kvpack_muse_identity* make_identity(int model_byte) {
  kvpack_muse_identity* identity = NULL;
  kvpack_muse_identity_fields fields = identity_fields();
  fields.model_sha256 = filled(model_byte);
  EXPECT_OK(kvpack_muse_identity_new(&identity, &fields, &error));
  return identity;
}

MAY_BE_UNUSED static int has_hex(const kvpack_id* id, const char* hex) {
  char text[65];
  size_t i;
  if (id == NULL) return 0;
  for (i = 0; i < sizeof(id->bytes); ++i) snprintf(text + 2 * i, 3, "%02x", id->bytes[i]);
  return strcmp(text, hex) == 0;
}

/* ---- a model file with the KV geometry of Muse and almost no weights ---- */

MAY_BE_UNUSED static void put_le(FILE* file, uint64_t value, int bytes) {
  for (; bytes > 0; --bytes, value >>= 8) fputc((int)(value & 0xff), file);
}

MAY_BE_UNUSED static void put_text(FILE* file, const char* text) {
  put_le(file, strlen(text), 8);
  fputs(text, file);
}

MAY_BE_UNUSED static void put_number(FILE* file, const char* key, uint32_t type, uint32_t bits) {
  char name[96];
  snprintf(name, sizeof(name), "muse-glimmer.%s", key);
  put_text(file, name);
  put_le(file, type, 4);
  put_le(file, bits, 4);
}

MAY_BE_UNUSED static void put_tensor(FILE* file, int layer, const char* name, uint64_t first,
                                     uint64_t second) {
  char full[96];
  if (layer < 0) snprintf(full, sizeof(full), "%s.weight", name);
  if (layer >= 0) snprintf(full, sizeof(full), "blk.%d.%s.weight", layer, name);
  put_text(file, full);
  put_le(file, second == 0 ? 1 : 2, 4);
  put_le(file, first, 8);
  if (second != 0) put_le(file, second, 8);
  put_le(file, 0, 4); /* F32 */
  put_le(file, 0, 8); /* All tensors lie on the same bytes. */
}

/* Its vocabulary is 512. */
MAY_BE_UNUSED static void write_model(const char* path) {
  static const struct {
    const char* key;
    uint32_t value;
  } counts[] = {{"vocab_size", 512},
                {"context_length", KVPACK_MUSE_MAX_CONTEXT_TOKENS},
                {"embedding_length", 8},
                {"block_count", KVPACK_MUSE_LAYERS},
                {"feed_forward_length", 8},
                {"attention.head_count", 4},
                {"attention.head_count_kv", 2},
                {"attention.key_length", 128},
                {"attention.value_length", 128},
                {"attention.sliding_window", KVPACK_MUSE_WINDOW_TOKENS},
                {"attention.sliding_window_pattern", 4},
                {"rope.dimension_count", 128}};
  static const struct {
    const char* name;
    uint64_t first, second;
  } tensors[] = {{"attn_norm", 8, 0},   {"attn_q", 8, 512},      {"attn_k", 8, 256},
                 {"attn_v", 8, 256},    {"attn_q_norm", 128, 0}, {"attn_k_norm", 128, 0},
                 {"attn_gate", 8, 512}, {"attn_output", 512, 8}, {"post_attention_norm", 8, 0},
                 {"ffn_norm", 8, 0},    {"ffn_gate", 8, 8},      {"ffn_up", 8, 8},
                 {"ffn_down", 8, 8},    {"post_ffw_norm", 8, 0}};
  FILE* file = fopen(path, "wb");
  size_t i;
  int layer;
  if (file == NULL) exit(1);
  fputs("GGUF", file);
  put_le(file, 3, 4);
  put_le(file, 3 + KVPACK_MUSE_LAYERS * (sizeof(tensors) / sizeof(tensors[0])), 8);
  put_le(file, 2 + sizeof(counts) / sizeof(counts[0]) + 3, 8);
  put_text(file, "general.architecture");
  put_le(file, 8, 4);
  put_text(file, "muse-glimmer");
  put_text(file, "tokenizer.ggml.model");
  put_le(file, 8, 4);
  put_text(file, "none");
  for (i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i)
    put_number(file, counts[i].key, 4, counts[i].value);
  put_number(file, "attention.layer_norm_rms_epsilon", 6, 0x3727c5ac);
  put_number(file, "logit_scale", 6, 0x3f800000);
  put_number(file, "rope.freq_base", 6, 0x48f42400);
  put_tensor(file, -1, "token_embd", 8, 512);
  put_tensor(file, -1, "output", 8, 512);
  put_tensor(file, -1, "output_norm", 8, 0);
  for (layer = 0; layer < KVPACK_MUSE_LAYERS; ++layer)
    for (i = 0; i < sizeof(tensors) / sizeof(tensors[0]); ++i)
      put_tensor(file, layer, tensors[i].name, tensors[i].first, tensors[i].second);
  while (ftell(file) % 32 != 0) fputc(0, file);
  for (i = 0; i < 8 * 512; ++i) put_le(file, 0x3f800000, 4);
  fclose(file);
}

/* ---- an engine in memory: what it holds follows from its tokens ---- */

typedef struct Generation {
  uint8_t* planes[2 * KVPACK_MUSE_LAYERS];
  kvpack_muse_layer layers[KVPACK_MUSE_LAYERS];
  uint32_t tokens[MOST_TOKENS];
  uint64_t token_count;
  float logits[VOCABULARY];
  uint64_t logit_count;
  int users; /* The engine, and each export. */
} Generation;

typedef struct MuseEngine {
  Generation* live; /* NULL: the history is empty. */
  int histories, exports, releases, installs, logit_installs, resets;
  kvpack_status history_status, export_status, install_status, logits_status, reset_status;
  int installs_left; /* After so many, install_status is returned. */
  uint64_t layer_count;
  kvpack_cancel* cancel; /* Requested by history. */
} MuseEngine;

MAY_BE_UNUSED static void drop(Generation* generation) {
  size_t i;
  if (generation == NULL || --generation->users > 0) return;
  for (i = 0; i < 2 * KVPACK_MUSE_LAYERS; ++i) free(generation->planes[i]);
  free(generation);
}

MAY_BE_UNUSED static Generation* new_generation(uint64_t count) {
  Generation* generation = (Generation*)calloc(1, sizeof(Generation));
  size_t i;
  if (generation == NULL || count > MOST_TOKENS) exit(1);
  generation->users = 1;
  generation->token_count = count;
  for (i = 0; i < KVPACK_MUSE_LAYERS; ++i) {
    kvpack_muse_layer* layer = &generation->layers[i];
    const int windowed = i % 4 != 3 && count > KVPACK_MUSE_WINDOW_TOKENS;
    layer->token_count = windowed ? KVPACK_MUSE_WINDOW_TOKENS : count;
    layer->token_start = count - layer->token_count;
    layer->key_size = layer->value_size = layer->token_count * ROW_BYTES;
    generation->planes[2 * i] = (uint8_t*)malloc((size_t)layer->key_size);
    generation->planes[2 * i + 1] = (uint8_t*)malloc((size_t)layer->value_size);
    if (generation->planes[2 * i] == NULL || generation->planes[2 * i + 1] == NULL) exit(1);
    layer->key = generation->planes[2 * i];
    layer->value = generation->planes[2 * i + 1];
  }
  return generation;
}

MAY_BE_UNUSED static uint32_t token_at(uint64_t position) {
  return (uint32_t)(7 * position + 3);
}

/* What a prefill of `count` tokens leaves. Rows differ by plane and position. */
MAY_BE_UNUSED static Generation* computed(uint64_t count) {
  Generation* generation = new_generation(count);
  uint64_t i, row;
  for (i = 0; i < count; ++i) generation->tokens[i] = token_at(i);
  for (i = 0; i < 2 * KVPACK_MUSE_LAYERS; ++i) {
    const kvpack_muse_layer* layer = &generation->layers[i / 2];
    for (row = 0; row < layer->token_count; ++row) {
      uint8_t* bytes = generation->planes[i] + row * ROW_BYTES;
      const uint32_t position = (uint32_t)(layer->token_start + row);
      memset(bytes, (int)i, ROW_BYTES);
      memcpy(bytes + 8, &position, sizeof(position));
    }
  }
  for (i = 0; i < VOCABULARY; ++i) generation->logits[i] = (float)i + (float)count;
  generation->logit_count = VOCABULARY;
  return generation;
}

MAY_BE_UNUSED static int same_generation(const Generation* a, const Generation* b) {
  size_t i;
  if (a == NULL || b == NULL) return a == b;
  if (a->token_count != b->token_count || a->logit_count != b->logit_count) return 0;
  if (memcmp(a->tokens, b->tokens, sizeof(a->tokens)) != 0) return 0;
  if (memcmp(a->logits, b->logits, sizeof(float) * (size_t)a->logit_count) != 0) return 0;
  for (i = 0; i < 2 * KVPACK_MUSE_LAYERS; ++i)
    if (memcmp(a->planes[i], b->planes[i], (size_t)a->layers[i / 2].key_size) != 0) return 0;
  return 1;
}

/* Whether what is live is what computing so many tokens leaves. */
MAY_BE_UNUSED static int is_live_at(const MuseEngine* engine, uint64_t count) {
  Generation* wanted = count == 0 ? NULL : computed(count);
  const int same = same_generation(engine->live, wanted);
  drop(wanted);
  return same;
}

MAY_BE_UNUSED static kvpack_status muse_history(void* user, kvpack_muse_history* out) {
  MuseEngine* engine = (MuseEngine*)user;
  ++engine->histories;
  CHECK(out->struct_size == sizeof(*out));
  CHECK(out->tokens == NULL && out->token_count == 0 && out->logits == NULL && out->logit_count == 0);
  if (engine->history_status != KVPACK_OK) return engine->history_status;
  if (engine->cancel != NULL) kvpack_cancel_request(engine->cancel);
  if (engine->live == NULL) return KVPACK_OK;
  out->tokens = engine->live->tokens;
  out->token_count = engine->live->token_count;
  out->logits = engine->live->logits;
  out->logit_count = engine->live->logit_count;
  return KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_status muse_export(void* user, kvpack_muse_planes* out) {
  MuseEngine* engine = (MuseEngine*)user;
  CHECK(out->struct_size == sizeof(*out));
  CHECK(engine->live != NULL);
  if (engine->export_status != KVPACK_OK) return engine->export_status;
  ++engine->exports;
  ++engine->live->users;
  out->lease = engine->live;
  out->layers = engine->live->layers;
  out->layer_count = engine->layer_count;
  return KVPACK_OK;
}

MAY_BE_UNUSED static void muse_release(void* user, void* lease) {
  ++((MuseEngine*)user)->releases;
  drop((Generation*)lease);
}

MAY_BE_UNUSED static kvpack_status muse_install(void* user, const kvpack_muse_snapshot* snapshot) {
  MuseEngine* engine = (MuseEngine*)user;
  Generation* next;
  size_t i;
  ++engine->installs;
  CHECK(snapshot->struct_size == sizeof(*snapshot));
  CHECK(snapshot->layer_count == KVPACK_MUSE_LAYERS);
  if (engine->install_status != KVPACK_OK && engine->installs > engine->installs_left)
    return engine->install_status;
  next = new_generation(snapshot->token_count);
  memcpy(next->tokens, snapshot->tokens, sizeof(uint32_t) * (size_t)snapshot->token_count);
  for (i = 0; i < KVPACK_MUSE_LAYERS; ++i) {
    const kvpack_muse_layer* layer = &snapshot->layers[i];
    CHECK(layer->token_start == next->layers[i].token_start);
    CHECK(layer->key_size == next->layers[i].key_size && layer->value_size == next->layers[i].value_size);
    memcpy(next->planes[2 * i], layer->key, (size_t)layer->key_size);
    memcpy(next->planes[2 * i + 1], layer->value, (size_t)layer->value_size);
  }
  drop(engine->live);
  engine->live = next;
  return KVPACK_OK;
}

/* logits_status is for the first call alone: what was live may come back. */
MAY_BE_UNUSED static kvpack_status muse_logits(void* user, const float* logits, uint64_t logit_count) {
  MuseEngine* engine = (MuseEngine*)user;
  ++engine->logit_installs;
  CHECK(logit_count == VOCABULARY);
  if (engine->logits_status != KVPACK_OK && engine->logit_installs == 1) return engine->logits_status;
  memcpy(engine->live->logits, logits, sizeof(float) * (size_t)logit_count);
  engine->live->logit_count = logit_count;
  return KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_status muse_reset(void* user) {
  MuseEngine* engine = (MuseEngine*)user;
  ++engine->resets;
  if (engine->reset_status != KVPACK_OK) return engine->reset_status;
  drop(engine->live);
  engine->live = NULL;
  return KVPACK_OK;
}

/* An engine that has computed so many tokens. */
MAY_BE_UNUSED static MuseEngine muse_engine_at(uint64_t count) {
  MuseEngine engine;
  memset(&engine, 0, sizeof(engine));
  engine.layer_count = KVPACK_MUSE_LAYERS;
  if (count != 0) engine.live = computed(count);
  return engine;
}

MAY_BE_UNUSED static kvpack_muse_engine as_engine(MuseEngine* engine) {
  STRUCT(kvpack_muse_engine, out);
  out.user = engine;
  out.vocab_size = VOCABULARY;
  out.history = muse_history;
  out.export_planes = muse_export;
  out.release_planes = muse_release;
  out.install = muse_install;
  out.install_logits = muse_logits;
  out.reset = muse_reset;
  return out;
}

/* Every export was given back, and nobody but the engine holds what is live. */
MAY_BE_UNUSED static void end_engine(MuseEngine* engine) {
  CHECK(engine->releases == engine->exports);
  CHECK(engine->live == NULL || engine->live->users == 1);
  drop(engine->live);
}

#endif
