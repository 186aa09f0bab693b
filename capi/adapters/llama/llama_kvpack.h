/* The sequences of a llama.cpp context, kept by kvpack: what was computed for a list of tokens is saved,
 * found again by the tokens of a later prompt, in this process or another one, verified, and put back into a
 * context. C99 and C++; built for llama.cpp v0.5.0. A guide is docs/llama-cpp.md.
 *
 * The conventions are those of kvpack_c.h: a status is returned and an error may be had, structs begin with
 * their size, nothing is thrown, a failing call leaves its outputs alone. A handle may be used by several
 * threads at once when each of them has a context of its own; a context belongs to one thread at a time. The
 * program brings its own llama.cpp: this library has none inside and is linked to none.
 */
#ifndef LLAMA_KVPACK_H
#define LLAMA_KVPACK_H

#include "kvpack_c.h"
#include "llama.h"

#if defined(_WIN32)
#if defined(LLAMA_KVPACK_BUILD)
#define LLAMA_KVPACK_API __declspec(dllexport)
#else
#define LLAMA_KVPACK_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define LLAMA_KVPACK_API __attribute__((visibility("default")))
#else
#define LLAMA_KVPACK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The interface that this header describes, as KVPACK_ABI_VERSION. */
#define LLAMA_KVPACK_ABI_MAJOR 0
#define LLAMA_KVPACK_ABI_MINOR 1
#define LLAMA_KVPACK_ABI_VERSION (LLAMA_KVPACK_ABI_MAJOR * 65536 + LLAMA_KVPACK_ABI_MINOR)

/* LLAMA_KVPACK_ABI_VERSION of the library that is loaded. */
LLAMA_KVPACK_API uint32_t llama_kvpack_abi_version(void);

/* The saved sequences of one model under one configuration. */
typedef struct llama_kvpack llama_kvpack;

/* In which form a sequence is kept. Planes are the rows of each layer in the order of their positions: longer
 * prompts share them, and they go into a context of another shape. A blob is the engine's own bytes: it
 * answers its own tokens, or longer prompts where its token count is a multiple of 256, and goes only into a
 * context that keeps sequences in the same way (kv_unified, and n_seq_max without it). */
enum {
  LLAMA_KVPACK_AUTO = 0,   /* Planes where the engine's bytes are those that the model leads to expect, else a
                            * blob; the log says what differed. */
  LLAMA_KVPACK_PLANES = 1, /* Planes, or the call is refused. */
  LLAMA_KVPACK_BLOB = 2    /* Always a blob. */
};

/* Whether the engine rotates quantised rows. It decides by LLAMA_ATTN_ROT_DISABLE in the environment when it
 * makes a context, says so nowhere, and computes nonsense from rows of the other kind. */
enum {
  LLAMA_KVPACK_ROTATION_OF_ENVIRONMENT = 0, /* The environment is as it was when the contexts were made. */
  LLAMA_KVPACK_ROTATED = 1,                 /* Declared; refused when the environment says otherwise. */
  LLAMA_KVPACK_NOT_ROTATED = 2
};

/* A LoRA adapter in the order of llama_set_adapters_lora. Fixed for good. */
typedef struct llama_kvpack_adapter {
  const char* path; /* Its file; the content counts, not the name. */
  float scale;      /* Finite. */
  uint32_t reserved;
} llama_kvpack_adapter;

/* Which model, in which contexts, kept where. Everything is copied but `model`, which must outlive the
 * handle.
 *
 * What was saved is found only under the same content of all model files and adapters, tokenizer and chat
 * template, overrides, RoPE and window in effect, types of K and V, flash attention, rotation, version and
 * commit of ggml, `extra` and form. n_ctx, n_batch, n_ubatch, n_seq_max, kv_unified, the sequence id and
 * threads do not count: the contexts that are given to save and restore may differ in them. */
