/* What a server adds to have its prompts back: opened once, asked before a prompt is computed, told
 * afterwards. */
#include <stdio.h>

#include <llama_kvpack.h>

llama_kvpack* open_saved(const struct llama_model* model, const char* path,
                         const struct llama_context_params* params) {
  llama_kvpack_options options = {0};
  llama_kvpack* saved = NULL;
  kvpack_error* error = NULL;
  options.struct_size = sizeof(options);
  options.model = model;
  options.model_paths = &path;
  options.model_path_count = 1;
  options.context_params = params; /* flash_attn_type enabled or disabled, not auto */
  options.directory = "/var/cache/my-server/kv";
  options.create = 1;
  if (llama_kvpack_open(&saved, &options, &error) != KVPACK_OK)
    fprintf(stderr, "%s\n", kvpack_error_message(error));
  kvpack_error_free(error);
  return saved; /* NULL: the server works without */
}

/* Before a prompt is computed: how many of its tokens need not be. */
size_t reuse(llama_kvpack* saved, struct llama_context* ctx, llama_seq_id slot, const llama_token* tokens,
             size_t count) {
  uint64_t reusable = 0;
  if (llama_kvpack_restore_deepest(saved, ctx, slot, tokens, count, &reusable, NULL, NULL, NULL) != KVPACK_OK)
    return 0;
  return (size_t)reusable; /* go on with tokens[reusable] at position reusable */
}

/* When it has been computed, and at exit: all tokens that the sequence holds. */
void keep(llama_kvpack* saved, struct llama_context* ctx, llama_seq_id slot, const llama_token* tokens,
          size_t count) {
  (void)llama_kvpack_save(saved, ctx, slot, tokens, count, NULL, NULL, NULL);
}
