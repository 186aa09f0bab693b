/* Muse configurations and identities: from JSON, from fields, from a model file. */
#include <math.h>

#include "muse_fixture.h"

static char model_path[96];
static char other_path[96];

static void write_text(const char* path, const char* text) {
  FILE* file = fopen(path, "wb");
  if (file == NULL) exit(1);
  fputs(text, file);
  fclose(file);
}

static void a_configuration_is_read_and_written(void) {
  char json[4096];
  const size_t size = config_json(json, sizeof(json), VOCABULARY, KVPACK_MUSE_WINDOW_TOKENS);
  kvpack_muse_config* config = NULL;
  kvpack_bytes* encoded = NULL;
  size_t layer;
  STRUCT(kvpack_muse_config_info, info);
  EXPECT_OK(kvpack_muse_config_from_json(&config, json, size, &error));
  EXPECT_OK(kvpack_muse_config_encode(config, &encoded, &error));
  CHECK(kvpack_bytes_size(encoded) == size);
  CHECK(memcmp(kvpack_bytes_data(encoded), json, size) == 0);
  kvpack_bytes_free(encoded);

  EXPECT_OK(kvpack_muse_config_get_info(config, &info, &error));
  CHECK(info.hidden_dim == 6656 && info.head_count == 32 && info.kv_head_count == 2);
  CHECK(info.head_dim == 128 && info.value_head_dim == 128 && info.intermediate_dim == 19968);
  CHECK(info.vocab_size == VOCABULARY && info.context_tokens == 131072 && info.window_tokens == 2048);
  CHECK(info.rope_dim == 128 && info.layer_count == KVPACK_MUSE_LAYERS);
  for (layer = 0; layer < KVPACK_MUSE_LAYERS; ++layer)
    CHECK(info.layer_kinds[layer] ==
          (uint32_t)(layer % 4 == 3 ? KVPACK_MUSE_LAYER_FULL : KVPACK_MUSE_LAYER_SLIDING));
  CHECK(info.eos_token_count == 2 && info.eos_tokens[0] == 200001 && info.eos_tokens[1] == 200008);
  CHECK(info.has_bos_token == 0 && info.bos_token == 0);
  CHECK(info.rope_base_sliding == 500000.0f && info.rope_base_full == 500000.0f);
  CHECK(info.rms_epsilon == 1e-5f && info.post_norm_epsilon == 1e-8f);
  CHECK(info.final_logit_softcap == 20.0f && info.qk_scale == 3.87f && info.logit_scale > 0.19f);
  EXPECT_OK(kvpack_muse_config_check(config, &error));
  kvpack_muse_config_free(config);
}

