/* readme KEY_FILE SET_FILE: did the holder of the key write every byte of the set? */
#include <kvpack_c.h>
#include <stdio.h>

int main(int argc, char** argv) {
  kvpack_keys_options key = {.struct_size = sizeof key, .operator_id = "example", .operator_id_size = 7};
  kvpack_pack_set_options file = {.struct_size = sizeof file};
  kvpack_keys* keys = NULL;
  kvpack_pack_set* set = NULL;
  kvpack_report* report = NULL;
  kvpack_error* error = NULL;
  if (argc != 3) return 2;
  key.stable_root_path = argv[1];
  file.path = argv[2];
  if (kvpack_keys_new(&keys, &key, &error) == KVPACK_OK && (file.keys = keys) != NULL &&
      kvpack_pack_set_open(&set, &file, &error) == KVPACK_OK &&
      kvpack_pack_set_verify(set, &report, NULL, &error) == KVPACK_OK)
    printf("%s: %d records\n", kvpack_report_level_name(report), (int)kvpack_report_record_count(report));
  else
    printf("refused: %s: %s\n", kvpack_error_category(error), kvpack_error_message(error));
  const int status = report == NULL;
  kvpack_report_free(report), kvpack_pack_set_free(set), kvpack_keys_free(keys), kvpack_error_free(error);
  return status;
}
