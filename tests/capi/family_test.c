/* Families: described, decoded, asked. */
#include "fixture.h"

static const uint64_t DIMENSIONS[3] = {KVPACK_TOKEN_AXIS, HEADS, HEAD_DIM};

static kvpack_state_options state_options(void) {
  STRUCT(kvpack_state_options, options);
  options.name = "k";
  options.name_size = 1;
  options.dtype = KVPACK_DTYPE_F16;
  options.dimensions = DIMENSIONS;
  options.dimension_count = 3;
  return options;
}

static void refuse_state(const kvpack_state_options* options, kvpack_status status, const char* message) {
  kvpack_family_builder* builder = make_family_builder();
  EXPECT_REFUSED(kvpack_family_builder_add_state(builder, options, &error), status, message);
  kvpack_family_builder_free(builder);
}

static void mistakes_in_a_state_are_named(void) {
  static const uint64_t many[9] = {0, 1, 1, 1, 1, 1, 1, 1, 1};
  char long_name[256];
  kvpack_state_key dependency;
  kvpack_state_options options = state_options();
  options.dtype = 0;
  refuse_state(&options, KVPACK_ERR_UNKNOWN_ENUM, "unknown dtype 0");
  options.dtype = 10;
  refuse_state(&options, KVPACK_ERR_UNKNOWN_ENUM, "unknown dtype 10");
  options = state_options();
  options.codec = 3;
  refuse_state(&options, KVPACK_ERR_UNKNOWN_ENUM, "unknown codec 3");
  options = state_options();
  options.layout = 3;
  refuse_state(&options, KVPACK_ERR_UNKNOWN_ENUM, "unknown layout 3");
  options = state_options();
  options.token_axis_rule = 4;
  refuse_state(&options, KVPACK_ERR_UNKNOWN_ENUM, "unknown token axis rule 4");
  options = state_options();
  options.dimension_count = 0;
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument dimension_count must be 1 to 8");
  options.dimensions = many;
  options.dimension_count = 9;
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument dimension_count must be 1 to 8");
  options.dimension_count = UINT64_MAX / 8;
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument dimensions is longer than any memory");
  options = state_options();
  options.name = "\xff";
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument name must be at most 255 bytes of UTF-8");
  memset(long_name, 'a', sizeof(long_name));
  options.name = long_name;
  options.name_size = 256;
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument name must be at most 255 bytes of UTF-8");
  options = state_options();
  options.reserved = 1;
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
  options = state_options();
  memset(&dependency, 0, sizeof(dependency));
  options.dependencies = &dependency;
  options.dependency_count = 65;
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument dependency_count must be at most 64");
  options.dependency_count = 1;
  dependency.name_size = 5;
  refuse_state(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument dependencies is NULL with a length");
}

static void refuse_family(kvpack_family_builder* builder, kvpack_status status, const char* message) {
  kvpack_family* family = NULL;
  EXPECT_REFUSED(kvpack_family_builder_build(builder, &family, &error), status, message);
  CHECK(family == NULL);
  kvpack_family_builder_free(builder);
}

static void family_rules_speak(void) {
  static const uint64_t no_axis[1] = {4};
  kvpack_family_builder* builder = make_family_builder();
  kvpack_family_builder* incomplete = NULL;
  kvpack_state_options options = state_options();
  STRUCT(kvpack_family_options, family);
  refuse_family(builder, KVPACK_ERR_BOUNDS, "family state count is outside bounds");
  builder = make_family_builder();
  EXPECT_OK(kvpack_family_builder_add_state(builder, &options, &error));
  EXPECT_OK(kvpack_family_builder_add_state(builder, &options, &error));
  refuse_family(builder, KVPACK_ERR_SEMANTICS, "family states are not unique canonical order");
  builder = make_family_builder();
  options.dimensions = no_axis;
  options.dimension_count = 1;
  EXPECT_OK(kvpack_family_builder_add_state(builder, &options, &error));
  refuse_family(builder, KVPACK_ERR_SEMANTICS, "family token axis is outside its rank");
  options = state_options();
  EXPECT_OK(kvpack_family_builder_new(&incomplete, &family, &error));
  EXPECT_OK(kvpack_family_builder_add_state(incomplete, &options, &error));
  refuse_family(incomplete, KVPACK_ERR_SEMANTICS, "representation family contains a zero identity");
  family.mode = 3;
  EXPECT_REFUSED(kvpack_family_builder_new(&incomplete, &family, &error), KVPACK_ERR_UNKNOWN_ENUM,
                 "unknown representation mode 3");
}

static void states_are_in_the_order_of_their_keys(void) {
  kvpack_family* family = make_family(KVPACK_CODEC_LOSSLESS);
  kvpack_state_key key = {"v", 1, 0, 0};
  uint64_t index = 99;
  STRUCT(kvpack_state_info, info);
  CHECK(kvpack_family_state_count(family) == 2);
  EXPECT_OK(kvpack_family_state(family, &info, 0, &error));
  CHECK(strcmp(info.name, "k") == 0 && info.name_size == 1 && info.layer == 0);
  CHECK(info.dtype == KVPACK_DTYPE_F16 && info.dtype_bytes == 2);
  CHECK(info.codec == KVPACK_CODEC_LOSSLESS && info.layout == KVPACK_LAYOUT_CONTIGUOUS);
  CHECK(info.token_axis_rule == KVPACK_AXIS_DIRECT && info.token_axis == 0);
  CHECK(info.rank == 3 && info.dimensions[0] == KVPACK_TOKEN_AXIS && info.dimensions[1] == HEADS &&
        info.dimensions[2] == HEAD_DIM && info.dimensions[3] == 0);
  CHECK(info.elements_per_token == HEADS * HEAD_DIM && info.dependency_count == 0);
  EXPECT_OK(kvpack_family_find_state(family, &index, &key, &error));
  CHECK(index == 1);
  key.layer = 1;
  EXPECT_REFUSED_WITH(kvpack_family_find_state(family, &index, &key, &error), KVPACK_ERR_NOT_FOUND,
                      "the family has no such state", "layer", "1");
  key.reserved = 1;
  EXPECT_REFUSED(kvpack_family_find_state(family, &index, &key, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument reserved must be 0");
  CHECK(index == 1);
  EXPECT_REFUSED(kvpack_family_state(family, &info, 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument state_index is outside the family");
  kvpack_family_free(family);
}

static void dependencies_are_given_back(void) {
  kvpack_family_builder* builder = make_family_builder();
  kvpack_family* family = NULL;
  kvpack_state_key key = {"k", 1, 0, 0};
  kvpack_state_key got;
  kvpack_state_options options = state_options();
  EXPECT_OK(kvpack_family_builder_add_state(builder, &options, &error));
  options.name = "v";
  options.dependencies = &key;
  options.dependency_count = 1;
  EXPECT_OK(kvpack_family_builder_add_state(builder, &options, &error));
  EXPECT_OK(kvpack_family_builder_build(builder, &family, &error));
  EXPECT_OK(kvpack_family_dependency(family, &got, 1, 0, &error));
  CHECK(got.layer == 0 && got.name_size == 1 && got.name[0] == 'k');
  EXPECT_REFUSED(kvpack_family_dependency(family, &got, 1, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument index is outside the dependencies");
  kvpack_family_free(family);
  kvpack_family_builder_free(builder);
}

static void objects_round_trip_and_keep_their_identity(void) {
  kvpack_family* family = make_family(0);
  kvpack_family* again = NULL;
  kvpack_bytes* object = NULL;
  kvpack_id id;
  EXPECT_OK(kvpack_family_encode(family, &object, &error));
  EXPECT_OK(kvpack_family_decode(&again, kvpack_bytes_data(object), kvpack_bytes_size(object), &error));
  EXPECT_OK(kvpack_family_validate(again, &error));
  CHECK(same_id(kvpack_family_id(family), kvpack_family_id(again)));
  EXPECT_OK(kvpack_object_id(&id, KVPACK_OBJECT_FAMILY, kvpack_bytes_data(object), kvpack_bytes_size(object),
                             &error));
  CHECK(same_id(kvpack_family_id(family), &id));
  kvpack_bytes_free(object);
  kvpack_family_free(again);
  kvpack_family_free(family);
}

/* The builder can go on after a build, and the family does not need it any more. */
static void builder_and_family_are_independent(void) {
  kvpack_family_builder* builder = make_family_builder();
  kvpack_family* small = NULL;
  kvpack_family* large = NULL;
  add_state(builder, 0, "k", 0, 0);
  EXPECT_OK(kvpack_family_builder_build(builder, &small, &error));
  add_state(builder, 1, "k", 0, 0);
  EXPECT_OK(kvpack_family_builder_build(builder, &large, &error));
  kvpack_family_builder_free(builder);
  CHECK(kvpack_family_state_count(small) == 1 && kvpack_family_state_count(large) == 2);
  kvpack_family_free(small);
  kvpack_family_free(large);
}

int main(void) {
  mistakes_in_a_state_are_named();
  family_rules_speak();
  states_are_in_the_order_of_their_keys();
  dependencies_are_given_back();
  objects_round_trip_and_keep_their_identity();
  builder_and_family_are_independent();
  return check_result();
}
