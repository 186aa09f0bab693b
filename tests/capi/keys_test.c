/* Key rings. */
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

static kvpack_keys_options ring_options(const kvpack_id* tenant) {
  STRUCT(kvpack_keys_options, options);
  options.stable_root = ROOT;
  options.stable_root_size = sizeof(ROOT);
  options.tenant = tenant;
  return options;
}

static void refuse(const kvpack_keys_options* options, kvpack_status status, const char* message) {
  kvpack_keys* keys = NULL;
  EXPECT_REFUSED(kvpack_keys_new(&keys, options, &error), status, message);
  CHECK(keys == NULL);
}

static void tenant_is_given_or_derived(void) {
  const kvpack_id tenant = filled(1);
  kvpack_keys_options options = ring_options(&tenant);
  kvpack_keys* keys = NULL;
  kvpack_id derived;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  CHECK(same_id(kvpack_keys_tenant(keys), &tenant));
  kvpack_keys_free(keys);

  options.tenant = NULL;
  options.operator_id = "acme";
  options.operator_id_size = 4;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  EXPECT_OK(kvpack_tenant_namespace(&derived, ROOT, sizeof(ROOT), "acme", 4, &error));
  CHECK(same_id(kvpack_keys_tenant(keys), &derived));
  kvpack_keys_free(keys);
}

static void mistakes_in_options_are_named(void) {
  static const uint8_t zeros[32] = {0};
  const kvpack_id tenant = filled(1);
  kvpack_keys_options options = ring_options(NULL);
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT,
         "argument tenant must be given as operator_id or as tenant, and not as both");
  options.tenant = &tenant;
  options.operator_id = "acme";
  options.operator_id_size = 4;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT,
         "argument tenant must be given as operator_id or as tenant, and not as both");
  options.tenant = NULL;
  options.operator_id_size = 0;
  refuse(&options, KVPACK_ERR_SEMANTICS, "tenant ID is empty");

  options = ring_options(&tenant);
  options.stable_root_size = 31;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument stable_root must be 32 bytes");
  options.stable_root_size = UINT64_MAX;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument stable_root is longer than any memory");
  options.stable_root = NULL;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT,
         "argument stable_root must be given as bytes or as a path, and not as both");
  options = ring_options(&tenant);
  options.stable_root_path = "somewhere";
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT,
         "argument stable_root must be given as bytes or as a path, and not as both");
  options = ring_options(&tenant);
  options.stable_root = zeros;
  refuse(&options, KVPACK_ERR_STATE, "store key is all zero");
  options = ring_options(&tenant);
  options.only_epoch_roots = 2;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument only_epoch_roots must be 0 or 1");
  options = ring_options(&tenant);
  options.reserved = 1;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
  options = ring_options(&tenant);
  options.epoch_root_count = 1;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument epoch_roots is NULL with a length");
}

static void window_bounds_the_epochs(void) {
  const kvpack_id tenant = filled(1);
  kvpack_keys_options options = ring_options(&tenant);
  kvpack_keys* keys = NULL;
  options.minimum_epoch = 3;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument minimum_epoch needs active_epoch");
  options.active_epoch = 2;
  refuse(&options, KVPACK_ERR_STATE, "key epoch window is invalid");
  options.active_epoch = 67;
  refuse(&options, KVPACK_ERR_STATE, "key epoch window is invalid");
  options.active_epoch = 66;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  EXPECT_OK(kvpack_keys_check_epoch(keys, 3, &error));
  EXPECT_OK(kvpack_keys_check_epoch(keys, 66, &error));
  EXPECT_REFUSED(kvpack_keys_check_epoch(keys, 2, &error), KVPACK_ERR_NOT_FOUND,
                 "key epoch is outside the readable window");
  EXPECT_REFUSED(kvpack_keys_check_epoch(keys, 67, &error), KVPACK_ERR_NOT_FOUND,
                 "key epoch is outside the readable window");
  EXPECT_REFUSED(kvpack_keys_check_epoch(keys, 0, &error), KVPACK_ERR_SEMANTICS, "key epoch must be nonzero");
  kvpack_keys_free(keys);

  options.minimum_epoch = 0; /* The widest window. */
  options.active_epoch = 100;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  EXPECT_OK(kvpack_keys_check_epoch(keys, 37, &error));
  EXPECT_REFUSED(kvpack_keys_check_epoch(keys, 36, &error), KVPACK_ERR_NOT_FOUND, NULL);
  kvpack_keys_free(keys);
}

