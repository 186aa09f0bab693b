/* A stranger that links the adapter and brings llama.cpp itself: saved sequences of no model are refused by
 * name. */
#include <llama_kvpack.h>
#include <stdio.h>

int main(void) {
  llama_kvpack_options options = {.struct_size = sizeof options};
  llama_kvpack* saved = NULL;
  kvpack_error* error = NULL;
  if (llama_kvpack_abi_version() != LLAMA_KVPACK_ABI_VERSION) return 1;
  if (llama_kvpack_open(&saved, &options, &error) == KVPACK_OK) return 1;
  printf("llama: an engine of at most %u devices, and no model: %s\n", (unsigned)llama_max_devices(),
         kvpack_error_message(error));
  kvpack_error_free(error);
  return 0;
}
