/* A stranger that links the C library: a key ring is made, and a wrong one is refused with its reason. */
#include <kvpack_c.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  unsigned char root[32] = {1};
  kvpack_keys_options options = {.struct_size = sizeof options, .operator_id = "acme", .operator_id_size = 4};
  kvpack_keys* keys = NULL;
  kvpack_error* error = NULL;
  options.stable_root = root;
  options.stable_root_size = sizeof root;
  if (kvpack_keys_new(&keys, &options, &error) != KVPACK_OK) return 1;
  kvpack_keys_free(keys);
  memset(root, 0, sizeof root);
  if (kvpack_keys_new(&keys, &options, &error) == KVPACK_OK) return 1;
  printf("c: kvpack %s, an all-zero key is refused: %s\n", kvpack_version(), kvpack_error_message(error));
  kvpack_error_free(error);
  return 0;
}