typedef struct llama_kvpack_options {
  uint64_t struct_size;
  const struct llama_model* model;
  const char* const* model_paths; /* Its file, or all of a split one, the first one first: those that the
                                   * model was loaded from, unchanged since. What the engine tells of its
                                   * metadata is compared; of weights it tells nothing. */
  uint64_t model_path_count;
  const struct llama_context_params* context_params; /* With which its contexts are made. flash_attn_type must
                                                      * be decided: `auto` is refused. */
  const struct llama_model_kv_override* kv_overrides; /* As in the llama_model_params; NULL: none. */
  const llama_kvpack_adapter* adapters;
  uint64_t adapter_count;
  const void* extra; /* Whatever else changes results: control vectors, devices. May be empty. */
  uint64_t extra_size;
  uint32_t rotation;     /* LLAMA_KVPACK_ROTATION. */
  uint32_t form;         /* LLAMA_KVPACK_AUTO, _PLANES or _BLOB. */
  const char* directory; /* As in kvpack_cache_options, likewise what follows. Also keeps `llama.digests`, the
                          * digests of files by device, inode, size and times. */
  const char* key_path;
  const kvpack_keys* keys;
  const char* tenant;
  uint64_t quota_bytes;
  uint64_t max_memory_bytes;
  uint64_t row_bytes; /* Of blobs and logits; 0: 65,536. */
  uint32_t max_parallelism;
  uint32_t create;
  uint32_t read_only;
  uint32_t unencrypted;
  uint32_t strict;
  uint32_t with_logits; /* 1: logits can be saved, and a restore has to take them. */
  kvpack_log_fn log;
  void* log_user;
  kvpack_progress_fn progress; /* While files are hashed: bytes of the file at hand. NULL: nobody is told. */
  void* progress_user;
  kvpack_allocate_fn allocate; /* Memory of states that are being restored, as in kvpack_cache_options; NULL:
                                * the heap. The form in which the engine gives and takes a state is put
                                * together on the heap in any case. */
  kvpack_release_fn release;   /* Needed with allocate. */
  void* memory_user;           /* Must stay good until the handle has been freed. */
} llama_kvpack_options;

/* What else a save may be told. */
typedef struct llama_kvpack_save_options {
  uint64_t struct_size;
  const kvpack_auxiliary_input* auxiliary; /* Images and other inputs that are no tokens; a sequence whose
                                            * positions show an image is refused without them. */
  uint64_t auxiliary_count;
  const float* logits; /* Of the last token: llama_vocab_n_tokens numbers. NULL: none. */
  uint64_t logits_count;
  uint64_t checkpoint_stride_tokens; /* As in kvpack_cache_save_options; only where every plane holds every
                                      * token. */
  uint64_t time_to_live_ms;
  const char* label;
  uint64_t label_size;
} llama_kvpack_save_options;

/* What a save has done. */
typedef struct llama_kvpack_saved {
  uint64_t struct_size;
  uint32_t form;      /* LLAMA_KVPACK_PLANES or _BLOB. */
  uint32_t replayed;  /* 1: all of it was there already. */
  uint32_t cut_count; /* Prefixes at which it can be found. */
  uint32_t reserved;
  uint64_t token_count;
  uint64_t state_bytes; /* What the engine gave. */
  uint64_t written_object_bytes;
  uint64_t shared_object_bytes;
} llama_kvpack_saved;

/* What else a restore may be told. */
typedef struct llama_kvpack_restore_options {
  uint64_t struct_size;
  const kvpack_auxiliary_input* auxiliary;
  uint64_t auxiliary_count;
  float* logits; /* Scratch of llama_vocab_n_tokens numbers, filled when the cut has logits. Needed where the
                  * handle was opened with_logits, NULL elsewhere. */
  uint64_t logits_count;
  uint32_t replace; /* 1: what the sequence holds is given up, when there is something to put there. 0: a
                     * sequence that is not empty is refused. */
  uint32_t reserved;
  const kvpack_cancel* cancel;
} llama_kvpack_restore_options;

/* What was restored. */
typedef struct llama_kvpack_restored {
  uint64_t struct_size;
  uint32_t form;            /* LLAMA_KVPACK_PLANES or _BLOB; 0: a miss. */
  uint32_t has_logits;      /* 1: `logits` are those of the last token. */
  uint64_t token_count;     /* Of the cut that was found. */
  uint64_t reusable_tokens; /* What the sequence now holds: go on with token number `reusable_tokens`. */
  uint64_t suffix_tokens;   /* Tokens of the prompt that are left to compute; 0 only with logits. */
  uint64_t restored_bytes;
  uint64_t fault_count; /* Deeper cuts that were damaged and passed over. */
  int32_t pos_min; /* llama_memory_seq_pos_min of the sequence; -1 after a miss, and where a chunk of which
                    * the sequence holds no token yet is the next. */
  uint32_t reserved;
} llama_kvpack_restored;