static void epochs_can_have_roots_of_their_own(void) {
  const kvpack_id tenant = filled(1);
  const kvpack_id other_root = filled(5);
  kvpack_keys_options options = ring_options(&tenant);
  kvpack_epoch_root roots[2];
  kvpack_keys* keys = NULL;
  memset(roots, 0, sizeof(roots));
  roots[0].epoch = 4;
  roots[0].root = other_root.bytes;
  roots[0].root_size = 32;
  roots[1] = roots[0];
  options.epoch_roots = roots;
  options.epoch_root_count = 2;
  refuse(&options, KVPACK_ERR_STATE, "provider key epoch set is invalid");
  roots[1].epoch = 0;
  refuse(&options, KVPACK_ERR_STATE, "provider key epoch set is invalid");
  roots[1].epoch = 5;
  roots[1].root_size = 33;
  refuse(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument epoch_roots.root must be 32 bytes");
  options.epoch_root_count = 1;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  EXPECT_OK(kvpack_keys_check_epoch(keys, 5, &error));
  kvpack_keys_free(keys);
  options.only_epoch_roots = 1;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  EXPECT_OK(kvpack_keys_check_epoch(keys, 4, &error));
  EXPECT_REFUSED(kvpack_keys_check_epoch(keys, 5, &error), KVPACK_ERR_NOT_FOUND, NULL);
  kvpack_keys_free(keys);
}

/* A key file is a root like any other, if it is private and of the right size. */
static void root_can_be_a_file(void) {
  const kvpack_id tenant = filled(1);
  kvpack_keys_options options = ring_options(&tenant);
  kvpack_keys* keys = NULL;
  kvpack_id of_file;
  kvpack_id of_bytes;
  char path[] = "/tmp/kvpack-key-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0 && write(file, ROOT, sizeof(ROOT)) == (ssize_t)sizeof(ROOT));
  options.stable_root = NULL;
  options.stable_root_path = path;
  options.stable_root_size = 0;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  EXPECT_OK(kvpack_keys_namespace_id(keys, &of_file, "a", 1, &error));
  kvpack_keys_free(keys);
  keys = make_keys(99);
  EXPECT_OK(kvpack_keys_namespace_id(keys, &of_bytes, "a", 1, &error));
  kvpack_keys_free(keys);
  CHECK(same_id(&of_file, &of_bytes));

  CHECK(chmod(path, 0644) == 0);
  refuse(&options, KVPACK_ERR_STATE, "store key must be private, single-link, and exactly 32 bytes");
  CHECK(chmod(path, 0600) == 0 && write(file, "x", 1) == 1);
  refuse(&options, KVPACK_ERR_STATE, "store key must be private, single-link, and exactly 32 bytes");
  close(file);
  unlink(path);
  CHECK(kvpack_keys_new(&keys, &options, NULL) >= 100);
}

static void tenant_namespace_wants_a_root(void) {
  kvpack_id id;
  EXPECT_REFUSED(kvpack_tenant_namespace(&id, ROOT, 16, "a", 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument stable_root must be 32 bytes");
  EXPECT_REFUSED(kvpack_tenant_namespace(&id, ROOT, 32, "", 0, &error), KVPACK_ERR_SEMANTICS,
                 "tenant ID is empty");
  EXPECT_REFUSED(kvpack_tenant_namespace(&id, ROOT, 32, NULL, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument operator_id is NULL with a length");
}

int main(void) {
  tenant_is_given_or_derived();
  mistakes_in_options_are_named();
  window_bounds_the_epochs();
  epochs_can_have_roots_of_their_own();
  root_can_be_a_file();
  tenant_namespace_wants_a_root();
  return check_result();
}