static void what_is_no_configuration_is_refused(void) {
  kvpack_muse_config* config = NULL;
  char json[4096];
  size_t size = config_json(json, sizeof(json), VOCABULARY, 1024);
  EXPECT_REFUSED(kvpack_muse_config_from_json(&config, "{}", 2, &error), KVPACK_ERR_JSON, NULL);
  EXPECT_REFUSED(kvpack_muse_config_from_json(&config, json, size - 1, &error), KVPACK_ERR_JSON, NULL);
  EXPECT_REFUSED(kvpack_muse_config_from_json(&config, NULL, 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument json is NULL with a length");
  CHECK(config == NULL);
  EXPECT_OK(kvpack_muse_config_from_json(&config, json, size, &error));
  EXPECT_REFUSED(kvpack_muse_config_check(config, &error), KVPACK_ERR_EXPECTATION,
                 "Muser Muse geometry disagrees with the qualified kvpack layout: SWA window");
  kvpack_muse_config_free(config);
}

static void an_identity_keeps_its_fields_and_has_a_digest(void) {
  kvpack_muse_identity_fields fields = identity_fields();
  kvpack_muse_identity* identity = NULL;
  STRUCT(kvpack_muse_identity_fields, kept);
  EXPECT_OK(kvpack_muse_identity_new(&identity, &fields, &error));
  CHECK(has_hex(kvpack_muse_identity_digest(identity),
                "d2dc70375aec7d4687311e968e42ced33641d0993a3f9a3410f4474e29db962c"));
  EXPECT_OK(kvpack_muse_identity_get_fields(identity, &kept, &error));
  CHECK(same_id(&kept.model_sha256, &fields.model_sha256));
  CHECK(same_id(&kept.adapter_sha256, &fields.adapter_sha256));
  CHECK(same_id(&kept.tokenizer_sha256, &fields.tokenizer_sha256));
  CHECK(same_id(&kept.chat_template_sha256, &fields.chat_template_sha256));
  CHECK(same_id(&kept.context_policy_sha256, &fields.context_policy_sha256));
  CHECK(kept.model_revision_size == 9 && strcmp(kept.model_revision, "test-muse") == 0);
  CHECK(kept.tokenizer_revision_size == 14 && strcmp(kept.tokenizer_revision, "test-tokenizer") == 0);
  CHECK(kept.weight_precision_size == 5 && strcmp(kept.weight_precision, "nvfp4") == 0);
  kvpack_muse_identity_free(identity);
}

static void texts_that_name_nothing_are_refused(void) {
  static const char* const names[] = {"", " ", "auto", "Default", "A U T O"};
  kvpack_muse_identity* identity = NULL;
  size_t i;
  for (i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    kvpack_muse_identity_fields fields = identity_fields();
    fields.model_revision = names[i];
    fields.model_revision_size = strlen(names[i]);
    EXPECT_REFUSED(kvpack_muse_identity_new(&identity, &fields, &error), KVPACK_ERR_EXPECTATION,
                   "identity field model_revision must be a resolved value");
    fields = identity_fields();
    fields.tokenizer_revision = names[i];
    fields.tokenizer_revision_size = strlen(names[i]);
    EXPECT_REFUSED(kvpack_muse_identity_new(&identity, &fields, &error), KVPACK_ERR_EXPECTATION,
                   "identity field tokenizer_revision must be a resolved value");
    fields = identity_fields();
    fields.weight_precision = names[i];
    fields.weight_precision_size = strlen(names[i]);
    EXPECT_REFUSED(kvpack_muse_identity_new(&identity, &fields, &error), KVPACK_ERR_EXPECTATION,
                   "identity field weight_precision must be a resolved value");
  }
  CHECK(identity == NULL);
}

static void cuts_are_stored_under_model_and_family(void) {
  kvpack_muse_config* config = make_config(202048);
  kvpack_muse_config* empty = make_config(0);
  kvpack_muse_identity* identity = make_identity(1);
  kvpack_muse_identity* other = make_identity(9);
  kvpack_family* family = NULL;
  kvpack_model model;
  kvpack_model other_model;
  EXPECT_OK(kvpack_muse_identity_stored(identity, &model, &family, config, &error));
  CHECK(
      has_hex(kvpack_family_id(family), "4a57ca119f280b0bf1da77feb0234bc57726b7af51935aa40aa5167d8d4d4502"));
  CHECK(kvpack_family_state_count(family) == 2 * KVPACK_MUSE_LAYERS + 1);
  EXPECT_OK(kvpack_muse_identity_stored(other, &other_model, NULL, config, &error));
  CHECK(!same_id(&model.weights_config, &other_model.weights_config));
  CHECK(same_id(&model.position_semantics, &other_model.position_semantics));
  kvpack_family_free(family);
  family = NULL;
  EXPECT_REFUSED(kvpack_muse_identity_stored(identity, &model, &family, empty, &error),
                 KVPACK_ERR_EXPECTATION, "vocabulary is outside 1..1048576");
  CHECK(family == NULL);
  kvpack_muse_identity_free(other);
  kvpack_muse_identity_free(identity);
  kvpack_muse_config_free(empty);
  kvpack_muse_config_free(config);
}

/* ---- model files ---- */

typedef struct Told {
  uint64_t done, total;
  int calls;
  kvpack_status status;
} Told;

static kvpack_status tell(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  Told* told = (Told*)user;
  ++told->calls;
  told->done = done_bytes;
  told->total = total_bytes;
  return told->status;
}

static kvpack_muse_model_options model_options(void) {
  STRUCT(kvpack_muse_model_options, options);
  options.path = model_path;
  options.model_revision = "m@1";
  options.model_revision_size = 3;
  options.tokenizer_revision = "t@1";
  options.tokenizer_revision_size = 3;
  return options;
}

static void a_model_file_says_its_configuration(void) {
  kvpack_muse_config* config = NULL;
  STRUCT(kvpack_muse_config_info, info);
  EXPECT_OK(kvpack_muse_config_from_file(&config, model_path, &error));
  EXPECT_OK(kvpack_muse_config_get_info(config, &info, &error));
  CHECK(info.vocab_size == 512 && info.hidden_dim == 8 && info.layer_count == KVPACK_MUSE_LAYERS);
  CHECK(info.qk_scale == 1.0f && info.logit_scale == 1.0f);
  EXPECT_OK(kvpack_muse_config_check(config, &error));
  kvpack_muse_config_free(config);
  config = NULL;
  EXPECT_REFUSED(kvpack_muse_config_from_file(&config, "/tmp/kvpack-no-such-model", &error),
                 KVPACK_ERR_NOT_FOUND, NULL);
  write_text(other_path, "GGML: another kind of file, and long enough to be looked at");
  EXPECT_REFUSED(kvpack_muse_config_from_file(&config, other_path, &error), KVPACK_ERR_EXPECTATION,
                 "gguf metadata has a bad magic");
  EXPECT_REFUSED(kvpack_muse_config_from_file(&config, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument path is NULL");
  CHECK(config == NULL);
}

static void a_model_file_and_its_operator_say_an_identity(void) {
  kvpack_muse_model_options options = model_options();
  kvpack_muse_identity* identity = NULL;
  const kvpack_id policy = filled(7);
  kvpack_muse_adapter adapters[2];
  Told told = {0, 0, 0, KVPACK_OK};
  STRUCT(kvpack_muse_identity_fields, fields);
  STRUCT(kvpack_muse_identity_fields, others);
  options.progress = tell;
  options.progress_user = &told;
  EXPECT_OK(kvpack_muse_identity_from_file(&identity, &options, &error));
  EXPECT_OK(kvpack_muse_identity_get_fields(identity, &fields, &error));
  CHECK(told.calls > 0 && told.done == told.total && told.total > 16384);
  CHECK(
      has_hex(&fields.tokenizer_sha256, "3c95a3a397d8e672a8a58969b2922079af3b77ef129d537fb40c20fcd1aa1f53"));
  CHECK(has_hex(&fields.chat_template_sha256,
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
  CHECK(has_hex(&fields.context_policy_sha256,
                "becb2021926ba8df312f3e342f8686aec9cb262b8a1f0fd4ccf50a2a18928f2b"));
  CHECK(strcmp(fields.model_revision, "m@1") == 0 && strcmp(fields.tokenizer_revision, "t@1") == 0);
  CHECK(strcmp(fields.weight_precision, "q4_k_xl") == 0);

  adapters[0].file_sha256 = filled(5);
  adapters[0].scale = 0.5;
  adapters[1].file_sha256 = filled(6);
  adapters[1].scale = -1;
  options.adapters = adapters;
  options.adapter_count = 2;
  options.context_policy_sha256 = &policy;
  options.weight_precision = "bf16";
  options.weight_precision_size = 4;
  {
    kvpack_muse_identity* other = NULL;
    EXPECT_OK(kvpack_muse_identity_from_file(&other, &options, &error));
    EXPECT_OK(kvpack_muse_identity_get_fields(other, &others, &error));
    CHECK(same_id(&others.model_sha256, &fields.model_sha256));
    CHECK(!same_id(&others.adapter_sha256, &fields.adapter_sha256));
    CHECK(same_id(&others.context_policy_sha256, &policy));
    CHECK(strcmp(others.weight_precision, "bf16") == 0);
    kvpack_muse_identity_free(other);
  }
  kvpack_muse_identity_free(identity);
}

static void identities_of_files_are_refused(void) {
  kvpack_muse_model_options options = model_options();
  kvpack_muse_identity* identity = NULL;
  kvpack_muse_adapter adapter;
  Told told = {0, 0, 0, KVPACK_ERR_CANCELLED};
  options.progress = tell;
  options.progress_user = &told;
  EXPECT_REFUSED_WITH(kvpack_muse_identity_from_file(&identity, &options, &error), KVPACK_ERR_CANCELLED,
                      "the progress callback failed", "callback", "progress");
  CHECK(told.calls == 1);
  told.status = 42;
  EXPECT_REFUSED_WITH(kvpack_muse_identity_from_file(&identity, &options, &error), KVPACK_ERR_CALLBACK,
                      "the progress callback failed", "returned", "42");
  options.progress = NULL;
  adapter.file_sha256 = filled(5);
  adapter.scale = HUGE_VAL;
  options.adapters = &adapter;
  options.adapter_count = 1;
  EXPECT_REFUSED(kvpack_muse_identity_from_file(&identity, &options, &error), KVPACK_ERR_EXPECTATION,
                 "adapter scale must be finite");
  options = model_options();
  options.model_revision = "auto";
  options.model_revision_size = 4;
  options.path = "/tmp/kvpack-no-such-model";
  EXPECT_REFUSED(kvpack_muse_identity_from_file(&identity, &options, &error), KVPACK_ERR_EXPECTATION,
                 "identity field model_revision must be a resolved value");
  options.path = NULL;
  EXPECT_REFUSED(kvpack_muse_identity_from_file(&identity, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument path is NULL");
  CHECK(identity == NULL);
}

static void structs_of_other_sizes_are_refused(void) {
  kvpack_muse_identity_fields fields = identity_fields();
  kvpack_muse_model_options options = model_options();
  kvpack_muse_config* config = make_config(VOCABULARY);
  kvpack_muse_identity* identity = NULL;
  STRUCT(kvpack_muse_config_info, info);
  fields.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_identity_new(&identity, &fields, &error), KVPACK_ERR_STRUCT_SIZE,
                      "struct fields has an unknown size", "argument", "fields");
  options.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_identity_from_file(&identity, &options, &error), KVPACK_ERR_STRUCT_SIZE,
                      "struct options has an unknown size", "argument", "options");
  info.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_config_get_info(config, &info, &error), KVPACK_ERR_STRUCT_SIZE,
                      "struct out has an unknown size", "argument", "out");
  CHECK(identity == NULL && info.layer_count == 0);
  kvpack_muse_config_free(config);
}

int main(void) {
  new_root();
  snprintf(model_path, sizeof(model_path), "%s/muse.gguf", root);
  snprintf(other_path, sizeof(other_path), "%s/other", root);
  write_model(model_path);
  a_configuration_is_read_and_written();
  what_is_no_configuration_is_refused();
  an_identity_keeps_its_fields_and_has_a_digest();
  texts_that_name_nothing_are_refused();
  cuts_are_stored_under_model_and_family();
  a_model_file_says_its_configuration();
  a_model_file_and_its_operator_say_an_identity();
  identities_of_files_are_refused();
  structs_of_other_sizes_are_refused();
  remove_tree(root);
  return check_result();
}