/* Opens the saved sequences of a model. Hashes the model's files, unless `llama.digests` knows them already.
 *
 * Errors: INVALID_ARGUMENT, STRUCT_SIZE; UNSUPPORTED the model keeps no sequences (an encoder), or the
 * context is of a kind that cannot be kept (MTP, ctx_other); EXPECTATION flash attention is `auto`, the scale
 * of an adapter is not finite, the declared rotation is not that of the environment, or the file is not that
 * of the model; with LLAMA_KVPACK_PLANES UNSUPPORTED the architecture has no plane form; NOT_FOUND, IO a file
 * cannot be read; as kvpack_cache_open. */
LLAMA_KVPACK_API kvpack_status llama_kvpack_open(llama_kvpack** out, const llama_kvpack_options* options,
                                                 kvpack_error** error);

/* Saves what a sequence holds, which was computed from exactly these tokens, all of them. The sequence is
 * only read. `options` and `out` may be NULL.
 *
 * Errors: INVALID_ARGUMENT; STATE the sequence is empty, or holds other positions than the tokens have (in a
 * window too: one that lost rows to llama_memory_seq_rm is no state of its tokens), or is of another model or
 * of other parameters; UNSUPPORTED with LLAMA_KVPACK_PLANES, where the engine's bytes are not those expected
 * (`field`, `found`, `expected`); INTERNAL the engine failed; as kvpack_cache_save. */
LLAMA_KVPACK_API kvpack_status llama_kvpack_save(llama_kvpack* handle, struct llama_context* ctx,
                                                 llama_seq_id seq_id, const llama_token* tokens,
                                                 uint64_t n_tokens, const llama_kvpack_save_options* options,
                                                 llama_kvpack_saved* out, kvpack_error** error);

/* Puts the deepest saved prefix of the tokens that is whole into a sequence. Everything is verified before
 * the engine is touched; after a miss, which is a success with 0, and after any failure but INSTALL the
 * sequence is as it was. Where the whole prompt was found without logits, its last token has to be computed
 * again: the sequence then holds one token less, or the next shallower prefix where the engine cannot drop a
 * token. `options` and `out` may be NULL.
 *
 * While a sequence that is given up is replaced, the engine's state of it is kept beside the new one, in the
 * memory of both.
 *
 * Errors: INVALID_ARGUMENT; STATE the sequence is not empty and not given up, or the context is of another
 * model, rotates by other factors, is too small (`found`, `expected`), keeps sequences in another way than a
 * blob needs, or, as what is given up shows, is not of the declared parameters; INSTALL the engine refused
 * what was verified, since an empty context is not of the declared parameters, or there is no room left among
 * the cells that sequences share (kv_unified), or it does not hold what it was given: the engine was given
 * back what the sequence held before; where it does not take that either, the sequence is empty
 * (llama_memory_seq_pos_max says which); INTERNAL the engine gives no state; as kvpack_cache_restore.
 */
LLAMA_KVPACK_API kvpack_status llama_kvpack_restore_deepest(llama_kvpack* handle, struct llama_context* ctx,
                                                            llama_seq_id seq_id, const llama_token* tokens,
                                                            uint64_t n_tokens, uint64_t* reusable_tokens,
                                                            const llama_kvpack_restore_options* options,
                                                            llama_kvpack_restored* out, kvpack_error** error);

/* In which form the model's sequences are kept: LLAMA_KVPACK_PLANES (with LLAMA_KVPACK_AUTO a save may still
 * fall back to a blob) or LLAMA_KVPACK_BLOB; 0 for what is no live handle. */
LLAMA_KVPACK_API uint32_t llama_kvpack_form(const llama_kvpack* handle);

/* One line on what the model's sequences are made of, or why they are kept as blobs; NULL for what is no live
 * handle. */
LLAMA_KVPACK_API const char* llama_kvpack_description(const llama_kvpack* handle);

/* The store, for figures and upkeep: as kvpack_cache_store. */
LLAMA_KVPACK_API kvpack_status llama_kvpack_store(const llama_kvpack* handle, kvpack_store** out,
                                                  kvpack_error** error);

/* Frees a handle; NULL is ignored. */
LLAMA_KVPACK_API void llama_kvpack_free(llama_kvpack* handle);

#ifdef __cplusplus
}
#endif

#endif
