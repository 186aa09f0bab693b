/* kvpack: KV caches saved, moved and given back as exactly the bytes that were asked for.
 *
 * The C interface of the library, C99 and C++. What the words mean is in docs/format; a guide with examples
 * and this reference as a page is docs/c-api.md.
 *
 * # Conventions
 *
 * Names are `kvpack_noun_verb`. Parameters come in the order handle, outputs, inputs, error.
 *
 * Status. A fallible function returns a kvpack_status: 0 is success, 1 to 99 are mistakes in calling, from
 * 100 on come the categories of the formats. Codes never change their meaning. Through the last parameter
 * `error`, which may be NULL, a failing call also gives an error handle, which the caller frees. A call that
 * succeeds leaves
 * `*error` alone; a call that fails leaves its outputs alone, except for memory that its text calls scratch.
 * Nothing is thrown, and there is no state per thread or per process. Every fallible function may fail with
 * INVALID_ARGUMENT, STRUCT_SIZE, BAD_HANDLE, NO_MEMORY and INTERNAL; its text names what comes besides, and
 * of these only what says more than the name.
 *
 * Handles. What a function writes through a `**` parameter belongs to the caller, who frees it with the
 * `_free` of its type; NULL is ignored there. A handle keeps what it needs of other handles alive, so they
 * may be freed in any order. "Immutable" handles may be used by several threads at once; the others by one
 * thread at a time. Freeing is for one thread, when no other uses the handle. Accessors that return a value
 * instead of a status give 0 or NULL for what is no live handle of their type or is out of range. Pointers
 * that they return belong to the handle. A handle that was freed is most likely refused with BAD_HANDLE;
 * where kvpack_has_feature("freed_handles") it is for certain, until many others have been freed.
 *
 * Spans. A length follows its pointer: `x, x_size` in bytes, `x, x_count` in elements. NULL goes with length
 * 0 only. Inputs are copied or used up during the call, unless a text says that they are borrowed. Texts are
 * UTF-8; where no length follows they end with NUL.
 *
 * Structs. One that begins with `struct_size` may grow at its end. The caller sets struct_size to the sizeof
 * that it was compiled with and everything that it does not use to zero, which always means the default. A
 * shorter struct of an older caller reads as if it ended in zeros; a longer one of a newer caller is refused
 * unless what is unknown is zero. Output structs are filled as far as both sides know them, and the rest is
 * set to zero. In structs that callbacks are given, struct_size says how much the library has filled. Structs
 * without struct_size are fixed for good. Members called `reserved` are zero.
 *
 * Callbacks. They get the `user` pointer that came with them, return 0 or a status, and may not use a handle
 * that is busy with the call in which they run. A code from 100 on ends the call with that code; any other
 * nonzero code, and a C++ exception, ends it with KVPACK_ERR_CALLBACK. Which threads call is said with each.
 *
 * Logs and memory. What is opened and then works for long (stores, caches, receivers, producers) tells a
 * kvpack_log_fn of the caller's, where it is given one, what it does. What holds the payload of a restore or
 * a transfer until the engine takes it is lent by the engine (`lend`, shadows), or comes from a
 * kvpack_allocate_fn that was given at opening, or else from the heap. Nothing else can be taken from the
 * caller: what OpenSSL, SQLite and the C++ runtime use is theirs.
 */
#ifndef KVPACK_C_H
#define KVPACK_C_H

#include <stdint.h>

#if defined(_WIN32)
#if defined(KVPACK_C_BUILD)
#define KVPACK_API __declspec(dllexport)
#else
#define KVPACK_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define KVPACK_API __attribute__((visibility("default")))
#else
#define KVPACK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* # Library
 *
 * Which library is at work. */

/* The interface that this header describes: the major number changes when programs must be rebuilt, the minor
 * number when functions, fields or codes are added. */
#define KVPACK_ABI_MAJOR 1
#define KVPACK_ABI_MINOR 0
#define KVPACK_ABI_VERSION (KVPACK_ABI_MAJOR * 65536 + KVPACK_ABI_MINOR)

/* KVPACK_ABI_VERSION of the library that is loaded. A program works with it when the major numbers are equal
 * and its minor number is not below the program's. */
KVPACK_API uint32_t kvpack_abi_version(void);

/* Version of the library as text, for example "1.0.0". */
KVPACK_API const char* kvpack_version(void);

/* 1 when the library has a feature, else 0, also for names that it does not know. Features: "codec"
 * (everything over bytes and callbacks), "files" (members called `path`), "json" (canonical JSON and proofs),
 * "handoff" (live transfers), "store" (stores in directories), "cache" (the same in two calls), "muse" (Muse
 * models and their caches), "cluster" (receivers and producers over TLS); "sha256_shani", "sha256_avx512",
 * "sha256_armv8", "io_uring" (compiled in; the processor and the kernel decide whether it is used);
 * "freed_handles" (freed handles are kept for a while, so that their use is refused: builds for debugging).
 */
KVPACK_API int32_t kvpack_has_feature(const char* name);

/* # Status codes and errors
 *
 * One code says what kind of thing went wrong, one text says what, and facts say where. */

/* 0 for success, or one of the KVPACK_ERR values below. */
typedef int32_t kvpack_status;

enum {
  KVPACK_OK = 0,

  /* Mistakes in calling. */
  KVPACK_ERR_INVALID_ARGUMENT = 1, /* NULL, a wrong size, or a value out of range; `argument` names it. */
  KVPACK_ERR_STRUCT_SIZE = 2,      /* struct_size is none that this library can read. */
  KVPACK_ERR_BUFFER_TOO_SMALL = 3, /* `expected` says how much room is needed. */
  KVPACK_ERR_BAD_HANDLE = 4,       /* A handle that was freed, or is of another type. */
  KVPACK_ERR_WRONG_STATE = 5,      /* The handle is finished, or has failed, or not ready yet. */
  KVPACK_ERR_UNSUPPORTED = 6,      /* This library does not have it. */
  KVPACK_ERR_CALLBACK = 7,         /* A callback returned a code that is none of these, or threw. */

  /* Objects: what bytes say about themselves and about each other. */
  KVPACK_ERR_UNKNOWN_ENUM = 100,   /* A closed enum has a value that is not listed. */
  KVPACK_ERR_U64_RANGE = 101,      /* A number does not fit. */
  KVPACK_ERR_BAD_MAGIC = 102,      /* Not this kind of object, or not this version of it. */
  KVPACK_ERR_CHECKSUM = 103,       /* An unkeyed digest differs: damage. */
  KVPACK_ERR_RESERVED = 104,       /* Nonzero where zero must be, or not the canonical bytes. */
  KVPACK_ERR_TRUNCATED = 105,      /* The bytes end too early. */
  KVPACK_ERR_BOUNDS = 106,         /* A count, size or offset is outside its bounds. */
  KVPACK_ERR_SEMANTICS = 107,      /* A rule about values is broken. */
  KVPACK_ERR_GRAPH = 108,          /* Objects do not fit together. */
  KVPACK_ERR_AUTHENTICATION = 109, /* Not written by the holder of the keys, or another object. */
  KVPACK_ERR_CODEC = 110,          /* An unsupported codec. */
  KVPACK_ERR_POISONED = 111,       /* An earlier failure has ended this object. */

  /* Storage and use. */
  KVPACK_ERR_IO = 200,          /* The operating system or a device failed. */
  KVPACK_ERR_CATALOG = 201,     /* The catalog of a store failed. */
  KVPACK_ERR_INTEGRITY = 202,   /* A store holds something that is not intact. */
  KVPACK_ERR_EXPECTATION = 203, /* Intact, but not what was expected; `field` says what differs. */
  KVPACK_ERR_QUOTA = 204,       /* A limit on memory or space would be exceeded. */
  KVPACK_ERR_ENDURANCE = 205,   /* A limit on writing would be exceeded. */
  KVPACK_ERR_STATE = 206,       /* What was given does not fit together or does not fit this moment. */
  KVPACK_ERR_NOT_FOUND = 207,   /* A clean miss: an object is absent, or an epoch has no key. */
  KVPACK_ERR_BUSY = 208,        /* Somebody else holds it. */
  KVPACK_ERR_CANCELLED = 209,   /* The caller wanted it to end. */

  /* Live transfer and JSON. */
  KVPACK_ERR_CANONICAL = 300,         /* JSON that does not parse where canonical JSON must stand. */
  KVPACK_ERR_DEADLINE_EXCEEDED = 301, /* It took too long. */
  KVPACK_ERR_VALIDATION = 302,        /* A rule of the protocol is broken. */
  KVPACK_ERR_INVALID_FRAME = 303,     /* Not a frame. */
  KVPACK_ERR_JSON = 304,              /* Not JSON, or not with these members. */
  KVPACK_ERR_TLS = 305,               /* The secure connection failed. */
  KVPACK_ERR_CONFIG = 306,            /* A configuration cannot be used. */
  KVPACK_ERR_LEAF_PIN = 307,          /* The peer has another certificate than the pinned one. */
  KVPACK_ERR_ALPN = 308,              /* The peer speaks another protocol. */
  KVPACK_ERR_REPLAY = 309,            /* A transfer or generation that was there before. */
  KVPACK_ERR_ZERO_GENERATION = 310,   /* Generation 0 is never installable. */
  KVPACK_ERR_PRODUCER_ABORT = 311,    /* The producer gave the transfer up. */
  KVPACK_ERR_MISSING_BEGIN = 312,     /* A transfer without a begin. */
  KVPACK_ERR_INSTALL = 313,           /* What was received could not be installed. */
  KVPACK_ERR_CONTROL = 314,           /* A control request cannot be served. */
  KVPACK_ERR_LIMIT = 315,             /* More than this reader takes. */
  KVPACK_ERR_TIMEOUT = 316,           /* The peer was silent for too long. */

  /* The machine. */
  KVPACK_ERR_NO_MEMORY = 900, /* Out of memory. */
  KVPACK_ERR_INTERNAL = 901   /* A fault of the library. */
};

/* Why a call failed. Immutable. Holds no key, prompt or token. */
typedef struct kvpack_error kvpack_error;

/* The word for a status, as the conformance kit and the tool's JSON spell it: "bad_magic", "authentication",
 * "invalid_argument". "ok" for 0; NULL for what is no status. */
KVPACK_API const char* kvpack_status_name(kvpack_status status);

/* The status that the failing call returned; 0 for what is no live handle. */
KVPACK_API kvpack_status kvpack_error_status(const kvpack_error* error);

/* kvpack_status_name of the error's status. */
KVPACK_API const char* kvpack_error_category(const kvpack_error* error);

/* What went wrong, in one line. From code 100 on the texts are those of docs/format. */
KVPACK_API const char* kvpack_error_message(const kvpack_error* error);

/* How many facts the error has. */
KVPACK_API uint64_t kvpack_error_context_count(const kvpack_error* error);

/* Name of fact `index`: `object`, `record`, `layer`, `state`, `tokens` (`[start,count]`), `field`, `found`,
 * `expected`, `argument`, `callback`, `returned`, `refused_by`, `retry`. For a mismatch `field` names what
 * differs. */
KVPACK_API const char* kvpack_error_context_key(const kvpack_error* error, uint64_t index);

/* Value of fact `index`. May quote a name out of an untrusted file: escape it before it is printed. */
KVPACK_API const char* kvpack_error_context_value(const kvpack_error* error, uint64_t index);

/* Value of the first fact called `key`; NULL when there is none. */
KVPACK_API const char* kvpack_error_find(const kvpack_error* error, const char* key);

/* Makes an error, for adapters that report in the way of this interface. The text is copied.
 *
 * Errors: INVALID_ARGUMENT it is no status that fails; NO_MEMORY. */
KVPACK_API kvpack_status kvpack_error_new(kvpack_error** out, kvpack_status status, const char* message,
                                          kvpack_error** error);

/* Adds a fact to an error that kvpack_error_new has made, before anybody else has it.
 *
 * Errors: NO_MEMORY. */
KVPACK_API kvpack_status kvpack_error_add(kvpack_error* made, const char* key, const char* value,
                                          kvpack_error** error);

/* Frees an error. */
KVPACK_API void kvpack_error_free(kvpack_error* error);

/* # Plain types
 *
 * Values without a handle. Fixed for good. */

/* A 32-byte identity. All zero means absent or invalid. */
typedef struct kvpack_id {
  uint8_t bytes[32];
} kvpack_id;

/* Bytes of the caller's. */
typedef struct kvpack_span {
  const void* data;
  uint64_t size;
} kvpack_span;

/* A state of a cache, for example the keys of layer 3: layer 3, name "attention.k". */
typedef struct kvpack_state_key {
  const char* name; /* 1 to 255 bytes of UTF-8. */
  uint64_t name_size;
  uint32_t layer;
  uint32_t reserved;
} kvpack_state_key;

/* Under what model a cache was computed: five digests of the adapter's, none zero. */
typedef struct kvpack_model {
  kvpack_id weights_config;
  kvpack_id adapters; /* A fixed value of the adapter's for "no adapter". */
  kvpack_id tokenizer_template;
  kvpack_id position_semantics; /* Effective RoPE, window, softcap, epsilon. */
  kvpack_id qualified_math;
} kvpack_model;

/* One input that is not a token, for example an image: what kind, and which. */
typedef struct kvpack_auxiliary_input {
  kvpack_id type_id;
  kvpack_id value_id;
} kvpack_auxiliary_input;

/* Which input a cache was computed from. */
typedef struct kvpack_input_cut {
  kvpack_id token_root; /* The last node of the prefix chain. */
  kvpack_id auxiliary_root;
  uint64_t token_count;
} kvpack_input_cut;

/* A node of the prefix chain: stands for all tokens up to token_count. */
typedef struct kvpack_prefix_node {
  kvpack_id id;
  uint64_t token_count;
  uint32_t reusable; /* 1 for a complete block of 256 tokens: a cut that other prompts can share. */
  uint32_t reserved;
} kvpack_prefix_node;

/* Where a chunk's plaintext lies in the logical stream of its state. Positions are absolute. */
typedef struct kvpack_chunk_span {
  uint64_t token_start;
  uint64_t token_count;
  uint64_t plaintext_offset; /* Bytes from the start of the state's stream. */
  uint32_t plaintext_bytes;
  uint32_t reserved;
} kvpack_chunk_span;

/* By what a manifest knows a chunk object. */
typedef struct kvpack_chunk_ref {
  kvpack_id content_id;
  kvpack_id object_key; /* Names the stored object. */
  kvpack_id stored_object_digest;
  uint64_t key_epoch;
  uint32_t plaintext_bytes;
  uint32_t object_bytes;
} kvpack_chunk_ref;

/* Closed enums; the values are those of the wire. Where a member takes one, 0 stands for the default that is
 * named there. */
enum {
  KVPACK_DTYPE_U8 = 1,
  KVPACK_DTYPE_U32 = 2,
  KVPACK_DTYPE_I8 = 3,
  KVPACK_DTYPE_I16 = 4,
  KVPACK_DTYPE_I32 = 5,
  KVPACK_DTYPE_F16 = 6,
  KVPACK_DTYPE_BF16 = 7,
  KVPACK_DTYPE_F32 = 8,
  KVPACK_DTYPE_F64 = 9
};
enum { KVPACK_CODEC_RAW = 1, KVPACK_CODEC_LOSSLESS = 2 };
enum { KVPACK_LAYOUT_CONTIGUOUS = 1, KVPACK_LAYOUT_STRIDED = 2 };
enum { KVPACK_MODE_NATIVE = 1, KVPACK_MODE_PORTABLE = 2 };
enum { KVPACK_AXIS_DIRECT = 1, KVPACK_AXIS_GATHER = 2, KVPACK_AXIS_TAIL_WINDOW = 3 };
enum { KVPACK_RECORD_CHUNK = 1, KVPACK_RECORD_PACK = 2 };

/* How much a success has shown. */
enum {
  KVPACK_LEVEL_AUTHENTICATED = 1, /* The holder of the keys wrote every byte. */
  KVPACK_LEVEL_INTEGRITY = 2,     /* No keys: no accident has damaged it. Anyone may have written it. */
  KVPACK_LEVEL_FRAMING = 3        /* No keys and encrypted manifests: each record is intact, no more. */
};

/* Most dimensions of a state. */
#define KVPACK_MAX_RANK 8
/* Stands for the token axis among the dimensions of a state. */
#define KVPACK_TOKEN_AXIS 0
/* Most bytes of a chunk's plaintext, of a chunk object and of a pack. */
#define KVPACK_MAX_CHUNK_PLAINTEXT_BYTES 4194304
#define KVPACK_MAX_CHUNK_OBJECT_BYTES 4235296
#define KVPACK_MAX_PACK_BYTES 268443664
/* Most elements of an audit path that this interface gives. */
#define KVPACK_MAX_MERKLE_PATH 64

/* Fills `out`. Called by one thread at a time. Must be unpredictable: from it come salts and nonces. */
typedef kvpack_status (*kvpack_random_fn)(void* user, uint8_t* out, uint64_t size);

/* Writes all of `data` behind what is there. Called by one thread at a time. */
typedef kvpack_status (*kvpack_append_fn)(void* user, const uint8_t* data, uint64_t size);

/* Fills all of `out` from `offset`. Called from several threads at once when parallelism is above 1. */
typedef kvpack_status (*kvpack_read_at_fn)(void* user, uint64_t offset, uint8_t* out, uint64_t size);

/* Told how far long work is. One call at a time, from any of the threads. Anything but 0 ends the work with
 * that status; KVPACK_ERR_CANCELLED is meant for it. */
typedef kvpack_status (*kvpack_progress_fn)(void* user, uint64_t done_bytes, uint64_t total_bytes);

/* How important it is what a handle says. */
enum {
  KVPACK_LOG_WARNING = 1, /* Something was refused, or damaged and passed over. */
  KVPACK_LOG_INFO = 2     /* What was saved, restored, transferred or not found. */
};

/* Told what a handle does, in one line of UTF-8, by the thread that does it; several may call at once. No
 * key, token or prompt is in it; names of files and peers may be. May not use the handle. */
typedef void (*kvpack_log_fn)(void* user, uint32_t level, const char* text);

/* Gives memory of `size` bytes, at least 1, or a status. Called by the thread that restores or receives;
 * several may call at once. */
typedef kvpack_status (*kvpack_allocate_fn)(void* user, void** data, uint64_t size);

/* Takes memory back that kvpack_allocate_fn has given. Called by any thread. */
typedef void (*kvpack_release_fn)(void* user, void* data, uint64_t size);

/* # Bytes
 *
 * Results of variable length. */

/* Bytes that a call has made. Immutable. */
typedef struct kvpack_bytes kvpack_bytes;

/* The bytes; not NULL for a live handle. */
KVPACK_API const uint8_t* kvpack_bytes_data(const kvpack_bytes* bytes);

/* How many there are. */
KVPACK_API uint64_t kvpack_bytes_size(const kvpack_bytes* bytes);

/* Frees bytes. */
KVPACK_API void kvpack_bytes_free(kvpack_bytes* bytes);

/* Room into which a callback puts bytes of a length that only it knows. Exists during the callback; one
 * thread. */
typedef struct kvpack_buffer kvpack_buffer;

/* Makes the buffer `size` bytes long and gives its memory, which the callback fills. What was in it stays as
 * far as it fits. The pointer is good until the next call.
 *
 * Errors: LIMIT more than the buffer may hold, which depends on the object that is asked for. */
KVPACK_API kvpack_status kvpack_buffer_resize(kvpack_buffer* buffer, uint8_t** data, uint64_t size,
                                              kvpack_error** error);

/* # Keys
 *
 * Everything that a reader or writer knows about keys: roots, tenant, and the epochs that may be opened. */

/* A key ring. Immutable. Wiped when the last handle that uses it is freed. */
typedef struct kvpack_keys kvpack_keys;

/* An epoch with a root of its own: 32 bytes, or a key file. */
typedef struct kvpack_epoch_root {
  uint64_t epoch;
  const void* root;
  uint64_t root_size;
  const char* root_path;
} kvpack_epoch_root;

/* What a key ring is made of. The caller wipes its own copies of secrets. */
typedef struct kvpack_keys_options {
  uint64_t struct_size;
  const void* stable_root; /* 32 secret bytes that never change for a store, */
  uint64_t stable_root_size;
  const char* stable_root_path; /* or a file of them: mode 0600, one link, no symbolic link. */
  const void* operator_id;      /* The operator's name of the tenant, as bytes, */
  uint64_t operator_id_size;
  const kvpack_id* tenant; /* or the tenant namespace itself. */
  const kvpack_epoch_root*
      epoch_roots; /* Epochs that have a root of their own; the others use stable_root. */
  uint64_t epoch_root_count;
  uint64_t minimum_epoch;    /* Oldest epoch to be opened; 0: active_epoch less 63, at least 1. */
  uint64_t active_epoch;     /* Newest one, and the one to write; 0: every epoch is readable, 1 is written. */
  uint32_t only_epoch_roots; /* 1: epochs without a root of their own are not found. */
  uint32_t reserved;
} kvpack_keys_options;

/* Makes a key ring.
 *
 * Errors: STATE a root is all zero, epochs repeat or are zero, the window is empty or wider than 64, a key
 * file is not private or not 32 bytes; SEMANTICS the operator id is empty; NOT_FOUND, IO a key file cannot be
 * read. */
KVPACK_API kvpack_status kvpack_keys_new(kvpack_keys** out, const kvpack_keys_options* options,
                                         kvpack_error** error);

/* The tenant namespace that all identities of this ring are bound to. */
KVPACK_API const kvpack_id* kvpack_keys_tenant(const kvpack_keys* keys);

/* Whether objects of an epoch can be opened.
 *
 * Errors: SEMANTICS epoch 0; NOT_FOUND the ring has no key for it. */
KVPACK_API kvpack_status kvpack_keys_check_epoch(const kvpack_keys* keys, uint64_t epoch,
                                                 kvpack_error** error);

/* The namespace that stands for an operator's tenant in a store. Does not depend on the epoch.
 *
 * Errors: SEMANTICS the operator id is empty; BOUNDS it is too long. */
KVPACK_API kvpack_status kvpack_tenant_namespace(kvpack_id* out, const void* stable_root,
                                                 uint64_t stable_root_size, const void* operator_id,
                                                 uint64_t operator_id_size, kvpack_error** error);

/* The identity of a name under the ring's own namespace key.
 *
 * Errors: BOUNDS the name is too long. */
KVPACK_API kvpack_status kvpack_keys_namespace_id(const kvpack_keys* keys, kvpack_id* out, const void* name,
                                                  uint64_t name_size, kvpack_error** error);

/* Frees a key ring. */
KVPACK_API void kvpack_keys_free(kvpack_keys* keys);

/* # Families
 *
 * Which states a cache has and how each is laid out, whatever its length. States are in the family's order,
 * by layer and then by name; `state_index` counts in that order everywhere. */

/* A representation family with its identity. Immutable. */
typedef struct kvpack_family kvpack_family;

/* A family that is being described. One thread at a time. */
typedef struct kvpack_family_builder kvpack_family_builder;

/* What a family says about all of its states. The three identities come from the engine's adapter, none zero.
 */
typedef struct kvpack_family_options {
  uint64_t struct_size;
  kvpack_id engine_cache_abi; /* Changes whenever the meaning or order of cache bytes does. */
  kvpack_id topology;
  kvpack_id shard_map;
  uint32_t mode;             /* KVPACK_MODE; 0: native. */
  uint32_t page_size_tokens; /* 0: 256. */
} kvpack_family_options;

/* One state as an engine knows it. */
typedef struct kvpack_state_options {
  uint64_t struct_size;
  const char* name; /* 1 to 255 bytes of UTF-8. */
  uint64_t name_size;
  uint32_t layer;
  uint32_t dtype;             /* KVPACK_DTYPE. */
  const uint64_t* dimensions; /* Outermost first, KVPACK_TOKEN_AXIS exactly once. */
  uint64_t dimension_count;   /* 1 to 8. */
  uint32_t token_axis_rule;   /* KVPACK_AXIS; 0: direct. */
  uint32_t codec;             /* KVPACK_CODEC; 0: raw. */
  uint32_t layout;            /* KVPACK_LAYOUT; 0: contiguous. */
  uint32_t reserved;
  const kvpack_state_key* dependencies; /* States without which this one is useless. */
  uint64_t dependency_count;
} kvpack_state_options;

/* A state of a family, as kvpack_family_state gives it. */
typedef struct kvpack_state_info {
  uint64_t struct_size;
  const char* name; /* Ends with NUL. */
  uint64_t name_size;
  uint32_t layer;
  uint32_t dtype;
  uint32_t dtype_bytes; /* Bytes of one element. */
  uint32_t codec;
  uint32_t layout;
  uint32_t token_axis_rule;
  uint32_t token_axis; /* Which dimension counts tokens. */
  uint32_t rank;
  uint64_t dimensions[KVPACK_MAX_RANK]; /* In elements; KVPACK_TOKEN_AXIS at the token axis. */
  uint64_t elements_per_token;
  uint64_t dependency_count;
} kvpack_state_info;

/* Begins a family. */
KVPACK_API kvpack_status kvpack_family_builder_new(kvpack_family_builder** out,
                                                   const kvpack_family_options* options,
                                                   kvpack_error** error);

/* Adds a state; the order of the calls does not matter.
 *
 * Errors: UNKNOWN_ENUM. */
KVPACK_API kvpack_status kvpack_family_builder_add_state(kvpack_family_builder* builder,
                                                         const kvpack_state_options* options,
                                                         kvpack_error** error);

/* Makes and validates the family. The builder can go on.
 *
 * Errors: SEMANTICS, BOUNDS, CODEC, GRAPH by the family rules, with layer and state. */
KVPACK_API kvpack_status kvpack_family_builder_build(const kvpack_family_builder* builder,
                                                     kvpack_family** out, kvpack_error** error);

/* Frees a builder. */
KVPACK_API void kvpack_family_builder_free(kvpack_family_builder* builder);

/* Decodes a canonical family object. Does not validate it.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, UNKNOWN_ENUM, BOUNDS, SEMANTICS. */
KVPACK_API kvpack_status kvpack_family_decode(kvpack_family** out, const void* object, uint64_t object_size,
                                              kvpack_error** error);

/* Checks the family rules F1 to F17. Saving checks them by itself.
 *
 * Errors: SEMANTICS, BOUNDS, CODEC, GRAPH, with layer and state. */
KVPACK_API kvpack_status kvpack_family_validate(const kvpack_family* family, kvpack_error** error);

/* The canonical family object. */
KVPACK_API kvpack_status kvpack_family_encode(const kvpack_family* family, kvpack_bytes** out,
                                              kvpack_error** error);

/* The family's identity. */
KVPACK_API const kvpack_id* kvpack_family_id(const kvpack_family* family);

/* How many states the family has. */
KVPACK_API uint64_t kvpack_family_state_count(const kvpack_family* family);

/* Describes a state. The name belongs to the family. */
KVPACK_API kvpack_status kvpack_family_state(const kvpack_family* family, kvpack_state_info* out,
                                             uint64_t state_index, kvpack_error** error);

/* Dependency `index` of a state. The name belongs to the family. */
KVPACK_API kvpack_status kvpack_family_dependency(const kvpack_family* family, kvpack_state_key* out,
                                                  uint64_t state_index, uint64_t index, kvpack_error** error);

/* Index of the state with this key.
 *
 * Errors: NOT_FOUND. */
KVPACK_API kvpack_status kvpack_family_find_state(const kvpack_family* family, uint64_t* state_index,
                                                  const kvpack_state_key* key, kvpack_error** error);

/* Frees a family. */
KVPACK_API void kvpack_family_free(kvpack_family* family);

/* # Inputs
 *
 * By what an input and its prefixes are found. */

/* Derives the nodes of a prefix chain as tokens arrive. One thread at a time. */
typedef struct kvpack_prefix_chain kvpack_prefix_chain;

/* Begins a chain under a model, a family and inputs that are not tokens.
 *
 * Errors: SEMANTICS an auxiliary identity is zero. */
KVPACK_API kvpack_status kvpack_prefix_chain_new(kvpack_prefix_chain** out, const kvpack_keys* keys,
                                                 const kvpack_model* model, const kvpack_id* family_id,
                                                 const kvpack_auxiliary_input* auxiliary,
                                                 uint64_t auxiliary_count, kvpack_error** error);

/* Takes tokens. Equal tokens give equal nodes however they are split over calls.
 *
 * Errors: WRONG_STATE the chain is finished. */
KVPACK_API kvpack_status kvpack_prefix_chain_push(kvpack_prefix_chain* chain, const uint32_t* tokens,
                                                  uint64_t token_count, kvpack_error** error);

/* Ends the chain: a short last block gets its node.
 *
 * Errors: WRONG_STATE the chain is finished. */
KVPACK_API kvpack_status kvpack_prefix_chain_finish(kvpack_prefix_chain* chain, kvpack_error** error);

/* How many nodes there are so far. */
KVPACK_API uint64_t kvpack_prefix_chain_node_count(const kvpack_prefix_chain* chain);

/* The nodes in order. Good until the next push or finish; NULL before the first node. */
KVPACK_API const kvpack_prefix_node* kvpack_prefix_chain_nodes(const kvpack_prefix_chain* chain);

/* The identity of the whole input.
 *
 * Errors: WRONG_STATE the chain is not finished. */
KVPACK_API kvpack_status kvpack_prefix_chain_cut(const kvpack_prefix_chain* chain, kvpack_input_cut* out,
                                                 kvpack_error** error);

/* Frees a chain. */
KVPACK_API void kvpack_prefix_chain_free(kvpack_prefix_chain* chain);

/* Root of the inputs that are not tokens, in the caller's order; an empty list has one too.
 *
 * Errors: SEMANTICS a component is zero; BOUNDS. */
KVPACK_API kvpack_status kvpack_auxiliary_root(kvpack_id* out, const kvpack_keys* keys,
                                               const kvpack_auxiliary_input* auxiliary,
                                               uint64_t auxiliary_count, kvpack_error** error);

/* Identity of a model. */
KVPACK_API kvpack_status kvpack_model_id(kvpack_id* out, const kvpack_model* model, kvpack_error** error);

/* Identity of a delta chain: its manifest ids from the full base to the head. */
KVPACK_API kvpack_status kvpack_restore_chain_id(kvpack_id* out, const kvpack_id* manifest_ids,
                                                 uint64_t manifest_id_count, kvpack_error** error);

/* The engine cache ABI of a family whose keys were rotated. `rotation_id` NULL means no rotation and gives
 * `base`. */
KVPACK_API kvpack_status kvpack_rotation_abi(kvpack_id* out, const kvpack_id* base,
                                             const kvpack_id* rotation_id, kvpack_error** error);

/* Derives one id per completed cut of a token stream. One thread at a time. */
typedef struct kvpack_cut_chain kvpack_cut_chain;

/* How many tokens each cut has. */
typedef struct kvpack_cut_chain_options {
  uint64_t struct_size;
  const void* store_key; /* 32 secret bytes. */
  uint64_t store_key_size;
  kvpack_id tenant_namespace;
  uint32_t two_tier; /* 0: every cut has tail_stride tokens, and head_tokens and head_stride are 0. */
  uint32_t reserved;
  uint64_t head_tokens; /* Cuts that begin before this token have head_stride tokens. */
  uint64_t head_stride;
  uint64_t tail_stride;
} kvpack_cut_chain_options;

/* Begins a cut chain.
 *
 * Errors: SEMANTICS a stride is zero, or the head is no multiple of both. */
KVPACK_API kvpack_status kvpack_cut_chain_new(kvpack_cut_chain** out, const kvpack_cut_chain_options* options,
                                              kvpack_error** error);

/* Takes tokens and gives the ids of the cuts that they complete. The ids belong to the chain, until its next
 * call.
 *
 * Errors: BOUNDS more than 512 cuts; POISONED an earlier call failed. */
KVPACK_API kvpack_status kvpack_cut_chain_push(kvpack_cut_chain* chain, const kvpack_id** tips,
                                               uint64_t* tip_count, const uint32_t* tokens,
                                               uint64_t token_count, kvpack_error** error);

/* Frees a cut chain. */
KVPACK_API void kvpack_cut_chain_free(kvpack_cut_chain* chain);

/* # Saving a cut
 *
 * Planes in, chunk objects out through a callback, and at the end a pack, which is to be stored last. */

/* A cut that is about to be saved. One thread at a time. */
typedef struct kvpack_cut_builder kvpack_cut_builder;

/* A cut that has been saved. Immutable. */
typedef struct kvpack_saved_cut kvpack_saved_cut;

/* A cut that has been opened; see the next section. Immutable: its threads may be as many as its callbacks
 * can bear. */
typedef struct kvpack_cut kvpack_cut;

/* A cut's content: identity, states, and where each of its bytes is. Immutable. */
typedef struct kvpack_manifest kvpack_manifest;

/* How the token stream of a state is cut into chunks. */
enum {
  KVPACK_SPANS_ALIGNED =
      0, /* On absolute multiples of the grain, so that saves of one prefix share chunks. */
  KVPACK_SPANS_UPSTREAM = 1 /* As many tokens as fit 4 MiB from the first one on. */
};

/* What a cut is, apart from its planes. */
typedef struct kvpack_cut_builder_options {
  uint64_t struct_size;
  const kvpack_keys* keys;
  const kvpack_family* family;
  uint64_t epoch; /* Key epoch to write; 0: the ring's active one. */
  kvpack_model model;
  const uint32_t* tokens; /* The complete list of the cut, for a delta too. */
  uint64_t token_count;
  const kvpack_auxiliary_input* auxiliary;
  uint64_t auxiliary_count;
  const kvpack_input_cut*
      known_cut;            /* A cut known by identity alone: then no tokens, auxiliary inputs or parent. */
  const kvpack_cut* parent; /* Writes a delta on this cut; at depth 7 a full manifest by reference. */
  uint32_t span_rule;       /* KVPACK_SPANS. */
  uint32_t grain_tokens;    /* A multiple of 256; 0: 2048. */
  uint32_t window_grain_tokens; /* The same for tail-window states; 0: plain runs. */
  uint32_t encrypt_chunks;      /* 1: chunks are encrypted. They are authenticated in any case. */
  uint32_t encrypt_manifest;
  uint32_t parallelism;    /* Threads, at most 256; 0: 1. Changes no byte. */
  kvpack_random_fn random; /* Salts and nonces; NULL: the system's generator. */
  void* random_user;
} kvpack_cut_builder_options;

/* One state's memory, as the caller has it. */
typedef struct kvpack_plane {
  uint64_t struct_size;
  const void* data; /* Borrowed until the builder is freed; must keep still during a save. */
  uint64_t data_size;
  uint64_t token_start; /* First token in it; not 0 for a tail window or a plane without the parent's. */
  uint64_t token_count; /* 0: up to the end of the cut. */
  const uint64_t* byte_strides; /* Per dimension the distance of neighbours; NULL for a row-major plane. */
  uint64_t byte_stride_count;
  uint32_t sidecar_sinks; /* Sinks of the statistics sidecar, 1 to 8, of an f16 state; 0: no sidecar. */
  uint32_t reserved;
} kvpack_plane;

/* A chunk object that has been made. Its pointers are good during the callback. */
typedef struct kvpack_saved_chunk {
  uint64_t struct_size;
  uint64_t state_index;
  kvpack_chunk_span span;
  kvpack_chunk_ref ref; /* ref.object_key is the name to store it under. */
  const uint8_t* object;
  uint64_t object_size;
} kvpack_saved_chunk;

/* Takes chunk objects in (state, span) order, one at a time, from any of the threads. */
typedef kvpack_status (*kvpack_chunk_sink_fn)(void* user, const kvpack_saved_chunk* chunk);

/* Begins a cut.
 *
 * Errors: SEMANTICS, NOT_FOUND the epoch has no key. */
KVPACK_API kvpack_status kvpack_cut_builder_new(kvpack_cut_builder** out,
                                                const kvpack_cut_builder_options* options,
                                                kvpack_error** error);

/* Sets the plane of a state, again if need be. */
KVPACK_API kvpack_status kvpack_cut_builder_set_plane(kvpack_cut_builder* builder, uint64_t state_index,
                                                      const kvpack_plane* plane, kvpack_error** error);

/* Chooses the chunks of a state by their token counts, in order; no counts: by the span rule again. */
KVPACK_API kvpack_status kvpack_cut_builder_set_chunk_tokens(kvpack_cut_builder* builder,
                                                             uint64_t state_index,
                                                             const uint64_t* token_counts,
                                                             uint64_t token_count_count,
                                                             kvpack_error** error);

/* Adds an atomic group: states that are restored together or not at all. Without groups all states are one.
 */
KVPACK_API kvpack_status kvpack_cut_builder_add_group(kvpack_cut_builder* builder, uint32_t group_id,
                                                      const uint64_t* state_indices,
                                                      uint64_t state_index_count, kvpack_error** error);

/* Encodes the planes and hands over their chunks. The payload is copied once, into the objects; in memory are
 * two chunks per thread and one more. After a failure the objects that were handed over belong to no pack.
 *
 * Errors: WRONG_STATE a state has no plane; STATE planes, groups or tokens do not fit the family; EXPECTATION
 * the parent is none of this cut; QUOTA compaction exceeds the chunk bound; BOUNDS, SEMANTICS, CODEC, GRAPH;
 * IO no randomness; and what the sink returns. */
KVPACK_API kvpack_status kvpack_cut_builder_save(const kvpack_cut_builder* builder, kvpack_saved_cut** out,
                                                 kvpack_chunk_sink_fn sink, void* sink_user,
                                                 kvpack_error** error);

/* Frees a builder. */
KVPACK_API void kvpack_cut_builder_free(kvpack_cut_builder* builder);

/* The pack, to be stored under its manifest id. */
KVPACK_API const uint8_t* kvpack_saved_cut_pack(const kvpack_saved_cut* saved, uint64_t* pack_size);

/* Identity of the manifest in the pack. */
KVPACK_API const kvpack_id* kvpack_saved_cut_manifest_id(const kvpack_saved_cut* saved);

/* How many prefix nodes the input has; 0 for a cut that is known by identity alone. */
KVPACK_API uint64_t kvpack_saved_cut_node_count(const kvpack_saved_cut* saved);

/* The nodes by which this cut and its prefixes are found. */
KVPACK_API const kvpack_prefix_node* kvpack_saved_cut_nodes(const kvpack_saved_cut* saved);

/* How many chunks the save has written. */
KVPACK_API uint64_t kvpack_saved_cut_chunk_count(const kvpack_saved_cut* saved);

/* Plaintext bytes of these chunks. */
KVPACK_API uint64_t kvpack_saved_cut_payload_bytes(const kvpack_saved_cut* saved);

/* The manifest. */
KVPACK_API kvpack_status kvpack_saved_cut_manifest(const kvpack_saved_cut* saved, kvpack_manifest** out,
                                                   kvpack_error** error);

/* Frees a saved cut. */
KVPACK_API void kvpack_saved_cut_free(kvpack_saved_cut* saved);

/* # Opening and restoring a cut
 *
 * A pack and its parents, checked as one chain; then its chunks, verified into memory that the caller lends.
 */

/* An open pack set; see below. Immutable: its threads may be as many as its callback can bear. */
typedef struct kvpack_pack_set kvpack_pack_set;

/* Gives the pack with this manifest id. Called by one thread at a time. KVPACK_ERR_NOT_FOUND: it is absent.
 */
typedef kvpack_status (*kvpack_read_pack_fn)(void* user, const kvpack_id* manifest_id, kvpack_buffer* pack);

/* Fills `object`, ref->object_bytes long, with a chunk object. Called from several threads at once when
 * parallelism is above 1. KVPACK_ERR_NOT_FOUND: it is absent. What it gives is trusted in nothing. */
typedef kvpack_status (*kvpack_read_chunk_fn)(void* user, const kvpack_chunk_ref* ref, uint8_t* object,
                                              uint64_t object_size);

/* What a reader is willing to handle; 0 is the format's own bound. May be narrowed, not widened. */
typedef struct kvpack_limits {
  uint64_t struct_size;
  uint32_t max_states;
  uint32_t max_chunks_per_state;
  uint64_t max_restored_bytes; /* Of all states together, as the manifest counts them. */
} kvpack_limits;

/* Where a cut comes from: a pack and callbacks, or a pack set. */
typedef struct kvpack_cut_options {
  uint64_t struct_size;
  const kvpack_keys* keys; /* NULL: those of the pack set; without any, integrity only. */
  const void* pack;        /* The head pack, used up during the call. */
  uint64_t pack_size;
  kvpack_read_pack_fn read_pack;   /* Parents of a delta. NULL: they are not found. */
  kvpack_read_chunk_fn read_chunk; /* NULL: chunks are not found. */
  void* read_user;                 /* Must stay good until the cut is freed. */
  const kvpack_pack_set* pack_set; /* Instead of all that: the head of this set. */
  const kvpack_limits* limits;     /* NULL: the format's. */
  uint64_t max_memory_bytes;       /* Most memory of all planes together; 0: 4 TiB. */
} kvpack_cut_options;

/* A state of a cut: its plane as it comes back. */
typedef struct kvpack_plane_info {
  uint64_t struct_size;
  const char* name; /* Ends with NUL; belongs to the handle. */
  uint64_t name_size;
  uint32_t layer;
  uint32_t dtype;
  uint32_t dtype_bytes;
  uint32_t token_axis_rule;
  uint32_t token_axis;
  uint32_t rank;
  uint64_t dimensions[KVPACK_MAX_RANK];   /* In elements, tokens at the token axis. */
  uint64_t byte_strides[KVPACK_MAX_RANK]; /* As the manifest says: row-major for contiguous states. */
  uint64_t size_bytes;                    /* Memory that the plane takes. */
  uint64_t token_start;                   /* First token: 0, or where a tail window begins. */
  uint64_t token_count;
} kvpack_plane_info;

/* How chunks are read. */
typedef struct kvpack_restore_options {
  uint64_t struct_size;
  uint32_t integrity_only; /* 1: without keys. Whatever comes back may be anyone's. */
  uint32_t parallelism;    /* Threads, at most 256; 0: 1. Changes no byte and no verdict. */
  kvpack_progress_fn progress;
  void* progress_user;
} kvpack_restore_options;

/* Memory that the caller lends for one state. Shadows may not overlap each other. */
typedef struct kvpack_shadow {
  void* data;
  uint64_t size;
  const uint64_t* byte_strides; /* The engine's own; NULL: those of kvpack_plane_info. */
  uint64_t byte_stride_count;
} kvpack_shadow;

/* A chunk that has passed its last check. Its pointers are good during the callback. */
typedef struct kvpack_restored_chunk {
  uint64_t struct_size;
  uint64_t state_index;
  kvpack_chunk_span span;
  kvpack_chunk_ref ref;
  const uint8_t* plaintext; /* Tokens outermost, then the other dimensions in order. */
  uint64_t plaintext_size;
} kvpack_restored_chunk;

/* Takes verified chunks, in any order, from several threads at once when parallelism is above 1. */
typedef kvpack_status (*kvpack_chunk_visit_fn)(void* user, const kvpack_restored_chunk* chunk);

/* Opens a cut: the head pack and every parent, from leaf to root, each authenticated before its parent is
 * asked for. No chunk is read.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, BOUNDS, CHECKSUM, AUTHENTICATION, SEMANTICS, GRAPH, CODEC,
 * UNKNOWN_ENUM; NOT_FOUND an epoch has no key, a parent is absent, or no key opens the manifest; QUOTA
 * max_memory_bytes; with object, layer and state; and what the callback returns. */
KVPACK_API kvpack_status kvpack_cut_open(kvpack_cut** out, const kvpack_cut_options* options,
                                         kvpack_error** error);

/* KVPACK_LEVEL_AUTHENTICATED with keys, KVPACK_LEVEL_INTEGRITY without. */
KVPACK_API uint32_t kvpack_cut_level(const kvpack_cut* cut);

/* How many tokens the cut has. */
KVPACK_API uint64_t kvpack_cut_token_count(const kvpack_cut* cut);

/* 0 for a full manifest, else the number of parents, at most 7. */
KVPACK_API uint32_t kvpack_cut_depth(const kvpack_cut* cut);

/* Identity of the head manifest. */
KVPACK_API const kvpack_id* kvpack_cut_manifest_id(const kvpack_cut* cut);

/* Identity of the whole chain. */
KVPACK_API const kvpack_id* kvpack_cut_restore_chain_id(const kvpack_cut* cut);

/* How many states the cut has. */
KVPACK_API uint64_t kvpack_cut_state_count(const kvpack_cut* cut);

/* How many chunks the whole chain has. */
KVPACK_API uint64_t kvpack_cut_chunk_count(const kvpack_cut* cut);

/* Memory that all planes take together. */
KVPACK_API uint64_t kvpack_cut_total_bytes(const kvpack_cut* cut);

/* Describes the plane of a state. */
KVPACK_API kvpack_status kvpack_cut_state(const kvpack_cut* cut, kvpack_plane_info* out, uint64_t state_index,
                                          kvpack_error** error);

/* Chunk `index` of the chain, base to head, then (state, span) order. Outputs may be NULL. */
KVPACK_API kvpack_status kvpack_cut_chunk(const kvpack_cut* cut, uint64_t* state_index,
                                          kvpack_chunk_span* span, kvpack_chunk_ref* ref, uint64_t index,
                                          kvpack_error** error);

/* The manifest `depth` of the chain, 0 for the full base. */
KVPACK_API kvpack_status kvpack_cut_manifest(const kvpack_cut* cut, kvpack_manifest** out, uint32_t depth,
                                             kvpack_error** error);

/* Restores every plane into memory that the caller lends, one shadow per state of the family. The memory is
 * scratch until success, and must not be used after a failure; nothing live is touched. In memory are three
 * chunks per thread.
 *
 * Errors: STATE keys are missing and integrity_only is not set, a shadow does not fit, or its elements
 * overlap; the first failure in chunk order: NOT_FOUND, AUTHENTICATION, BOUNDS, BAD_MAGIC, RESERVED,
 * TRUNCATED, CODEC, CHECKSUM, SEMANTICS, with object, layer, state and tokens; and what callbacks return. */
KVPACK_API kvpack_status kvpack_cut_restore(const kvpack_cut* cut, const kvpack_shadow* shadows,
                                            uint64_t shadow_count, const kvpack_restore_options* options,
                                            kvpack_error** error);

/* The streaming form: every chunk read, verified, then given to the callback. A later chunk may still fail,
 * so what the callback builds must not go live before success.
 *
 * Errors: as kvpack_cut_restore. */
KVPACK_API kvpack_status kvpack_cut_stream(const kvpack_cut* cut, const kvpack_restore_options* options,
                                           kvpack_chunk_visit_fn visit, void* visit_user,
                                           kvpack_error** error);

/* Verifies every chunk and keeps nothing. Without keys encrypted chunks are checked as far as possible.
 * options->integrity_only need not be set; kvpack_cut_level says what a success means.
 *
 * Errors: as kvpack_cut_restore. */
KVPACK_API kvpack_status kvpack_cut_verify(const kvpack_cut* cut, const kvpack_restore_options* options,
                                           kvpack_error** error);

/* Frees a cut. */
KVPACK_API void kvpack_cut_free(kvpack_cut* cut);

/* # Identity and expectation
 *
 * The named fields of an identity: what a reader expects, and why two identities differ. In order of
 * comparison: weights_config, adapters, tokenizer_template, position_semantics, qualified_math,
 * engine_cache_abi, topology, shard_map, family_id, auxiliary_root, token_count, token_root, manifest_id. */

/* Values of any of the fields. One thread at a time while it is changed. */
typedef struct kvpack_identity kvpack_identity;

/* An identity without values. */
KVPACK_API kvpack_status kvpack_identity_new(kvpack_identity** out, kvpack_error** error);

/* All fields of an open cut. */
KVPACK_API kvpack_status kvpack_identity_of_cut(kvpack_identity** out, const kvpack_cut* cut,
                                                kvpack_error** error);

/* All fields of a manifest. */
KVPACK_API kvpack_status kvpack_identity_of_manifest(kvpack_identity** out, const kvpack_manifest* manifest,
                                                     kvpack_error** error);

/* Sets a field: 64 lower-case hexadecimal digits, or a decimal number for token_count. NULL takes it away. */
KVPACK_API kvpack_status kvpack_identity_set(kvpack_identity* identity, const char* field, const char* value,
                                             kvpack_error** error);

/* Sets the five fields of a model. */
KVPACK_API kvpack_status kvpack_identity_set_model(kvpack_identity* identity, const kvpack_model* model,
                                                   kvpack_error** error);

/* Sets the four fields of a family. */
KVPACK_API kvpack_status kvpack_identity_set_family(kvpack_identity* identity, const kvpack_family* family,
                                                    kvpack_error** error);

/* Sets the three fields of an input. */
KVPACK_API kvpack_status kvpack_identity_set_input(kvpack_identity* identity, const kvpack_input_cut* cut,
                                                   kvpack_error** error);

/* How many fields there are. */
KVPACK_API uint64_t kvpack_identity_field_count(void);

/* Name of a field; NULL past the last. */
KVPACK_API const char* kvpack_identity_field_name(uint64_t index);

/* Value of a field; NULL when it has none or there is no such field. */
KVPACK_API const char* kvpack_identity_get(const kvpack_identity* identity, const char* field);

/* 1 when both have field `index` and their values differ, else 0: asked for every field it explains why two
 * caches are not the same. */
KVPACK_API int32_t kvpack_identity_differs(const kvpack_identity* a, const kvpack_identity* b,
                                           uint64_t index);

/* Compares what is expected with what was found, field by field.
 *
 * Errors: EXPECTATION for the first field that differs or is missing in `found`, with field, expected and
 * found. */
KVPACK_API kvpack_status kvpack_identity_expect(const kvpack_identity* expected, const kvpack_identity* found,
                                                kvpack_error** error);

/* kvpack_identity_expect against an open cut: to be called before anything is restored.
 *
 * Errors: EXPECTATION. */
KVPACK_API kvpack_status kvpack_cut_expect(const kvpack_cut* cut, const kvpack_identity* expected,
                                           kvpack_error** error);

/* Frees an identity. */
KVPACK_API void kvpack_identity_free(kvpack_identity* identity);

/* # Pack sets
 *
 * One file with one chain of packs and every chunk it refers to, which can be copied, range-read and proved.
 */

/* Writes a set as a stream. One thread at a time. */
typedef struct kvpack_pack_set_writer kvpack_pack_set_writer;

/* Where a set goes: to a callback, or into a file that appears complete or not at all. */
typedef struct kvpack_pack_set_writer_options {
  uint64_t struct_size;
  const kvpack_keys* keys;
  uint64_t epoch; /* Signs the set; 0: the ring's active one. */
  kvpack_append_fn append;
  void* append_user;
  const char* path;
} kvpack_pack_set_writer_options;

/* What a set says about itself. */
typedef struct kvpack_pack_set_info {
  uint64_t struct_size;
  kvpack_id tenant;
  uint64_t key_epoch;
  uint64_t record_count;
  uint64_t inventory_offset;
  uint64_t file_bytes;
  kvpack_id head_manifest_id;
  kvpack_id merkle_root;
} kvpack_pack_set_info;

/* Where a record lies and what it is. */
typedef struct kvpack_pack_set_entry {
  uint64_t struct_size;
  uint32_t kind; /* KVPACK_RECORD. */
  uint32_t reserved;
  uint64_t offset;
  uint64_t object_bytes;
  uint64_t padded_bytes; /* What it takes in the file. */
  uint64_t key_epoch;
  kvpack_id identity; /* Object key of a chunk, manifest id of a pack. */
  kvpack_id digest;
  kvpack_id relation; /* Content id of a chunk; parent manifest id of a pack, zero for a full one. */
} kvpack_pack_set_entry;

/* Where a set is read from: exactly one of path, data and read_at. */
typedef struct kvpack_pack_set_options {
  uint64_t struct_size;
  const kvpack_keys* keys; /* NULL: integrity only, not authenticated. */
  const char* path;
  const void* data; /* Borrowed until the set and every cut of it are freed; must keep still. */
  uint64_t data_size;
  kvpack_read_at_fn read_at;
  void* read_at_user;
  uint64_t read_at_size; /* Length of what read_at reads. */
} kvpack_pack_set_options;

/* How a set is verified. */
typedef struct kvpack_verify_options {
  uint64_t struct_size;
  uint32_t parallelism; /* Threads, at most 256; 0: 1. */
  uint32_t reserved;
  kvpack_progress_fn progress;
  void* progress_user;
} kvpack_verify_options;

/* What a verification has shown. Immutable. */
typedef struct kvpack_report kvpack_report;

/* Begins a set and writes its first page.
 *
 * Errors: SEMANTICS the tenant or the epoch is zero; NOT_FOUND the epoch has no key; IO, QUOTA; and what
 * append returns. */
KVPACK_API kvpack_status kvpack_pack_set_writer_new(kvpack_pack_set_writer** out,
                                                    const kvpack_pack_set_writer_options* options,
                                                    kvpack_error** error);

/* Adds a chunk object. Objects come in canonical order: for each manifest from base to head first its chunks
 * in (state, span) order, as kvpack_cut_builder_save gives them, then its pack. Any error is final.
 *
 * Errors: AUTHENTICATION it is not the object that `ref` means; SEMANTICS, BOUNDS, GRAPH; what append
 * returns. */
KVPACK_API kvpack_status kvpack_pack_set_writer_add_chunk(kvpack_pack_set_writer* writer,
                                                          const kvpack_chunk_ref* ref, const void* object,
                                                          uint64_t object_size, kvpack_error** error);

/* Adds a pack. `manifest` is what it holds; NULL opens it with the ring.
 *
 * Errors: as kvpack_pack_open; AUTHENTICATION the pack holds another manifest; GRAPH the chunks are not those
 * of the manifest, or the packs are no chain; what append returns. */
KVPACK_API kvpack_status kvpack_pack_set_writer_add_pack(kvpack_pack_set_writer* writer, const void* pack,
                                                         uint64_t pack_size, const kvpack_manifest* manifest,
                                                         kvpack_error** error);

/* Ends the set; a file gets its name now, and is durable. `out` may be NULL. An existing file with the same
 * bytes is success.
 *
 * Errors: GRAPH the last record is no pack; EXPECTATION another file has the name; IO, QUOTA; what append
 * returns. */
KVPACK_API kvpack_status kvpack_pack_set_writer_finish(kvpack_pack_set_writer* writer,
                                                       kvpack_pack_set_info* out, kvpack_error** error);

/* Frees a writer. Without kvpack_pack_set_writer_finish no file stays. */
KVPACK_API void kvpack_pack_set_writer_free(kvpack_pack_set_writer* writer);

/* Writes the set of an open cut whose packs and chunks already exist, each read once; what read_pack is asked
 * for includes the head. Packs are authenticated with the keys of `options`. `out` may be NULL.
 *
 * Errors: as kvpack_pack_set_writer_add_pack and kvpack_pack_set_writer_finish; NOT_FOUND an object is
 * absent; with object, layer, state and tokens; and what callbacks return. */
KVPACK_API kvpack_status kvpack_pack_set_write(kvpack_pack_set_info* out, const kvpack_cut* cut,
                                               const kvpack_pack_set_writer_options* options,
                                               kvpack_error** error);

/* Opens a set by header, inventory and footer alone: three reads, at most 128 MiB.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, CHECKSUM, BOUNDS, SEMANTICS, UNKNOWN_ENUM, GRAPH, with record; with
 * keys AUTHENTICATION, NOT_FOUND; IO; what the callback returns. */
KVPACK_API kvpack_status kvpack_pack_set_open(kvpack_pack_set** out, const kvpack_pack_set_options* options,
                                              kvpack_error** error);

/* What the set says about itself. */
KVPACK_API kvpack_status kvpack_pack_set_get_info(const kvpack_pack_set* set, kvpack_pack_set_info* out,
                                                  kvpack_error** error);

/* How many records the set has. */
KVPACK_API uint64_t kvpack_pack_set_record_count(const kvpack_pack_set* set);

/* Entry of record `index`. */
KVPACK_API kvpack_status kvpack_pack_set_get_entry(const kvpack_pack_set* set, kvpack_pack_set_entry* out,
                                                   uint64_t index, kvpack_error** error);

/* The entry's 128 bytes: a leaf of the Merkle tree. */
KVPACK_API const uint8_t* kvpack_pack_set_raw_entry(const kvpack_pack_set* set, uint64_t index);

/* Index of the record with this identity.
 *
 * Errors: NOT_FOUND. */
KVPACK_API kvpack_status kvpack_pack_set_find(const kvpack_pack_set* set, uint64_t* index,
                                              const kvpack_id* identity, kvpack_error** error);

/* Reads one record and checks it against its entry.
 *
 * Errors: RESERVED, CHECKSUM, GRAPH, with record and object; IO; what the callback returns. */
KVPACK_API kvpack_status kvpack_pack_set_read(const kvpack_pack_set* set, kvpack_bytes** out, uint64_t index,
                                              kvpack_error** error);

/* Verifies the whole set, each record read once. `out` may be NULL; `options` too.
 *
 * Errors: the first failure in the order of docs/format, with record, object, layer, state and tokens as far
 * as they are known; IO; what callbacks return. */
KVPACK_API kvpack_status kvpack_pack_set_verify(const kvpack_pack_set* set, kvpack_report** out,
                                                const kvpack_verify_options* options, kvpack_error** error);

/* A proof, as canonical JSON, that ties record `index` to the set's footer.
 *
 * Errors: BOUNDS there is no such record. */
KVPACK_API kvpack_status kvpack_pack_set_prove(const kvpack_pack_set* set, kvpack_bytes** out, uint64_t index,
                                               kvpack_error** error);

/* Frees a set. */
KVPACK_API void kvpack_pack_set_free(kvpack_pack_set* set);

/* Checks a proof: footer, path, entry. `keys` NULL ties the record only to a footer that the caller trusts
 * for another reason. `entry` and `info` may be NULL. With `has_record` 1 the record's exact bytes are
 * checked too.
 *
 * Errors: VALIDATION, CANONICAL it is no proof; TRUNCATED, BAD_MAGIC, RESERVED, CHECKSUM, BOUNDS,
 * UNKNOWN_ENUM, SEMANTICS; GRAPH with a record; AUTHENTICATION, NOT_FOUND with keys. */
KVPACK_API kvpack_status kvpack_pack_set_check_proof(kvpack_pack_set_entry* entry, kvpack_pack_set_info* info,
                                                     const void* proof, uint64_t proof_size,
                                                     const kvpack_keys* keys, uint32_t has_record,
                                                     const void* record, uint64_t record_size,
                                                     kvpack_error** error);

/* Checks the last 4,096 bytes of a set on their own. `keys` and `out` may be NULL; the tenant stays zero.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, CHECKSUM, BOUNDS; AUTHENTICATION, NOT_FOUND, SEMANTICS with keys.
 */
KVPACK_API kvpack_status kvpack_pack_set_check_footer(kvpack_pack_set_info* out, const void* page,
                                                      uint64_t page_size, const kvpack_keys* keys,
                                                      kvpack_error** error);

/* KVPACK_LEVEL of the verification. */
KVPACK_API uint32_t kvpack_report_level(const kvpack_report* report);

/* "authenticated", "integrity" or "framing". */
KVPACK_API const char* kvpack_report_level_name(const kvpack_report* report);

/* How many records, packs and chunks were verified. */
KVPACK_API uint64_t kvpack_report_record_count(const kvpack_report* report);
KVPACK_API uint64_t kvpack_report_pack_count(const kvpack_report* report);
KVPACK_API uint64_t kvpack_report_chunk_count(const kvpack_report* report);

/* How many kinds of checks could not be made for want of keys. */
KVPACK_API uint64_t kvpack_report_unchecked_count(const kvpack_report* report);

/* One of them, in words. */
KVPACK_API const char* kvpack_report_unchecked(const kvpack_report* report, uint64_t index);

/* Frees a report. */
KVPACK_API void kvpack_report_free(kvpack_report* report);

/* # Stores
 *
 * A durable store of cuts in one directory: saved under what they were computed from, found by their tokens.
 * What the calls do and every text that they may refuse with is docs/operations.md. */

/* An open store. May be used by several threads at once. One handle in any process writes, any number read.
 * It closes when its handle and all holds of it have been freed. */
typedef struct kvpack_store kvpack_store;

/* What kind of object something happened to is said by KVPACK_RECORD; what was done about it, by this. */
enum {
  KVPACK_FAULT_SKIPPED = 1,    /* The cut was passed over; nothing was moved. */
  KVPACK_FAULT_QUARANTINED = 2 /* The file was moved, and every cut that needs it was withdrawn. */
};

/* How close a store is to its quota. */
enum {
  KVPACK_PRESSURE_NORMAL = 0,
  KVPACK_PRESSURE_EVICTING = 1,
  KVPACK_PRESSURE_EMERGENCY = 2,
  KVPACK_PRESSURE_PROMOTION_STOPPED = 3
};

/* An object that turned out absent or wrong. All pointers are good during the callback. */
typedef struct kvpack_store_fault {
  uint64_t struct_size;
  kvpack_id id;         /* Object key of a chunk, or manifest id of a pack. */
  uint32_t object;      /* KVPACK_RECORD. */
  uint32_t action;      /* KVPACK_FAULT. */
  uint64_t token_count; /* Of the cut in which it was met; 0 outside of a lookup. */
  const char* path;     /* Of the object's file; ends with NUL. */
  uint64_t path_size;
  const kvpack_error* error; /* What is wrong. Belongs to the library. */
} kvpack_store_fault;

/* Told about every fault, by the thread that met it; several may call at once. May not use the store. */
typedef void (*kvpack_fault_fn)(void* user, const kvpack_store_fault* fault);

/* How full a store may get, in thousandths of its quota: stop < begin < emergency < promotion <= 1000, and
 * quarantine <= 100. Fixed for good; every member counts as it is. */
typedef struct kvpack_store_watermarks {
  uint32_t stop;       /* Maintenance evicts down to this; by default 750. */
  uint32_t begin;      /* Maintenance begins here; 850. */
  uint32_t emergency;  /* Saves are refused here when nothing can be evicted; 920. */
  uint32_t promotion;  /* Saves are refused here; 950. */
  uint32_t quarantine; /* Share that damaged files may take; 10. */
  uint32_t reserved;
} kvpack_store_watermarks;

/* Which store, with what keys and bounds. */
typedef struct kvpack_store_options {
  uint64_t struct_size;
  const char* directory;   /* Of the store: one stable root and one tenant. */
  const kvpack_keys* keys; /* Of the tenant; must have every epoch from minimum_epoch to active_epoch. */
  uint64_t active_epoch;   /* The epoch to write; 0: the ring's active one. */
  uint64_t minimum_epoch;  /* Oldest epoch to read; 0: the oldest of the ring, not more than 63 below. */
  uint64_t catalog_epoch;  /* 0: 1. */
  uint64_t quota_bytes; /* Objects and what saves have reserved. 0: what the store has; a new one, 64 GiB. */
  uint64_t staging_quota_bytes; /* Most that unfinished saves have reserved. 0: the same; a new one, all. */
  const uint64_t* endurance_bytes_per_five_minutes; /* NULL: no limit. 0 refuses every write. */
  const kvpack_store_watermarks* watermarks;        /* NULL: the defaults. */
  uint64_t max_shadow_bytes;  /* Of all planes that are being restored or held; 0: half of the memory. */
  uint64_t max_scratch_bytes; /* Of all buffers that encode or verify; 0: 256 MiB. */
  uint64_t max_holds;         /* Most restored cuts that are held; 0: 1,024. */
  uint32_t max_parallelism;   /* Most threads of one save or restore, at most 256; 0: 4. */
  uint32_t strict;          /* 1: damage fails the call and nothing is moved. 0: it is quarantined and passed
                             * over. */
  kvpack_fault_fn on_fault; /* NULL: nobody is told. */
  void* fault_user;         /* Must stay good until the store is closed. */
  kvpack_log_fn log;        /* Saves, restores, misses, faults, upkeep and refusals; NULL: nobody is told. */
  void* log_user;           /* Must stay good until the store is closed. */
} kvpack_store_options;

/* What a store holds and what has happened to it. Counters go on from the day it was made; those of this
 * handle are in them at once. */
typedef struct kvpack_store_info {
  uint64_t struct_size;
  uint64_t quota_bytes;
  uint64_t staging_quota_bytes;
  uint64_t durable_bytes;  /* Of the objects. */
  uint64_t reserved_bytes; /* By saves that have not ended. */
  uint64_t shared_bytes;   /* What the same cuts would take more if no chunk were shared. */
  uint64_t quarantine_bytes;
  uint64_t quarantine_cap_bytes;
  uint64_t manifests;
  uint64_t chunks;
  uint64_t pending_manifests; /* Being evicted, or damaged. */
  uint64_t pending_chunks;
  uint64_t active_uploads;
  uint64_t holds; /* Of this handle. */
  uint64_t key_epoch;
  uint64_t minimum_epoch;
  uint64_t catalog_epoch;
  uint64_t created_unix_ns;
  uint32_t pressure; /* KVPACK_PRESSURE. */
  uint32_t read_only;
  uint64_t saves_attempted;
  uint64_t saves_committed;
  uint64_t saves_replayed;
  uint64_t saves_refused;
  uint64_t save_bytes_written;
  uint64_t save_bytes_shared;
  uint64_t lookups_exact;
  uint64_t lookups_ancestor;
  uint64_t lookups_miss;
  uint64_t lookups_fault;
  uint64_t restores_attempted;
  uint64_t restores_committed;
  uint64_t restores_refused;
  uint64_t restore_bytes;
  uint64_t objects_quarantined;
  uint64_t manifests_evicted;
  uint64_t chunks_collected;
  uint64_t bytes_collected;
} kvpack_store_info;

/* What one round of upkeep has done. */
typedef struct kvpack_store_upkeep {
  uint64_t struct_size;
  uint64_t before_bytes; /* Durable and reserved bytes, and the head-room that was asked for. */
  uint64_t after_bytes;
  uint64_t manifests_evicted;
  uint64_t chunks_collected;
  uint64_t bytes_freed;
  uint32_t emergency; /* 1: the store is still at the emergency mark or above. */
  uint32_t blocked;   /* 1: the aim was not reached; everything that is left is in use. */
} kvpack_store_upkeep;

/* Makes a store in a directory that is absent, empty, or holds an interrupted creation.
 *
 * Errors: EXPECTATION the directory is not empty; else as kvpack_store_open. */
KVPACK_API kvpack_status kvpack_store_create(kvpack_store** out, const kvpack_store_options* options,
                                             kvpack_error** error);

/* Opens a store for writing and finishes whatever a crash has interrupted.
 *
 * Errors: STATE the configuration, permissions, a newer schema, or the catalog is missing; BUSY another
 * handle writes; AUTHENTICATION the store belongs to another tenant or key; NOT_FOUND there is no such
 * directory, or an epoch has no key; CATALOG, IO. */
KVPACK_API kvpack_status kvpack_store_open(kvpack_store** out, const kvpack_store_options* options,
                                           kvpack_error** error);

/* Opens a store for looking up and restoring, beside a writer or without one. Quotas are ignored.
 *
 * Errors: as kvpack_store_open, but for BUSY. */
KVPACK_API kvpack_status kvpack_store_open_read_only(kvpack_store** out, const kvpack_store_options* options,
                                                     kvpack_error** error);

/* Sizes, counts and counters, at a cost that does not depend on what is stored. Also of a reader.
 *
 * Errors: CATALOG, IO. */
KVPACK_API kvpack_status kvpack_store_get_info(kvpack_store* store, kvpack_store_info* out,
                                               kvpack_error** error);

/* Everything that is due: silent saves are ended, quarantine and history pruned, what cannot be found is
 * collected, and above the mark `begin` the least recently used cuts are evicted down to `stop`, with
 * `head_room_bytes` of the quota left free beyond that. `out` may be NULL.
 *
 * Errors: STATE the store is open for reading only; CATALOG, IO. */
KVPACK_API kvpack_status kvpack_store_maintain(kvpack_store* store, kvpack_store_upkeep* out,
                                               uint64_t head_room_bytes, kvpack_error** error);

/* Removes what cannot be found any more: expired and damaged cuts, and chunks that no cut names. Works on a
 * full disk. `out` may be NULL.
 *
 * Errors: as kvpack_store_maintain. */
KVPACK_API kvpack_status kvpack_store_collect(kvpack_store* store, kvpack_store_upkeep* out,
                                              kvpack_error** error);

/* Evicts one cut and collects what only it has used. `out` may be NULL.
 *
 * Errors: NOT_FOUND there is no such cut; BUSY it is held, has descendants, or a save needs it; else as
 * kvpack_store_maintain. */
KVPACK_API kvpack_status kvpack_store_evict(kvpack_store* store, kvpack_store_upkeep* out,
                                            const kvpack_id* manifest_id, kvpack_error** error);

/* Frees a store. Without holds that are still there it closes, and its counters are written down. */
KVPACK_API void kvpack_store_free(kvpack_store* store);

/* # Saving into a store
 *
 * Planes in, and after one call a durable cut that can be found, or nothing. */

/* What one save has published. Immutable. */
typedef struct kvpack_store_saved kvpack_store_saved;

/* What is to be saved. All memory keeps still during the call. */
typedef struct kvpack_store_save_options {
  uint64_t struct_size;
  const kvpack_family* family;
  kvpack_model model;
  const uint32_t* tokens; /* The complete list of the cut, for a delta too. Never stored. */
  uint64_t token_count;
  const kvpack_auxiliary_input* auxiliary;
  uint64_t auxiliary_count;
  const kvpack_plane* planes; /* One per state, in the family's order; struct_size of the first says how far
                               * they are apart. Each goes on to the end of the cut. */
  uint64_t plane_count;
  const uint32_t* atomic_groups; /* Per state, none 0: those of one group are restored together. NULL: all. */
  const kvpack_id* parent; /* Writes a delta on this stored cut; on depth 7 a full manifest by reference. */
  const kvpack_id* idempotency_key; /* Under which a retry is the same save. NULL: made of what is saved. */
  uint64_t export_stride_tokens; /* A cut at every multiple, a multiple of 256, and at the end; 0: one cut. */
  uint32_t span_rule;            /* KVPACK_SPANS, of one cut. */
  uint32_t grain_tokens;         /* A multiple of 256; 0: 2048. */
  uint32_t window_grain_tokens;  /* The same for tail-window states; 0: plain runs. */
  uint32_t unencrypted;          /* 1: new objects are authenticated but not encrypted. */
  uint32_t parallelism;          /* Threads; changes no byte. 0: as many as the store allows. */
  uint32_t reserved;
  uint64_t max_restored_bytes; /* What the cut may measure; 0: 4 TiB. */
  uint64_t publication;        /* The caller's generation; 0: 1. */
  uint64_t time_to_live_ms;    /* Then the cut is found no more; 0: no limit. */
  const char* label;           /* Name of model and family for people, at most 16,384 bytes; no secret. */
  uint64_t label_size;
} kvpack_store_save_options;

/* A cut that is in the store. Fixed for good. */
typedef struct kvpack_stored_cut {
  kvpack_id manifest_id;
  kvpack_input_cut cut;
  uint64_t restored_bytes; /* Payload of all planes. */
  uint32_t depth;          /* Manifests between it and its full base. */
  uint32_t reserved;
} kvpack_stored_cut;

/* What a save has cost. */
typedef struct kvpack_store_saved_info {
  uint64_t struct_size;
  uint32_t replayed; /* 1: it was in the store already, and nothing has been written. */
  uint32_t reserved;
  uint64_t publication;
  uint64_t source_bytes;         /* Plaintext of the chunks that were saved. */
  uint64_t written_chunks;       /* Those that were encoded, */
  uint64_t written_object_bytes; /* with their objects; */
  uint64_t shared_chunks;        /* and those that the store had already. */
  uint64_t shared_object_bytes;
  uint64_t manifest_bytes;
} kvpack_store_saved_info;

/* Saves one cut, or one at every multiple of a stride, from planes in memory. All of it becomes durable and
 * visible at once, or nothing stays of it; what the store has already is not written again.
 *
 * Errors: STATE, EXPECTATION, SEMANTICS, BOUNDS the request, the store is open for reading only, a plane is
 * shorter than its shape, or a newer save took the key; NOT_FOUND the parent is not in the store;
 * AUTHENTICATION, CHECKSUM the parent or what a replay meets is damaged; QUOTA max_restored_bytes, the
 * memory limits or quotas of the store; ENDURANCE; CATALOG, IO. */
KVPACK_API kvpack_status kvpack_store_save(kvpack_store* store, kvpack_store_saved** out,
                                           const kvpack_store_save_options* options, kvpack_error** error);

/* How many cuts were published; at least 1. */
KVPACK_API uint64_t kvpack_store_saved_cut_count(const kvpack_store_saved* saved);

/* The cuts, ascending; the last is that of all tokens. */
KVPACK_API const kvpack_stored_cut* kvpack_store_saved_cuts(const kvpack_store_saved* saved);

/* What the save has cost. */
KVPACK_API kvpack_status kvpack_store_saved_get_info(const kvpack_store_saved* saved,
                                                     kvpack_store_saved_info* out, kvpack_error** error);

/* Frees what a save has given. */
KVPACK_API void kvpack_store_saved_free(kvpack_store_saved* saved);

/* # Restoring from a store
 *
 * The deepest cut of an input is found by its tokens, authenticated as a whole chain, and restored through a
 * sink of the engine's. A miss is a success: there is nothing, and everything is to be computed. */

/* The right to go on reading a restored cut: it stays in the store, and its memory stays accounted for, until
 * the hold is released. One thread at a time. */
typedef struct kvpack_store_hold kvpack_store_hold;

/* By which another thread ends a restore or a transfer. May be used by several threads at once, and for
 * several of them. */
typedef struct kvpack_cancel kvpack_cancel;

/* The input whose state is wanted. */
typedef struct kvpack_store_query {
  uint64_t struct_size;
  kvpack_model model;
  const kvpack_family* family;
  const uint32_t* tokens; /* The complete list. Never stored. */
  uint64_t token_count;
  const kvpack_auxiliary_input* auxiliary;
  uint64_t auxiliary_count;
  uint64_t minimum_epoch; /* Cuts of older key epochs do not count; 0: the window of the store alone. */
} kvpack_store_query;

/* The deepest committed cut that is a prefix of an input. A hint: nothing has been authenticated. */
typedef struct kvpack_store_hit {
  uint64_t struct_size;
  uint32_t found; /* 0: a miss; manifest_id and token_count are zero then. */
  uint32_t reserved;
  uint64_t token_count;
  uint64_t suffix_tokens; /* Tokens behind the cut: what is left to compute. */
  kvpack_id manifest_id;
} kvpack_store_hit;

/* The engine's side of a restore: a fresh generation of its state, which nothing live knows before `commit`.
 * The order is begin; lend for each state; write; commit. After a failure of begin or of anything behind it
 * come abort and reset, which may come again for the next cut that restore_deepest tries. All calls are made
 * by the thread that restores. All but lend and reset are needed. */
typedef struct kvpack_restore_sink {
  uint64_t struct_size;
  void* user;

  /* Makes room for the cut, having compared it with its own: kvpack_cut_expect, kvpack_cut_state. The cut
   * belongs to the library and is good until commit or abort has returned; its chunks are not to be read with
   * it. */
  kvpack_status (*begin)(void* user, const kvpack_cut* cut);

  /* Lends `size` bytes of memory for a state, laid out as kvpack_cut_state says, or leaves `*data` NULL,
   * which asks for write instead. Filled by several threads before the last check: undefined until commit.
   * NULL: nothing is lent. */
  kvpack_status (*lend)(void* user, uint64_t state_index, void** data, uint64_t size);

  /* Takes a piece of a state that was not lent, after its last check, in any order. `offset` is in bytes of
   * the row-major plane of the state. */
  kvpack_status (*write)(void* user, uint64_t state_index, uint64_t offset, const uint8_t* data,
                         uint64_t size);

  /* Makes the whole generation live, at once. Every chunk has been verified. */
  kvpack_status (*commit)(void* user);

  /* Drops the generation that was begun, or the part of it that there is. */
  void (*abort)(void* user);

  /* After each abort: forces a known state, which matters when a commit has failed halfway. When it fails the
   * restore ends with its error, and the engine's state is unknown. NULL: there is nothing to do. */
  kvpack_status (*reset)(void* user);
} kvpack_restore_sink;

/* How a cut is restored. */
typedef struct kvpack_store_restore_options {
  uint64_t struct_size;
  uint32_t parallelism; /* Threads, at most what the store allows; 0: as many. */
  uint32_t reserved;
  const kvpack_cancel* cancel; /* NULL: nobody ends it. */
  const kvpack_limits* limits; /* NULL: the format's. */

  /* In bytes of payload: 0 once the sink has been begun, then what is verified and in place after each chunk,
   * all of it before the commit; from 0 again for each further cut that restore_deepest tries. Also called
   * while the sink takes a piece. */
  kvpack_progress_fn progress;
  void* progress_user;
} kvpack_store_restore_options;

/* What has been restored. */
typedef struct kvpack_store_restored {
  uint64_t struct_size;
  uint32_t restored; /* 0: a miss; only suffix_tokens and fault_count say something then. */
  uint32_t reserved;
  kvpack_id manifest_id;
  kvpack_input_cut cut;
  uint64_t restored_bytes;
  uint64_t suffix_tokens; /* Tokens of the input behind the cut: what is left to compute. */
  uint64_t fault_count;   /* Deeper cuts that were passed over; on_fault of the store was told which. */
} kvpack_store_restored;

/* Finds the deepest cut of an input, at about the cost of its prefix nodes. Never waits for a writer. Of a
 * store whose directory was removed nothing is found.
 *
 * Errors: SEMANTICS an auxiliary input is zero; CATALOG, IO. */
KVPACK_API kvpack_status kvpack_store_find_deepest(kvpack_store* store, kvpack_store_hit* out,
                                                   const kvpack_store_query* query, kvpack_error** error);

/* Restores the deepest cut of an input that is whole. A damaged one is reported, quarantined and passed over;
 * with options->strict of the store it is the error. `*hold` is NULL after a miss; with `hold` NULL the cut
 * is released as soon as it is live. options may be NULL.
 *
 * Errors: as kvpack_store_find_deepest and kvpack_store_restore. */
KVPACK_API kvpack_status kvpack_store_restore_deepest(kvpack_store* store, kvpack_store_restored* out,
                                                      kvpack_store_hold** hold,
                                                      const kvpack_store_query* query,
                                                      const kvpack_restore_sink* sink,
                                                      const kvpack_store_restore_options* options,
                                                      kvpack_error** error);

/* Restores one cut of the store, whatever it was computed from; `begin` of the sink judges it. Outputs as
 * those of kvpack_store_restore_deepest, but nothing is passed over and nothing is behind the cut. options
 * may be NULL.
 *
 * Errors: NOT_FOUND the cut or a file of it is not there; QUOTA memory limits or max_parallelism of the
 * store; CANCELLED; the first failure among manifests and chunks: AUTHENTICATION, BOUNDS, BAD_MAGIC,
 * RESERVED, TRUNCATED, CODEC, CHECKSUM, SEMANTICS, GRAPH, UNKNOWN_ENUM, with object, layer, state and tokens;
 * what the sink returns, with callback and returned; CATALOG, IO. */
KVPACK_API kvpack_status kvpack_store_restore(kvpack_store* store, kvpack_store_restored* out,
                                              kvpack_store_hold** hold, const kvpack_id* manifest_id,
                                              const kvpack_restore_sink* sink,
                                              const kvpack_store_restore_options* options,
                                              kvpack_error** error);

/* Names a hold, for kvpack_store_release. */
KVPACK_API const kvpack_id* kvpack_store_hold_id(const kvpack_store_hold* hold);

/* Says that the engine no longer needs the cut. The handle has yet to be freed.
 *
 * Errors: STATE it has been released already. */
KVPACK_API kvpack_status kvpack_store_hold_release(kvpack_store_hold* hold, kvpack_error** error);

/* Frees the handle of a hold. Releases nothing: the engine may still be reading, and the cut is held until
 * kvpack_store_release or until the store is closed. */
KVPACK_API void kvpack_store_hold_free(kvpack_store_hold* hold);

/* Releases a hold whose handle is gone.
 *
 * Errors: STATE it is unknown, or has been released already. */
KVPACK_API kvpack_status kvpack_store_release(kvpack_store* store, const kvpack_id* hold_id,
                                              kvpack_error** error);

/* Makes what a restore or a transfer can be ended by. */
KVPACK_API kvpack_status kvpack_cancel_new(kvpack_cancel** out, kvpack_error** error);

/* Ends everything that has been given it, now and later, with KVPACK_ERR_CANCELLED, unless it is past its
 * last chunk. */
KVPACK_API void kvpack_cancel_request(kvpack_cancel* cancel);

/* Frees it; what has been given it goes on. */
KVPACK_API void kvpack_cancel_free(kvpack_cancel* cancel);

/* # Engines and stores
 *
 * What an engine owes a store, as callbacks, and two calls that keep the order among them: saving what is
 * live, and going on from the deepest cut that is stored. */

/* Everything that is live in an engine at one cut. Its memory keeps still until allow_mutation. struct_size
 * is set by the library: a member that lies beyond it is not there. */
typedef struct kvpack_engine_inventory {
  uint64_t struct_size;
  const uint32_t* tokens; /* The complete list from which it was computed. Never stored. */
  uint64_t token_count;
  const kvpack_auxiliary_input* auxiliary;
  uint64_t auxiliary_count;
  const kvpack_plane* planes; /* One per state, in the family's order: initialised bytes alone, in logical
                               * token order. One without data is read with read_plane. struct_size of the
                               * first says how far they are apart. */
  uint64_t plane_count;
  const uint32_t* atomic_groups; /* Per state, none 0; NULL: all states are one. */
} kvpack_engine_inventory;

/* An engine as a store sees it. All calls are made by the thread that saves or restores, but for read_plane,
 * and for memory that is lent. */
typedef struct kvpack_engine {
  uint64_t struct_size;
  void* user;
  kvpack_model model;              /* Under what its state is saved and found. */
  const kvpack_family* family;     /* Its ABI identity changes with everything that bytes mean. */
  const kvpack_restore_sink* sink; /* Its side of a restore; NULL: it is only saved from. */

  /* Waits until a device has done what it was told to do. First of a restore, second of a save. NULL: there
   * is nothing to wait for. */
  kvpack_status (*synchronize)(void* user);

  /* First of a save: nothing computes, extends or drops tokens from here on. NULL: nothing can. */
  kvpack_status (*exclude_mutation)(void* user);

  /* Last of a save, whatever has happened, unless exclude_mutation has failed. NULL: there is nothing to
   * do. */
  void (*allow_mutation)(void* user);

  /* Says what is live. `out` comes with zeros. NULL: it is only restored into. */
  kvpack_status (*inventory)(void* user, kvpack_engine_inventory* out);

  /* Copies what comes next of a state whose plane has no data, as out of a device: its tokens row-major,
   * tokens outermost, from the first that is written on; of a delta, from the first behind the parent. Fills
   * the front of `out` and sets `*read_size` to how much, 0 at the end alone. One call at a time, from any of
   * the threads that save. NULL: every plane has data. */
  kvpack_status (*read_plane)(void* user, uint64_t state_index, uint8_t* out, uint64_t size,
                              uint64_t* read_size);

  /* Before begin of the sink: compares the cut with the engine, kvpack_cut_expect and kvpack_cut_state, and
   * changes nothing. When it fails there is nothing to undo: neither abort nor reset follows. The cut is good
   * during the call. NULL: begin judges it. */
  kvpack_status (*check)(void* user, const kvpack_cut* cut);
} kvpack_engine;

/* Saves what is live in an engine: exclude_mutation, synchronize, inventory, the planes, allow_mutation. What
 * has been published already is not written again. `options` says how: of its members, those that the engine
 * gives (family, model, tokens, auxiliary inputs, planes, groups) are zero. It may be NULL.
 *
 * Errors: as kvpack_store_save; and what the engine returns, with callback and returned. */
KVPACK_API kvpack_status kvpack_store_save_from_engine(kvpack_store* store, kvpack_store_saved** out,
                                                       const kvpack_engine* engine,
                                                       const kvpack_store_save_options* options,
                                                       kvpack_error** error);

/* Restores the deepest stored cut of an input into an engine, which goes on at out->cut.token_count and
 * computes the rest: synchronize; then for each cut that is tried check, and what the sink says. A miss
 * leaves the engine as it is. Outputs and options as those of kvpack_store_restore_deepest.
 *
 * Errors: as kvpack_store_restore_deepest. */
KVPACK_API kvpack_status kvpack_store_restore_into_engine(
    kvpack_store* store, kvpack_store_restored* out, kvpack_store_hold** hold, const kvpack_engine* engine,
    const uint32_t* tokens, uint64_t token_count, const kvpack_auxiliary_input* auxiliary,
    uint64_t auxiliary_count, const kvpack_store_restore_options* options, kvpack_error** error);

/* # Cache in two calls
 *
 * For an engine that would rather not know what a family, a sink or a chain is: a directory is opened once; a
 * save takes what was computed for a list of tokens, as one blob or as planes; a restore gives back,
 * verified, what of it another list can reuse. docs/adopt.md is the way in. */

/* An open cache: one directory, one identity, one kind of state. May be used by several threads at once. One
 * handle in any process writes, any number read. */
typedef struct kvpack_cache kvpack_cache;

/* A state that was restored: verified as a whole, and in memory until it is freed. Immutable. */
typedef struct kvpack_cache_state kvpack_cache_state;

/* Stands for the logits among the parts of a state; the others are the planes in the order in which they were
 * described, or 0 for the blob. */
#define KVPACK_CACHE_LOGITS UINT64_MAX

/* Which cache, under what identity, of what states. A change of `model`, the three identities below it,
 * `states`, `row_bytes` or `with_logits` gives another cache in the same directory: what was saved before is
 * not found. What belongs into which identity is docs/format/identities.md; kvpack_factor_digest makes one.
 */
typedef struct kvpack_cache_options {
  uint64_t struct_size;
  const char* directory;      /* Holds `store.key` and `store`; private to the user. */
  kvpack_model model;         /* None zero, and none the digest of nothing, `auto` or `default`; likewise: */
  kvpack_id engine_cache_abi; /* Changes whenever the meaning or order of state bytes does. */
  kvpack_id topology;         /* Parallel shape; */
  kvpack_id shard_map;        /* and which part of it this engine has. */
  const kvpack_state_options* states; /* Planes, contiguous; struct_size of the first says how far they are
                                       * apart. NULL: a state is one blob. */
  uint64_t state_count;
  uint64_t row_bytes;   /* Rows of a blob and of logits: a power of two, 4,096 to 4,194,304; 0: 65,536. A cut
                         * has no more rows than tokens. */
  uint32_t with_logits; /* 1: a save may give the logits of the last token. */
  uint32_t cannot_step_back; /* 1: the engine cannot drop its last token and compute it again (a recurrent
                              * one, or a window without its rows): a cut of the whole prompt without logits
                              * is of no use to it, and the next shallower one is restored. */
  uint32_t create;           /* 1: makes directory, key and store where they are missing. */
  uint32_t read_only;        /* 1: beside a writer, or without one; for restores alone. */
  const kvpack_keys* keys;   /* NULL: the key file. */
  const char* key_path;      /* Where the key file is; NULL: `store.key` in the directory. It and its folder
                              * belong to the user, and nobody else may write there. */
  const char* tenant;        /* With a key file: who shares this cache; set by the server. NULL: `cache`. */
  uint64_t quota_bytes;      /* As in kvpack_store_options: above it what was used longest ago is evicted. */
  uint64_t max_memory_bytes; /* Of states that are being restored; 0: half of the memory. */
  uint32_t max_parallelism;  /* Threads of one save or restore, at most 256; 0: 4. */
  uint32_t unencrypted;      /* 1: new objects are authenticated but not encrypted. */
  uint32_t strict;           /* 1: damage fails a restore, instead of being passed over. */
  uint32_t reserved;
  kvpack_allocate_fn allocate; /* Memory of restored states; NULL: the heap, aligned to 64 bytes. */
  kvpack_release_fn release;   /* Needed with allocate. */
  void* memory_user;           /* Must stay good until the cache and all its states have been freed. */
  kvpack_log_fn log;           /* NULL: nobody is told. */
  void* log_user;              /* Must stay good until the cache and its kvpack_store have been freed. */
} kvpack_cache_options;

/* What is to be saved. All memory keeps still during the call. */
typedef struct kvpack_cache_save_options {
  uint64_t struct_size;
  const uint32_t* tokens; /* The complete list from which it was computed. Never stored. */
  uint64_t token_count;
  const kvpack_auxiliary_input* auxiliary; /* Images and other inputs that are no tokens. */
  uint64_t auxiliary_count;
  const void* blob; /* The state of a cache of blobs; not empty. */
  uint64_t blob_size;
  const kvpack_plane* planes; /* Or one for each state, in the order in which they were described, row-major:
                               * its byte_strides and sidecar_sinks are zero. struct_size of the first says
                               * how far they are apart. */
  uint64_t plane_count;
  const void* logits; /* Of the last token, in whatever form; NULL: none. */
  uint64_t logits_size;
  uint64_t checkpoint_stride_tokens; /* Of planes that hold every token: a cut at each multiple of it too, a
                                      * multiple of 256; 0: none. Each one is hashed from the first token
                                      * on: n cuts cost about n / 2 times the whole. */
  uint64_t time_to_live_ms;          /* Then it is found no more; 0: no limit. */
  const char* label;                 /* Name of the model for people, at most 16,384 bytes; no secret. */
  uint64_t label_size;
} kvpack_cache_save_options;

/* What a save has done. */
typedef struct kvpack_cache_saved {
  uint64_t struct_size;
  uint32_t replayed;  /* 1: all of it was there already, and nothing was written. */
  uint32_t cut_count; /* Prefixes at which it can be found, its whole length among them. */
  uint64_t token_count;
  kvpack_id manifest_id;   /* Of the cut of all tokens. */
  uint64_t restored_bytes; /* Payload of that cut. */
  uint64_t written_object_bytes;
  uint64_t shared_object_bytes; /* Of chunks that the cache had already; a blob shares nothing. */
} kvpack_cache_saved;

/* Lends memory of exactly `size` bytes for a part, or leaves `*data` NULL. For a plane it is called before
 * anything is read, and again when the next shallower cut is tried; for a blob and for logits when everything
 * has been verified. What it lends is undefined until the restore has succeeded. */
typedef kvpack_status (*kvpack_cache_lend_fn)(void* user, uint64_t part, void** data, uint64_t size);

/* What is wanted. */
typedef struct kvpack_cache_restore_options {
  uint64_t struct_size;
  const uint32_t* tokens; /* The complete prompt. */
  uint64_t token_count;
  const kvpack_auxiliary_input* auxiliary;
  uint64_t auxiliary_count;
  kvpack_cache_lend_fn lend; /* NULL: everything goes into memory of the cache. */
  void* lend_user;
  const kvpack_cancel* cancel; /* NULL: nobody ends it. */
  kvpack_progress_fn progress; /* As in kvpack_store_restore_options. */
  void* progress_user;
} kvpack_cache_restore_options;

/* What was restored. */
typedef struct kvpack_cache_restored {
  uint64_t struct_size;
  uint32_t restored;        /* 0: a miss; only suffix_tokens says something then, and perhaps fault_count. */
  uint32_t has_logits;      /* 1: the logits of the last token of the cut are there. */
  uint64_t token_count;     /* Of the cut. */
  uint64_t reusable_tokens; /* Tokens that need not be computed: those of the cut, less one where it is the
                             * whole prompt and has no logits: that token has to be dropped and computed. */
  uint64_t suffix_tokens;   /* Tokens of the prompt that are left to compute; 0 with logits alone. */
  uint64_t restored_bytes;
  uint64_t fault_count; /* Deeper cuts that were damaged and passed over. */
  kvpack_id manifest_id;
} kvpack_cache_restored;

/* Opens a cache, and with `create` makes what is missing of it.
 *
 * Errors: EXPECTATION an identity is no resolved value; BOUNDS row_bytes; SEMANTICS, CODEC, GRAPH a state;
 * NOT_FOUND there is no key file or no store; STATE the key file is not private, or missing beside a store,
 * or others can write where it is to be made; BUSY another handle writes; AUTHENTICATION the store belongs to
 * another tenant or key; CATALOG, IO. */
KVPACK_API kvpack_status kvpack_cache_open(kvpack_cache** out, const kvpack_cache_options* options,
                                           kvpack_error** error);

/* Opens one more cache in the store of an open one: of other states, or under another identity. Keys, tenant,
 * quota, memory, threads and strictness are those of `beside`, so `directory`, `create`, `read_only`, `keys`,
 * `key_path`, `tenant`, `quota_bytes`, `max_memory_bytes`, `max_parallelism` and `strict` are zero. What is
 * damaged is told to the log of `beside`. It keeps the store open for itself.
 *
 * Errors: as kvpack_cache_open without what concerns files. */
KVPACK_API kvpack_status kvpack_cache_open_beside(kvpack_cache** out, const kvpack_cache* beside,
                                                  const kvpack_cache_options* options, kvpack_error** error);

/* Saves a cut of all tokens, durable and to be found when the call returns; of planes that hold every token
 * also one of the last whole block of 256 tokens, which answers longer prompts. A blob answers longer prompts
 * where its token count is a multiple of 256, else its own tokens alone, and shallower ones never. What was
 * saved already is not written again. `out` may be NULL.
 *
 * Errors: SEMANTICS an auxiliary input is zero; STATE what is given is not what the cache keeps, a plane is
 * too short, there are no tokens, or fewer than rows (`expected` says which row_bytes would do), or the cache
 * is open for reading only; QUOTA memory, or the quota is full of what is in use; CATALOG, IO. Cuts that were
 * finished before a failure stay.
 */
KVPACK_API kvpack_status kvpack_cache_save(kvpack_cache* cache, kvpack_cache_saved* out,
                                           const kvpack_cache_save_options* options, kvpack_error** error);

/* Restores the deepest cut that is a prefix of the tokens. After a miss `*state` is NULL, and that is no
 * error. Nothing is given out before all of it has been verified; what is damaged is logged, put aside, and
 * the next shallower cut taken. `out` may be NULL.
 *
 * Errors: SEMANTICS an auxiliary input is zero; QUOTA max_memory_bytes; CANCELLED; NO_MEMORY; BOUNDS,
 * RESERVED, SEMANTICS a blob that was not written by this interface; with `strict`, what is wrong with an
 * object; what callbacks return; CATALOG, IO.
 */
KVPACK_API kvpack_status kvpack_cache_restore(kvpack_cache* cache, kvpack_cache_state** state,
                                              kvpack_cache_restored* out,
                                              const kvpack_cache_restore_options* options,
                                              kvpack_error** error);

/* A part of a restored state: exactly the bytes that were saved, or NULL when there is no such part. Those of
 * a part that was lent are the caller's own. `size` may be NULL. */
KVPACK_API const void* kvpack_cache_state_data(const kvpack_cache_state* state, uint64_t* size,
                                               uint64_t part);

/* First token of a plane: not 0 for a tail window. */
KVPACK_API uint64_t kvpack_cache_state_token_start(const kvpack_cache_state* state, uint64_t part);

/* Frees a restored state, and its memory but for what was lent. */
KVPACK_API void kvpack_cache_state_free(kvpack_cache_state* state);

/* The store of a cache, for everything else that can be done with one: its figures, its upkeep, what is in
 * it. The handle is the caller's. */
KVPACK_API kvpack_status kvpack_cache_store(const kvpack_cache* cache, kvpack_store** out,
                                            kvpack_error** error);

/* Frees a cache. Its states stay good. */
KVPACK_API void kvpack_cache_free(kvpack_cache* cache);

/* An identity out of what it stands for: SHA-256 of a resolved value, in bytes or as text.
 *
 * Errors: EXPECTATION it is empty, or one of the words `auto` and `default`, whatever the case. */
KVPACK_API kvpack_status kvpack_factor_digest(kvpack_id* out, const void* value, uint64_t value_size,
                                              kvpack_error** error);

/* The same for a file, such as weights, adapters or a tokenizer: SHA-256 of what is in it, whatever it is
 * called. progress may be NULL.
 *
 * Errors: EXPECTATION it is empty; NOT_FOUND, IO it cannot be read; what progress returns. */
KVPACK_API kvpack_status kvpack_factor_digest_file(kvpack_id* out, const char* path,
                                                   kvpack_progress_fn progress, void* progress_user,
                                                   kvpack_error** error);

/* # Manifests and packs
 *
 * The parts of a cut on their own, bytes to bytes. */

/* What a manifest says about the cut. */
typedef struct kvpack_manifest_info {
  uint64_t struct_size;
  kvpack_id tenant;
  uint64_t key_epoch;
  kvpack_model model;
  kvpack_input_cut cut;
  kvpack_id parent_manifest_id; /* Zero for a full manifest. */
  kvpack_input_cut parent_cut;
  uint64_t state_count;
  uint64_t group_count;
  uint64_t segment_bytes;  /* Payload that this manifest carries. */
  uint64_t complete_bytes; /* Payload of the whole cut. */
  uint32_t depth;
  uint32_t is_delta;
} kvpack_manifest_info;

/* Decodes a canonical manifest. Does not validate it.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, UNKNOWN_ENUM, BOUNDS, SEMANTICS. */
KVPACK_API kvpack_status kvpack_manifest_decode(kvpack_manifest** out, const void* object,
                                                uint64_t object_size, kvpack_error** error);

/* Checks the rules M1 to M44, the family's among them. `limits` may be NULL.
 *
 * Errors: SEMANTICS, BOUNDS, CODEC, GRAPH, with layer and state. */
KVPACK_API kvpack_status kvpack_manifest_validate(const kvpack_manifest* manifest,
                                                  const kvpack_limits* limits, kvpack_error** error);

/* The canonical manifest. */
KVPACK_API kvpack_status kvpack_manifest_encode(const kvpack_manifest* manifest, kvpack_bytes** out,
                                                kvpack_error** error);

/* Identity of the manifest. */
KVPACK_API const kvpack_id* kvpack_manifest_id(const kvpack_manifest* manifest);

/* What the manifest says. */
KVPACK_API kvpack_status kvpack_manifest_get_info(const kvpack_manifest* manifest, kvpack_manifest_info* out,
                                                  kvpack_error** error);

/* The manifest's family. */
KVPACK_API kvpack_status kvpack_manifest_family(const kvpack_manifest* manifest, kvpack_family** out,
                                                kvpack_error** error);

/* A state at this cut. Token range and size are those of the complete state. */
KVPACK_API kvpack_status kvpack_manifest_state(const kvpack_manifest* manifest, kvpack_plane_info* out,
                                               uint64_t state_index, kvpack_error** error);

/* How many chunks of a state this manifest carries. */
KVPACK_API uint64_t kvpack_manifest_chunk_count(const kvpack_manifest* manifest, uint64_t state_index);

/* Chunk `index` of a state. `span` and `ref` may be NULL. */
KVPACK_API kvpack_status kvpack_manifest_chunk(const kvpack_manifest* manifest, kvpack_chunk_span* span,
                                               kvpack_chunk_ref* ref, uint64_t state_index, uint64_t index,
                                               kvpack_error** error);

/* An atomic group: its id and how many states it has. Outputs may be NULL. */
KVPACK_API kvpack_status kvpack_manifest_group(const kvpack_manifest* manifest, uint32_t* group_id,
                                               uint64_t* state_count, uint64_t group_index,
                                               kvpack_error** error);

/* Member `index` of a group. The name belongs to the manifest. */
KVPACK_API kvpack_status kvpack_manifest_group_state(const kvpack_manifest* manifest, kvpack_state_key* out,
                                                     uint64_t group_index, uint64_t index,
                                                     kvpack_error** error);

/* Frees a manifest. */
KVPACK_API void kvpack_manifest_free(kvpack_manifest* manifest);

/* The fields of a pack's header page. */
typedef struct kvpack_pack_header {
  uint64_t struct_size;
  uint64_t stored_manifest_bytes; /* With the tag when encrypted. */
  uint64_t manifest_bytes;
  uint64_t key_epoch;
  kvpack_id tenant;
  kvpack_id manifest_id;
  uint32_t encrypted;
  uint32_t reserved;
} kvpack_pack_header;

/* How a pack is made. */
typedef struct kvpack_pack_encode_options {
  uint64_t struct_size;
  const kvpack_keys* keys;
  uint64_t epoch; /* 0: the manifest's own. */
  uint32_t encrypt;
  uint32_t reserved;
  kvpack_random_fn random; /* NULL: the system's generator. */
  void* random_user;
} kvpack_pack_encode_options;

/* How a pack is opened. */
typedef struct kvpack_pack_options {
  uint64_t struct_size;
  const kvpack_keys* keys;     /* NULL: only what can be checked without. */
  uint64_t epoch;              /* 0: the pack's own, looked up in the ring. */
  const kvpack_limits* limits; /* NULL: the format's. */
} kvpack_pack_options;

/* Validates a manifest and makes its pack.
 *
 * Errors: as kvpack_manifest_validate; SEMANTICS the keys are of another tenant or epoch; NOT_FOUND the epoch
 * has no key; BOUNDS the manifest is too long; IO no randomness. */
KVPACK_API kvpack_status kvpack_pack_encode(kvpack_bytes** out, const kvpack_manifest* manifest,
                                            const kvpack_pack_encode_options* options, kvpack_error** error);

/* Opens a pack: all 18 checks, without keys all but two. `header` may be NULL.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, BOUNDS, CHECKSUM, AUTHENTICATION, SEMANTICS, GRAPH, CODEC,
 * UNKNOWN_ENUM; NOT_FOUND the epoch has no key, or no key opens the manifest. */
KVPACK_API kvpack_status kvpack_pack_open(kvpack_manifest** out, kvpack_pack_header* header, const void* pack,
                                          uint64_t pack_size, const kvpack_pack_options* options,
                                          kvpack_error** error);

/* Checks 1 to 12: with keys, that their holder wrote these bytes. `out` may be NULL.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, BOUNDS, CHECKSUM; with keys AUTHENTICATION, NOT_FOUND. */
KVPACK_API kvpack_status kvpack_pack_verify(kvpack_pack_header* out, const void* pack, uint64_t pack_size,
                                            const kvpack_pack_options* options, kvpack_error** error);

/* Looks at the header page alone. Nothing that it gives is authenticated.
 *
 * Errors: TRUNCATED, BAD_MAGIC, RESERVED, CHECKSUM. */
KVPACK_API kvpack_status kvpack_pack_inspect(kvpack_pack_header* out, const void* pack, uint64_t pack_size,
                                             kvpack_error** error);

/* # Chunks
 *
 * One chunk object at a time, in the caller's memory. */

/* Memory for decrypting and unpacking, reused from call to call. One thread at a time. */
typedef struct kvpack_chunk_scratch kvpack_chunk_scratch;

/* One chunk to be written. */
typedef struct kvpack_chunk_options {
  uint64_t struct_size;
  const kvpack_keys* keys;
  const kvpack_family* family;
  uint64_t epoch; /* Not 0. */
  kvpack_state_key state;
  kvpack_chunk_span span;
  const void*
      plaintext; /* Tokens outermost. May lie in its place in `object`, byte 4112, of a raw plain chunk. */
  uint64_t plaintext_size;
  uint32_t encrypt;
  uint32_t has_sidecar; /* 1: `sidecar` is attached; f16 states only. */
  const void* sidecar;  /* A canonical statistics sidecar. */
  uint64_t sidecar_size;
  const kvpack_id* content_id; /* A caller that knows it already saves a pass over the plaintext. */
  kvpack_random_fn random;     /* NULL: the system's generator. */
  void* random_user;
} kvpack_chunk_options;

/* What a chunk is held against. What is NULL leaves out the checks that need it; kvpack_chunk_decode and
 * kvpack_chunk_open need all of it. */
typedef struct kvpack_chunk_expectation {
  uint64_t struct_size;
  const kvpack_keys* keys; /* The schedule is that of ref->key_epoch. */
  const kvpack_family* family;
  const kvpack_state_key* state;
  const kvpack_chunk_span* span;
  const kvpack_chunk_ref* ref;
  const kvpack_id* tenant; /* For kvpack_chunk_check without keys. */
} kvpack_chunk_expectation;

/* What a chunk object says about itself. Nothing in it is authenticated. */
typedef struct kvpack_chunk_info {
  uint64_t struct_size;
  uint32_t encrypted;
  uint32_t codec;
  uint32_t plaintext_bytes;
  uint32_t frame_bytes;
  uint32_t payload_bytes; /* Frame, and 16 more when encrypted. */
  uint32_t object_bytes;
  uint64_t key_epoch;
  kvpack_id tenant;
  kvpack_id family_id;
  kvpack_id content_id;
  kvpack_id object_key;
  kvpack_id header_digest;
  const uint8_t* sidecar; /* Inside the object that was inspected; NULL when there is none. */
  uint64_t sidecar_size;
} kvpack_chunk_info;

/* What an object key is computed from. */
typedef struct kvpack_object_key_options {
  uint64_t struct_size;
  const kvpack_keys* keys;
  uint64_t epoch; /* Not 0. */
  const kvpack_id* family_id;
  const kvpack_id* content_id;
  uint32_t codec;   /* KVPACK_CODEC. */
  uint32_t encrypt; /* 1: salt and nonce are given. */
  const void* salt; /* 16 bytes. */
  uint64_t salt_size;
  const void* nonce; /* 12 bytes. */
  uint64_t nonce_size;
  const kvpack_id* stats_digest; /* NULL: no sidecar. */
} kvpack_object_key_options;

/* Makes empty scratch memory. */
KVPACK_API kvpack_status kvpack_chunk_scratch_new(kvpack_chunk_scratch** out, kvpack_error** error);

/* Frees scratch memory. */
KVPACK_API void kvpack_chunk_scratch_free(kvpack_chunk_scratch* scratch);

/* The most bytes that an object around `plaintext_bytes` can take; 0 for an unknown codec or a plaintext
 * outside 1 to 4 MiB. */
KVPACK_API uint64_t kvpack_chunk_max_object_bytes(uint32_t codec, uint64_t plaintext_bytes, uint32_t encrypt);

/* Writes a chunk object to the front of `object`, which is scratch until success; ref->object_bytes bytes are
 * it.
 *
 * Errors: BUFFER_TOO_SMALL; SEMANTICS, CODEC, BOUNDS in the order of docs/format; as the sidecar decoder;
 * NOT_FOUND the epoch has no key; IO no randomness. */
KVPACK_API kvpack_status kvpack_chunk_encode(kvpack_chunk_ref* ref, uint8_t* object, uint64_t object_capacity,
                                             const kvpack_chunk_options* options, kvpack_error** error);

/* All 26 checks, then the plaintext into `plaintext`, which is written after the last check only.
 * `scratch` may be NULL.
 *
 * Errors: BUFFER_TOO_SMALL; NOT_FOUND the epoch has no key; BOUNDS, BAD_MAGIC, RESERVED, UNKNOWN_ENUM, CODEC,
 * TRUNCATED, SEMANTICS, AUTHENTICATION. */
KVPACK_API kvpack_status kvpack_chunk_decode(void* plaintext, uint64_t plaintext_capacity, const void* object,
                                             uint64_t object_size, const kvpack_chunk_expectation* expected,
                                             kvpack_chunk_scratch* scratch, kvpack_error** error);

/* The same without a copy: the plaintext as a view into `object` (raw and plain) or into `scratch`, good
 * while both are untouched.
 *
 * Errors: as kvpack_chunk_decode. */
KVPACK_API kvpack_status kvpack_chunk_open(const uint8_t** plaintext, uint64_t* plaintext_size,
                                           const void* object, uint64_t object_size,
                                           const kvpack_chunk_expectation* expected,
                                           kvpack_chunk_scratch* scratch, kvpack_error** error);

/* All checks that the expectation allows. Without keys an encrypted chunk stays closed. `scratch` may be
 * NULL.
 *
 * Errors: as kvpack_chunk_decode. */
KVPACK_API kvpack_status kvpack_chunk_check(const void* object, uint64_t object_size,
                                            const kvpack_chunk_expectation* expected,
                                            kvpack_chunk_scratch* scratch, kvpack_error** error);

/* Checks 1 to 15, and what the header says.
 *
 * Errors: BOUNDS, BAD_MAGIC, RESERVED, UNKNOWN_ENUM, CODEC, TRUNCATED, SEMANTICS. */
KVPACK_API kvpack_status kvpack_chunk_inspect(kvpack_chunk_info* out, const void* object,
                                              uint64_t object_size, kvpack_error** error);

/* Identity of a chunk's content, whatever codec, key epoch or encryption.
 *
 * Errors: SEMANTICS the plaintext does not match the span. */
KVPACK_API kvpack_status kvpack_content_id(kvpack_id* out, const kvpack_keys* keys,
                                           const kvpack_id* family_id, const kvpack_state_key* state,
                                           const kvpack_chunk_span* span, const void* plaintext,
                                           uint64_t plaintext_size, kvpack_error** error);

/* Name of one stored form of a chunk.
 *
 * Errors: UNKNOWN_ENUM, SEMANTICS, NOT_FOUND. */
KVPACK_API kvpack_status kvpack_object_key(kvpack_id* out, const kvpack_object_key_options* options,
                                           kvpack_error** error);

/* Wraps 1 byte to 4 MiB in a codec frame.
 *
 * Errors: UNKNOWN_ENUM, BOUNDS. */
KVPACK_API kvpack_status kvpack_frame_encode(kvpack_bytes** out, uint32_t codec, const void* plaintext,
                                             uint64_t plaintext_size, kvpack_error** error);

/* The plaintext inside a codec frame. `expected_bytes` is its length, as the chunk header promises.
 *
 * Errors: UNKNOWN_ENUM, TRUNCATED, BAD_MAGIC, RESERVED, BOUNDS. */
KVPACK_API kvpack_status kvpack_frame_decode(kvpack_bytes** out, uint32_t codec, const void* frame,
                                             uint64_t frame_size, uint64_t expected_bytes,
                                             kvpack_error** error);

/* # Canonical objects and descriptors
 *
 * Standalone objects by kind, and what is computed from them. */

/* Kinds of canonical objects. */
enum {
  KVPACK_OBJECT_FAMILY = 1,
  KVPACK_OBJECT_SCHEMA = 2,
  KVPACK_OBJECT_DECLARATION = 3,
  KVPACK_OBJECT_MANIFEST = 4,
  KVPACK_OBJECT_SIDECAR = 5,
  KVPACK_OBJECT_TRANSFORM = 6,
  KVPACK_OBJECT_ROTATION = 7
};

/* A plane `[tokens, kv_heads, head_dim]`, row-major. Fixed for good. */
typedef struct kvpack_plane_shape {
  uint64_t tokens;
  uint64_t kv_heads;
  uint64_t head_dim;
  uint64_t element_bytes;
} kvpack_plane_shape;

/* Decodes an object and gives it encoded again: equal to the input. `out` may be NULL.
 *
 * Errors: UNSUPPORTED an unknown kind; else as the decoder: TRUNCATED, BAD_MAGIC, RESERVED, UNKNOWN_ENUM,
 * BOUNDS, SEMANTICS. */
KVPACK_API kvpack_status kvpack_object_check(kvpack_bytes** out, uint32_t kind, const void* object,
                                             uint64_t object_size, kvpack_error** error);

/* Identity of an object, which is decoded first; for a sidecar its digest.
 *
 * Errors: UNSUPPORTED an unknown kind, or a declaration, which has none; else as kvpack_object_check. */
KVPACK_API kvpack_status kvpack_object_id(kvpack_id* out, uint32_t kind, const void* object,
                                          uint64_t object_size, kvpack_error** error);

/* Statistics sidecar of a plane `[tokens, channels]` of little-endian binary16, with 1 to 8 sinks.
 *
 * Errors: BOUNDS a number is out of range or the plane has another size; SEMANTICS an infinity or NaN. */
KVPACK_API kvpack_status kvpack_sidecar_derive(kvpack_bytes** out, const void* plane, uint64_t plane_size,
                                               uint64_t tokens, uint64_t channels, uint64_t max_sinks,
                                               kvpack_error** error);

/* Applies all ops of a transform descriptor, in order, each to the declared shape.
 *
 * Errors: as kvpack_object_check; BOUNDS an op does not fit the shape; SEMANTICS the op is a dtype cast. */
KVPACK_API kvpack_status kvpack_transform_execute(kvpack_bytes** out, const void* descriptor,
                                                  uint64_t descriptor_size, const kvpack_plane_shape* shape,
                                                  const void* plane, uint64_t plane_size,
                                                  kvpack_error** error);

/* The op that undoes op `index`, in wire form (tag and parameters); `*out` is NULL where there is none.
 *
 * Errors: as kvpack_object_check; INVALID_ARGUMENT there is no such op. */
KVPACK_API kvpack_status kvpack_transform_inverse(kvpack_bytes** out, const void* descriptor,
                                                  uint64_t descriptor_size, uint64_t index,
                                                  kvpack_error** error);

/* The rotation descriptor of Qwen2.5's pinned table for one model.
 *
 * Errors: SEMANTICS the id is zero. */
KVPACK_API kvpack_status kvpack_rotation_qwen25(kvpack_bytes** out, const kvpack_id* model_representation_id,
                                                kvpack_error** error);

/* # Merkle trees and JSON
 *
 * RFC 6962 trees over SHA-256, and canonical JSON. */

/* Hash of a leaf. */
KVPACK_API kvpack_status kvpack_merkle_leaf(kvpack_id* out, const void* data, uint64_t data_size,
                                            kvpack_error** error);

/* Root of the tree over these leaves.
 *
 * Errors: BOUNDS there are none. */
KVPACK_API kvpack_status kvpack_merkle_root(kvpack_id* out, const kvpack_span* leaves, uint64_t leaf_count,
                                            kvpack_error** error);

/* Audit path of one leaf, from its sibling upward. `path` has room for `path_capacity` ids; `*path_count` are
 * written. KVPACK_MAX_MERKLE_PATH is always enough.
 *
 * Errors: BUFFER_TOO_SMALL; BOUNDS there is no such leaf. */
KVPACK_API kvpack_status kvpack_merkle_path(kvpack_id* path, uint64_t path_capacity, uint64_t* path_count,
                                            const kvpack_span* leaves, uint64_t leaf_count, uint64_t index,
                                            kvpack_error** error);

/* Checks that a leaf stands at `index` of the tree of `leaf_count` leaves with this root.
 *
 * Errors: BOUNDS the index is outside or the path has another length; CHECKSUM the root differs. */
KVPACK_API kvpack_status kvpack_merkle_verify(const kvpack_id* leaf_hash, uint64_t index, uint64_t leaf_count,
                                              const kvpack_id* path, uint64_t path_count,
                                              const kvpack_id* root, kvpack_error** error);

/* Parses a JSON text of at most `max_bytes` and writes it canonically. Unsigned integers only, no key twice.
 *
 * Errors: JSON. */
KVPACK_API kvpack_status kvpack_json_canonicalize(kvpack_bytes** out, const void* text, uint64_t text_size,
                                                  uint64_t max_bytes, kvpack_error** error);

/* Whether a JSON text of at most `max_bytes` is in canonical form.
 *
 * Errors: VALIDATION it is empty, too long or not canonical; CANONICAL it does not parse. */
KVPACK_API kvpack_status kvpack_json_check(const void* text, uint64_t text_size, uint64_t max_bytes,
                                           kvpack_error** error);

/* # Handoff
 *
 * A cache that is sent while it is computed, and that becomes live at the receiver as a whole or not at all.
 * Both sides are state machines over bytes: connections, clocks and threads are the caller's, and times come
 * in as arguments. What the words mean is in docs/protocol/handoff.md. All digests are SHA-256. */

/* The key that seals transfers. Immutable. Wiped when the last handle that uses it is freed. */
typedef struct kvpack_mac_key kvpack_mac_key;

/* Where a key comes from: 32 secret bytes, or a file of mode 0600 or 0400 with these bytes or with 64
 * lower-case hexadecimal digits. */
typedef struct kvpack_mac_key_options {
  uint64_t struct_size;
  const void* secret; /* Copied; the caller wipes its own. */
  uint64_t secret_size;
  const char* path;
  uint32_t producer_file; /* 1: read by the rules of producers, which allow blanks around the digits. */
  uint32_t reserved;
} kvpack_mac_key_options;

/* Makes a key.
 *
 * Errors: VALIDATION the secret is not 32 bytes; CONFIG the file is not private, no regular file, or holds no
 * key; NOT_FOUND, IO it cannot be read. */
KVPACK_API kvpack_status kvpack_mac_key_new(kvpack_mac_key** out, const kvpack_mac_key_options* options,
                                            kvpack_error** error);

/* Frees a key. */
KVPACK_API void kvpack_mac_key_free(kvpack_mac_key* key);

/* Parts of a state. */
enum {
  KVPACK_COMPONENT_TARGET_KV = 1,
  KVPACK_COMPONENT_DFLASH_CONTEXT = 2,
  KVPACK_COMPONENT_VISION_CONTEXT = 3
};

/* What the rows of a segment are. */
enum {
  KVPACK_ROLE_NOPE_KEY = 1,
  KVPACK_ROLE_NOPE_VALUE = 2,
  KVPACK_ROLE_SWA_KEY = 3,
  KVPACK_ROLE_SWA_VALUE = 4,
  KVPACK_ROLE_NOPE_TILE = 5,
  KVPACK_ROLE_SWA_TILE = 6,
  KVPACK_ROLE_DFLASH_KEY = 7,
  KVPACK_ROLE_DFLASH_VALUE = 8,
  KVPACK_ROLE_AUXILIARY = 9
};

/* When a refused producer may try again. */
enum { KVPACK_RETRY_NEVER = 1, KVPACK_RETRY_NEW_GENERATION = 2, KVPACK_RETRY_LATER = 3 };

/* What bytes have led to, at either side. */
enum {
  KVPACK_HANDOFF_MORE = 0,         /* Nothing yet: go on. */
  KVPACK_HANDOFF_BEGIN = 1,        /* Receiver: the begin frame waits to be accepted. */
  KVPACK_HANDOFF_COMMITTED = 2,    /* Receiver: done. kvpack_handoff_receiver_reply is the acknowledgement. */
  KVPACK_HANDOFF_ACKNOWLEDGED = 3, /* Sender: the transfer is committed. */
  KVPACK_HANDOFF_REFUSED = 4       /* Sender: kvpack_handoff_sender_refusal says why. */
};

/* Everything that must be equal on both sides for a state to be usable. Fixed for good. */
typedef struct kvpack_handoff_identity {
  kvpack_id adapter_sha256;
  kvpack_id chat_template_sha256;
  kvpack_id context_policy_sha256;
  kvpack_id model_sha256;
  kvpack_id tokenizer_sha256;
  const char* model_revision;
  uint64_t model_revision_size;
  const char* tokenizer_revision;
  uint64_t tokenizer_revision_size;
} kvpack_handoff_identity;

/* What came into the prompt that is no token. Fixed for good. */
typedef struct kvpack_handoff_multimodal {
  kvpack_id image_sequence_sha256;
  kvpack_id preprocessing_sha256;
  kvpack_id projector_sha256;
} kvpack_handoff_multimodal;

/* A part of the state that is transferred. Fixed for good. */
typedef struct kvpack_handoff_component {
  const char* id;
  uint64_t id_size;
  kvpack_id identity_sha256;
  uint32_t kind;     /* KVPACK_COMPONENT. */
  uint32_t required; /* 1: the transfer must bring it. */
} kvpack_handoff_component;

/* What a segment holds: rows [logical_start, + logical_count) of elements_per_token elements each. Fixed for
 * good. */
typedef struct kvpack_handoff_shape {
  const char* component_id;
  uint64_t component_id_size;
  uint64_t logical_start;
  uint64_t logical_count;
  uint32_t role;      /* KVPACK_ROLE. */
  uint32_t has_layer; /* 0: of no one layer; then `layer` is 0. */
  uint32_t layer;
  uint32_t dtype; /* KVPACK_DTYPE_F16 or KVPACK_DTYPE_F32, little-endian. */
  uint32_t elements_per_token;
  uint32_t reserved;
} kvpack_handoff_shape;

/* A segment: its shape, and its payload's length and digest. Fixed for good. */
typedef struct kvpack_handoff_segment {
  kvpack_handoff_shape shape;
  kvpack_id sha256;
  uint64_t byte_len;
  uint32_t sequence; /* Place in the stream, from 0. */
  uint32_t reserved;
} kvpack_handoff_segment;

/* The first message of a transfer: who sends what. */
typedef struct kvpack_handoff_begin {
  uint64_t struct_size;
  const char* transfer_id; /* 1 to 128 characters out of A-Z a-z 0-9 - _ . */
  uint64_t transfer_id_size;
  uint64_t generation; /* From 1 on; each transfer under one key and epoch has a higher one. */
  uint64_t created_unix_ms;
  uint64_t expires_unix_ms;
  const char* hmac_key_id;
  uint64_t hmac_key_id_size;
  uint64_t hmac_epoch;
  kvpack_handoff_identity identity;
  const kvpack_handoff_multimodal* multimodal; /* NULL: none. */
  const uint32_t* prompt_token_ids; /* Without the last token, which the receiver evaluates by itself. */
  uint64_t prompt_token_count;
  const kvpack_handoff_component* components;
  uint64_t component_count;
  const kvpack_handoff_segment* segments; /* All of them, or none where they are deferred. */
  uint64_t segment_count;
  uint64_t prefix_cut; /* Tokens that the receiver already holds; 0: a full transfer. Under no digest. */
  uint32_t deferred;   /* 1: descriptors come with the segments. */
  uint32_t reserved;
} kvpack_handoff_begin;

/* What the seal binds. Filled by the library; transfer_id ends with NUL. */
typedef struct kvpack_handoff_seal {
  uint64_t struct_size;
  const char* transfer_id;
  uint64_t transfer_id_size;
  uint64_t generation;
  kvpack_id begin_sha256;
  kvpack_id descriptor_sha256;
  kvpack_id payload_sha256;
  uint64_t total_bytes;
  uint32_t segment_count;
  uint32_t reserved;
} kvpack_handoff_seal;

/* Digest of a payload in pieces: what the descriptor of a declared segment needs. */
KVPACK_API kvpack_status kvpack_handoff_payload_sha256(kvpack_id* out, const kvpack_span* payload,
                                                       uint64_t payload_count, kvpack_error** error);

/* # Sending a handoff
 *
 * Frames come out, either as buffers or through a callback; the receiver's answer goes in. */

/* Signs and frames one transfer. Payloads are read once and never kept. One thread at a time. */
typedef struct kvpack_handoff_sender kvpack_handoff_sender;

/* What is sent, and how. */
typedef struct kvpack_handoff_sender_options {
  uint64_t struct_size;
  const kvpack_mac_key* key;
  const kvpack_handoff_begin* begin; /* The begin, */
  const void* begin_json;            /* or its JSON object, with `prefix_cut` where it is a delta. */
  uint64_t begin_json_size;
  kvpack_append_fn write;     /* Is given each frame, payloads included, by the call that makes it. */
  void* write_user;           /* Must stay good until the sender is freed. */
  uint64_t max_payload_bytes; /* Of one segment; 0: 536,870,912. */
  uint32_t max_header_bytes;  /* 0: 8,388,608. */
  uint32_t refusals;          /* 1: the peers have agreed that the receiver may answer with a refusal. */
} kvpack_handoff_sender_options;

/* A receiver's refusal, as it came: untrusted text. Its pointers belong to the sender and end with NUL. */
typedef struct kvpack_handoff_refusal {
  uint64_t struct_size;
  const char* category; /* For example "Validation". */
  const char* text;     /* The receiver's own words, at most 512 bytes; may be empty. */
  uint64_t text_size;
  uint32_t retry; /* KVPACK_RETRY. */
  uint32_t reserved;
} kvpack_handoff_refusal;

/* Checks a begin as a receiver would and prepares its frame.
 *
 * Errors: VALIDATION the rules of a begin; ZERO_GENERATION; JSON; INVALID_FRAME a key that no begin has, or a
 * frame over the bounds. */
KVPACK_API kvpack_status kvpack_handoff_sender_new(kvpack_handoff_sender** out,
                                                   const kvpack_handoff_sender_options* options,
                                                   kvpack_error** error);

/* The begin frame, which goes out first. Here and below `frame` belongs to the sender and is good until its
 * next call. Without `write` both outputs are needed; with it they are NULL, and a failure of `write` leaves
 * nothing but the answer to be read.
 *
 * Errors: WRONG_STATE it has been given; what write returns. */
KVPACK_API kvpack_status kvpack_handoff_sender_begin(kvpack_handoff_sender* sender, const uint8_t** frame,
                                                     uint64_t* frame_size, kvpack_error** error);

/* The next segment: its frame without the payload, which the caller sends behind it. The frame holds the
 * payload's digest, so the payload must keep still until it has been sent. A failure is final: nothing that
 * was refused can be sealed.
 *
 * shape: in deferred mode; NULL in declared mode, where the payload is that of the next declared segment.
 * payload: pieces, in order.
 *
 * Errors: VALIDATION the rules of a segment, `cannot sign mismatched segment material`, `extra segment`;
 * INVALID_FRAME the payload is empty or over the bounds; WRONG_STATE; what write returns. */
KVPACK_API kvpack_status kvpack_handoff_sender_add_segment(kvpack_handoff_sender* sender,
                                                           const uint8_t** frame, uint64_t* frame_size,
                                                           const kvpack_handoff_shape* shape,
                                                           const kvpack_span* payload, uint64_t payload_count,
                                                           kvpack_error** error);

/* The seal frame, which goes out last.
 *
 * Errors: VALIDATION `seal before every segment`, `required component has no deferred segment`; WRONG_STATE;
 * what write returns. */
KVPACK_API kvpack_status kvpack_handoff_sender_finish(kvpack_handoff_sender* sender, const uint8_t** frame,
                                                      uint64_t* frame_size, kvpack_error** error);

/* The frame by which a transfer is given up before it is acknowledged, while whole frames can still be sent.
 * `reason` NULL: "producer failure".
 *
 * Errors: WRONG_STATE there is nothing to give up, or write has failed; VALIDATION the reason is not UTF-8;
 * INVALID_FRAME it is too long; what write returns. */
KVPACK_API kvpack_status kvpack_handoff_sender_abort(kvpack_handoff_sender* sender, const uint8_t** frame,
                                                     uint64_t* frame_size, const char* reason,
                                                     kvpack_error** error);

/* Takes bytes from the receiver, which may come at any time: a refusal ends a transfer early. `*used` are
 * those up to the end of the answer. A failure is final.
 *
 * Errors: VALIDATION the answer is none, or of another transfer; INVALID_FRAME, JSON. */
KVPACK_API kvpack_status kvpack_handoff_sender_push_reply(kvpack_handoff_sender* sender, uint32_t* step,
                                                          uint64_t* used, const void* data, uint64_t size,
                                                          kvpack_error** error);

/* The receiver has closed.
 *
 * Errors: IO it has not answered; else as kvpack_handoff_sender_push_reply. */
KVPACK_API kvpack_status kvpack_handoff_sender_end_reply(kvpack_handoff_sender* sender, uint32_t* step,
                                                         kvpack_error** error);

/* Why the receiver has refused.
 *
 * Errors: WRONG_STATE it has not. */
KVPACK_API kvpack_status kvpack_handoff_sender_refusal(const kvpack_handoff_sender* sender,
                                                       kvpack_handoff_refusal* out, kvpack_error** error);

/* What was sealed. transfer_id belongs to the sender.
 *
 * Errors: WRONG_STATE before kvpack_handoff_sender_finish. */
KVPACK_API kvpack_status kvpack_handoff_sender_seal(const kvpack_handoff_sender* sender,
                                                    kvpack_handoff_seal* out, kvpack_error** error);

/* How many segments have been added. */
KVPACK_API uint64_t kvpack_handoff_sender_segment_count(const kvpack_handoff_sender* sender);

/* Payload bytes of these segments. */
KVPACK_API uint64_t kvpack_handoff_sender_total_bytes(const kvpack_handoff_sender* sender);

/* Frees a sender. */
KVPACK_API void kvpack_handoff_sender_free(kvpack_handoff_sender* sender);

/* # Receiving a handoff
 *
 * The stream goes in; segments come out through the callbacks of a sink, each verified before it is shown,
 * and what was received becomes live by one last call. */

/* Receives one transfer. One thread at a time; all callbacks are called by the thread of the call. */
typedef struct kvpack_handoff_receiver kvpack_handoff_receiver;

/* The place that a sink lends for a segment. Exists during the callback; one thread. */
typedef struct kvpack_handoff_place kvpack_handoff_place;

/* The segments that a delta must have. Exists during the callback; one thread. */
typedef struct kvpack_handoff_schedule kvpack_handoff_schedule;

/* Adds the memory for the next `size` bytes of the payload. It is written before the payload is known to be
 * good, until segment_ready.
 *
 * Errors: LIMIT more than the segment has. */
KVPACK_API kvpack_status kvpack_handoff_place_add(kvpack_handoff_place* place, void* data, uint64_t size,
                                                  kvpack_error** error);

/* Adds the next target segment of the schedule; its component is not named. */
KVPACK_API kvpack_status kvpack_handoff_schedule_add(kvpack_handoff_schedule* schedule,
                                                     const kvpack_handoff_shape* row, kvpack_error** error);

/* Gives the target segments that transfer tokens [prefix_cut, position), in the order of the wire. Any status
 * but 0 says that there are none; the delta is then refused. */
typedef kvpack_status (*kvpack_handoff_schedule_fn)(void* user, uint64_t position, uint64_t prefix_cut,
                                                    kvpack_handoff_schedule* schedule);

/* The engine's side of a transfer: a shadow of the state, which nothing live knows before `commit`. The order
 * is begin; for each segment lend and segment_ready; prepare_commit; commit. `abort` comes exactly once for
 * each begin that succeeded and was not committed. All but lend are needed. */
typedef struct kvpack_handoff_sink {
  uint64_t struct_size;
  void* user; /* Must stay good until the receiver is freed. */

  /* Opens the shadow. Having failed, it cleans up by itself: no abort follows. `begin` is good until commit
   * or abort has returned. `*max_total_bytes` may be lowered to what the shadow has room for. */
  kvpack_status (*begin)(void* user, const kvpack_handoff_begin* begin, uint64_t* max_total_bytes);

  /* Lends the memory that a payload is received into, byte_len together, or nothing, which gives the segment
   * a buffer of the library's, on the heap: whoever wants payload elsewhere lends for every segment.
   * `component` counts in the begin. NULL: nothing is lent. */
  kvpack_status (*lend)(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                        kvpack_handoff_place* place);

  /* Stages a segment whose length and digest are right. `pieces` is the payload in order: the lent memory
   * where lent is 1, else a buffer that is good during the call. */
  kvpack_status (*segment_ready)(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                                 const kvpack_span* pieces, uint64_t piece_count, uint32_t lent);

  /* Does everything that can still fail. */
  kvpack_status (*prepare_commit)(void* user, const kvpack_handoff_seal* seal);

  /* Makes the shadow live, all or nothing. */
  kvpack_status (*commit)(void* user);

  /* Drops the shadow. */
  void (*abort)(void* user);
} kvpack_handoff_sink;

/* The highest generation that was committed under each key and epoch. KVPACK_ERR_REPLAY says that a
 * generation is not above it, KVPACK_ERR_ZERO_GENERATION that it is 0. Both callbacks are needed. */
typedef struct kvpack_handoff_ledger {
  uint64_t struct_size;
  void* user; /* Must stay good until the receiver is freed. */

  /* Whether the generation is new. Writes nothing. */
  kvpack_status (*admit)(void* user, const char* key_id, uint64_t key_id_size, uint64_t epoch,
                         uint64_t generation);

  /* Makes the generation the highest, durably: called between prepare_commit and commit. */
  kvpack_status (*reserve)(void* user, const char* key_id, uint64_t key_id_size, uint64_t epoch,
                           uint64_t generation);
} kvpack_handoff_ledger;

/* A key that seals are accepted from. Fixed for good. */
typedef struct kvpack_handoff_accepted_key {
  const char* key_id;
  uint64_t key_id_size;
  const kvpack_mac_key* key;
  uint64_t minimum_epoch;
} kvpack_handoff_accepted_key;

/* How a stream is judged. The rules S1 to S9 are those of docs/protocol/handoff.md, Strict mode. */
typedef struct kvpack_handoff_receiver_options {
  uint64_t struct_size;
  const kvpack_handoff_accepted_key* keys; /* Ids distinct. */
  uint64_t key_count;
  uint64_t max_clock_skew_ms; /* S4; 0: 30,000. */
  uint64_t started_unix_ms;   /* S5: when this receiver loaded its ledger; 0: without the rule. */
  uint64_t max_lifetime_ms;   /* S6; 0: 3,600,000. */
  uint32_t max_segments;      /* S7; 0: 1,048,576. */
  uint32_t max_header_bytes;  /* 0: 8,388,608. */
  uint64_t max_total_bytes;   /* S8; 0: what the sink has room for. */
  uint64_t max_payload_bytes; /* Of one segment; 0: 536,870,912. */
  uint32_t lenient;           /* 1: S1 and S3 to S8 are off, which gives upstream's verdicts. */
  uint32_t skip_times;        /* 1: S4 to S6 are off: for a recording that is judged without a clock. */
  uint32_t recording;         /* 1: S9: the stream must end with its seal, and no ledger is needed. */
  uint32_t refusals;          /* 1: the producer has asked to be told of a refusal. */
  kvpack_handoff_schedule_fn schedule; /* NULL: deltas are refused. */
  void* schedule_user;                 /* Must stay good until the receiver is freed. */
  uint32_t unscheduled_deltas; /* 1: without schedule, an unexpected delta is judged by its cut alone. */
  uint32_t reserved;
} kvpack_handoff_receiver_options;

/* What a producer offers, before anything of it has been judged. Pointers are good until the next call. A
 * component whose identity is no digest has one of zeros. */
typedef struct kvpack_handoff_offer {
  uint64_t struct_size;
  const char* transfer_id;
  uint64_t transfer_id_size;
  uint64_t generation;
  uint64_t created_unix_ms;
  uint64_t expires_unix_ms;
  const char* hmac_key_id;
  uint64_t hmac_key_id_size;
  uint64_t hmac_epoch;
  const uint32_t* prompt_token_ids;
  uint64_t prompt_token_count;
  uint64_t prefix_cut;
  uint32_t deferred;
  uint32_t reserved;
  const kvpack_handoff_component* components;
  uint64_t component_count;
} kvpack_handoff_offer;

/* The request that a transfer must answer. */
typedef struct kvpack_handoff_expectations {
  uint64_t struct_size;
  kvpack_handoff_identity identity;
  kvpack_id target_identity_sha256;
  const kvpack_id* dflash_identity_sha256;     /* NULL: no such component may come. */
  const kvpack_handoff_multimodal* multimodal; /* NULL: there may be none. */
  const uint32_t* prompt_token_ids; /* The request without its last token; NULL: any, as the seal binds it. */
  uint64_t prompt_token_count;
  uint64_t max_context_tokens; /* Not 0. */
  const char* request_id;      /* What the transfer id must begin with; NULL: any. */
  uint64_t request_id_size;
  const uint32_t* held_token_ids; /* The session's own history, for a delta. */
  uint64_t held_token_count;
} kvpack_handoff_expectations;

/* By what and into what an offer is accepted. All is copied but what `user` points to. */
typedef struct kvpack_handoff_accept_options {
  uint64_t struct_size;
  uint64_t now_unix_ms; /* The wall clock when the last byte of the begin frame arrived. */
  const kvpack_handoff_sink* sink;
  const kvpack_handoff_ledger* ledger;         /* NULL: for recordings only. */
  const kvpack_handoff_expectations* expected; /* NULL: any transfer that a key of ours has sealed. */
} kvpack_handoff_accept_options;

/* Makes a receiver for one stream. */
KVPACK_API kvpack_status kvpack_handoff_receiver_new(kvpack_handoff_receiver** out,
                                                     const kvpack_handoff_receiver_options* options,
                                                     kvpack_error** error);

/* Push form: takes bytes of the stream until they are used up or a step other than KVPACK_HANDOFF_MORE is
 * reached; `*used` says how many. The bytes may be anything. Any failure aborts the sink and is final: every
 * later call gives the same.
 *
 * Errors: INVALID_FRAME, JSON the stream is none; MISSING_BEGIN; VALIDATION a rule is broken; PRODUCER_ABORT
 * the producer gave up; what callbacks return, with callback and returned. */
KVPACK_API kvpack_status kvpack_handoff_receiver_push(kvpack_handoff_receiver* receiver, uint32_t* step,
                                                      uint64_t* used, const void* data, uint64_t size,
                                                      kvpack_error** error);

/* Pull form: where the next bytes of the stream belong; a payload goes straight into the lent memory. Good
 * until the next call. NULL and 0 while a begin waits, and after the end or a failure. */
KVPACK_API kvpack_status kvpack_handoff_receiver_want(kvpack_handoff_receiver* receiver, uint8_t** place,
                                                      uint64_t* place_size, kvpack_error** error);

/* The first `size` bytes of the place that kvpack_handoff_receiver_want gave have been filled.
 *
 * Errors: INVALID_ARGUMENT it is smaller; else as kvpack_handoff_receiver_push. */
KVPACK_API kvpack_status kvpack_handoff_receiver_advance(kvpack_handoff_receiver* receiver, uint32_t* step,
                                                         uint64_t size, kvpack_error** error);

/* The stream has ended. A recording is committed by this call.
 *
 * Errors: IO, INVALID_FRAME it breaks off; else as kvpack_handoff_receiver_push. */
KVPACK_API kvpack_status kvpack_handoff_receiver_end(kvpack_handoff_receiver* receiver, uint32_t* step,
                                                     kvpack_error** error);

/* What the producer offers, while the begin waits.
 *
 * Errors: WRONG_STATE no begin waits. */
KVPACK_API kvpack_status kvpack_handoff_receiver_offer(const kvpack_handoff_receiver* receiver,
                                                       kvpack_handoff_offer* out, kvpack_error** error);

/* Judges the begin: ledger, times, the rules of a begin, expectations, and the sink's own begin.
 *
 * Errors: WRONG_STATE no begin waits; INVALID_ARGUMENT, STRUCT_SIZE, after which it still waits; VALIDATION,
 * REPLAY, ZERO_GENERATION; what callbacks return. */
KVPACK_API kvpack_status kvpack_handoff_receiver_accept(kvpack_handoff_receiver* receiver,
                                                        const kvpack_handoff_accept_options* options,
                                                        kvpack_error** error);

/* Drops the transfer, unless it has committed or failed. Every later call then fails with `reason`, a code
 * from 100 on, and `text`; NULL for KVPACK_ERR_CANCELLED and KVPACK_ERR_DEADLINE_EXCEEDED gives their own. */
KVPACK_API kvpack_status kvpack_handoff_receiver_abort(kvpack_handoff_receiver* receiver,
                                                       kvpack_status reason, const char* text,
                                                       kvpack_error** error);

/* What is to be sent to the producer, if it still can be: after KVPACK_HANDOFF_COMMITTED the acknowledgement;
 * after a failure, where options->refusals was set and the ledger has not been asked to reserve, the refusal.
 * NULL and 0 when there is nothing. */
KVPACK_API const uint8_t* kvpack_handoff_receiver_reply(const kvpack_handoff_receiver* receiver,
                                                        uint64_t* reply_size);

/* How many segments have been verified. */
KVPACK_API uint64_t kvpack_handoff_receiver_segment_count(const kvpack_handoff_receiver* receiver);

/* Payload bytes of these segments. */
KVPACK_API uint64_t kvpack_handoff_receiver_total_bytes(const kvpack_handoff_receiver* receiver);

/* Frees a receiver; one that has not committed aborts its sink. */
KVPACK_API void kvpack_handoff_receiver_free(kvpack_handoff_receiver* receiver);

/* # Muse models
 *
 * The one model whose cache this library knows by itself: 52 layers, 39 of which slide, K and V rows of two
 * heads of 128 elements in f16, and the final logits of the last token. Where each field of an identity comes
 * from is docs/adapters.md. */

/* What a model file says about its model. Immutable. */
typedef struct kvpack_muse_config kvpack_muse_config;

/* How a layer attends. */
enum {
  KVPACK_MUSE_LAYER_SLIDING = 1, /* To the last rows of a window; K rows are rotated. */
  KVPACK_MUSE_LAYER_FULL = 2     /* To every row; nothing is rotated. */
};

/* A configuration. Counts are in elements unless a name says otherwise; scalars are those of the model file.
 * Pointers belong to the handle. */
typedef struct kvpack_muse_config_info {
  uint64_t struct_size;
  uint64_t hidden_dim;
  uint64_t head_count;
  uint64_t kv_head_count;
  uint64_t head_dim;
  uint64_t value_head_dim;
  uint64_t intermediate_dim;
  uint64_t vocab_size;
  uint64_t context_tokens;
  uint64_t window_tokens;
  uint64_t rope_dim;
  const uint32_t* layer_kinds; /* KVPACK_MUSE_LAYER of each layer. */
  uint64_t layer_count;
  const uint32_t* eos_tokens;
  uint64_t eos_token_count;
  uint32_t bos_token;
  uint32_t has_bos_token; /* 0: there is none. */
  float rms_epsilon;
  float post_norm_epsilon;
  float rope_base_sliding;
  float rope_base_full;
  float final_logit_softcap; /* 0: disabled. */
  float logit_scale;
  float qk_scale;
  uint32_t reserved;
} kvpack_muse_config_info;

/* Reads the configuration of a model file, GGUF version 3, of unknown origin: memory stays bounded whatever
 * it claims. `path` ends with NUL.
 *
 * Errors: EXPECTATION the file is none, another architecture, a key or tensor is missing or of another form;
 * IO it cannot be read, or ends early. */
KVPACK_API kvpack_status kvpack_muse_config_from_file(kvpack_muse_config** out, const char* path,
                                                      kvpack_error** error);

/* Reads what kvpack_muse_config_encode gives, in any order and with any blanks. Whether the numbers make
 * sense together is for kvpack_muse_config_check.
 *
 * Errors: JSON it is none, or a field is unknown, missing or of another form. */
KVPACK_API kvpack_status kvpack_muse_config_from_json(kvpack_muse_config** out, const void* json,
                                                      uint64_t json_size, kvpack_error** error);

/* A configuration as canonical JSON; scalars as the bits of their f32. */
KVPACK_API kvpack_status kvpack_muse_config_encode(const kvpack_muse_config* config, kvpack_bytes** out,
                                                   kvpack_error** error);

/* What is in a configuration. */
KVPACK_API kvpack_status kvpack_muse_config_get_info(const kvpack_muse_config* config,
                                                     kvpack_muse_config_info* out, kvpack_error** error);

/* Whether the cache of this model can be kept: its geometry, its rotation, and the scalars of its graph.
 *
 * Errors: EXPECTATION the first that is not as the registered layout has it. */
KVPACK_API kvpack_status kvpack_muse_config_check(const kvpack_muse_config* config, kvpack_error** error);

/* Frees a configuration. */
KVPACK_API void kvpack_muse_config_free(kvpack_muse_config* config);

/* Under what Muse caches are computed, kept and found. Immutable. */
typedef struct kvpack_muse_identity kvpack_muse_identity;

/* The eight fields of an identity. Texts are UTF-8 and name resolved values: not `auto`, not `default`. As an
 * output, texts belong to the handle and end with NUL. */
typedef struct kvpack_muse_identity_fields {
  uint64_t struct_size;
  kvpack_id model_sha256;
  kvpack_id adapter_sha256; /* All zero: no adapter. */
  kvpack_id tokenizer_sha256;
  kvpack_id chat_template_sha256;
  kvpack_id context_policy_sha256;
  const char* model_revision;
  uint64_t model_revision_size;
  const char* tokenizer_revision;
  uint64_t tokenizer_revision_size;
  const char* weight_precision; /* For example "q4_k_xl", "nvfp4". */
  uint64_t weight_precision_size;
} kvpack_muse_identity_fields;

/* A weight adapter as it is applied. Fixed for good. */
typedef struct kvpack_muse_adapter {
  kvpack_id file_sha256;
  double scale;
} kvpack_muse_adapter;

/* A model file, and what only its operator knows. */
typedef struct kvpack_muse_model_options {
  uint64_t struct_size;
  const char* path;           /* The model file; ends with NUL. */
  const char* model_revision; /* The operator's name of exactly these weights. */
  uint64_t model_revision_size;
  const char* tokenizer_revision; /* The operator's name of exactly this tokenizer. */
  uint64_t tokenizer_revision_size;
  const char* weight_precision; /* Where the file leaves it open; NULL: the file says it. */
  uint64_t weight_precision_size;
  const kvpack_muse_adapter* adapters; /* In the order of application. */
  uint64_t adapter_count;
  const kvpack_id* context_policy_sha256; /* NULL: contexts are run as the file says. */
  kvpack_progress_fn progress;            /* Of hashing the file; NULL: nobody is told. */
  void* progress_user;
} kvpack_muse_model_options;

/* Makes an identity of its fields.
 *
 * Errors: EXPECTATION `identity field {name} must be a resolved value`. */
KVPACK_API kvpack_status kvpack_muse_identity_new(kvpack_muse_identity** out,
                                                  const kvpack_muse_identity_fields* fields,
                                                  kvpack_error** error);

/* Makes the identity of a model file, all of whose bytes are hashed, last of all. Texts are judged before the
 * file is opened.
 *
 * Errors: as kvpack_muse_identity_new and kvpack_muse_config_from_file; EXPECTATION an adapter's scale is not
 * finite, or the precision is not named or contradicts the file; what progress returns. */
KVPACK_API kvpack_status kvpack_muse_identity_from_file(kvpack_muse_identity** out,
                                                        const kvpack_muse_model_options* options,
                                                        kvpack_error** error);

/* The fields of an identity. */
KVPACK_API kvpack_status kvpack_muse_identity_get_fields(const kvpack_muse_identity* identity,
                                                         kvpack_muse_identity_fields* out,
                                                         kvpack_error** error);

/* The digest of all eight fields: what caches in memory are told apart by. */
KVPACK_API const kvpack_id* kvpack_muse_identity_digest(const kvpack_muse_identity* identity);

/* Under what the cuts of a model are stored: for kvpack_store_find_deepest, kvpack_cut_expect and their kin.
 * `model` may be NULL, and so may `family`.
 *
 * Errors: EXPECTATION as kvpack_muse_config_check, or the vocabulary is empty or above 1,048,576. */
KVPACK_API kvpack_status kvpack_muse_identity_stored(const kvpack_muse_identity* identity,
                                                     kvpack_model* model, kvpack_family** family,
                                                     const kvpack_muse_config* config, kvpack_error** error);

/* Frees an identity. */
KVPACK_API void kvpack_muse_identity_free(kvpack_muse_identity* identity);

/* # Muse engines
 *
 * One live sequence of a Muse engine, as callbacks. Each does all of what it says or nothing, and is called
 * by the thread of the call that was given the engine. docs/muse-reuse.md has the rules of an install. */

/* Layers of a snapshot, tokens of a sliding layer's window, and tokens of the longest context. */
#define KVPACK_MUSE_LAYERS 52
#define KVPACK_MUSE_WINDOW_TOKENS 2048
#define KVPACK_MUSE_MAX_CONTEXT_TOKENS 131072

/* What a layer holds of the tokens [token_start, token_start + token_count): all of them on a full layer, the
 * last 2,048 on a sliding one. Planes are row-major `[token_count][2][128]` f16, little-endian, in the order
 * of the tokens, however the engine itself lays them out. K rows of sliding layers are rotated for their
 * absolute position. Fixed for good. */
typedef struct kvpack_muse_layer {
  const void* key;
  uint64_t key_size; /* 512 bytes for each token. */
  const void* value;
  uint64_t value_size;
  uint64_t token_start;
  uint64_t token_count;
} kvpack_muse_layer;

/* What an engine has computed. It comes with zeros. */
typedef struct kvpack_muse_history {
  uint64_t struct_size;
  const uint32_t* tokens; /* The complete history, whose length is the position. */
  uint64_t token_count;
  const float*
      logits; /* Final logits of the last token, vocab_size of them; or nothing: they are not there. */
  uint64_t logit_count;
} kvpack_muse_history;

/* The cache of an engine. It comes with zeros. */
typedef struct kvpack_muse_planes {
  uint64_t struct_size;
  const kvpack_muse_layer* layers; /* KVPACK_MUSE_LAYERS, in order. */
  uint64_t layer_count;
  void* lease; /* The engine's own, for release_planes. */
} kvpack_muse_planes;

/* A cache that an engine is given: everything but the final logits. Good during the callback. */
typedef struct kvpack_muse_snapshot {
  uint64_t struct_size;
  const uint32_t* tokens; /* The complete history. */
  uint64_t token_count;
  const kvpack_muse_layer* layers; /* KVPACK_MUSE_LAYERS, in order. */
  uint64_t layer_count;
} kvpack_muse_snapshot;

/* An engine. All callbacks but release_planes are needed. */
typedef struct kvpack_muse_engine {
  uint64_t struct_size;
  void* user;
  uint64_t vocab_size;         /* Logits of one token; not 0. */
  uint64_t max_context_tokens; /* Most tokens that it can take; 0: 131,072. */

  /* Says what has been computed. First of every call, and only then: the memory is good until it returns. */
  kvpack_status (*history)(void* user, kvpack_muse_history* out);

  /* Says where the cache lies, of a history that is not empty. The memory keeps still until release_planes,
   * even when another cache is installed meanwhile: what is live has to come back when its logits are
   * refused. */
  kvpack_status (*export_planes)(void* user, kvpack_muse_planes* out);

  /* The planes of one export are not read any more. Comes exactly once for each export that succeeded, before
   * the call returns. NULL: there is nothing to do, and exported memory keeps still until the call returns.
   */
  void (*release_planes)(void* user, void* lease);

  /* Copies a cache into memory beside the live one, makes it live in one step, takes its tokens as history
   * and drops the final logits. After a failure everything is as before. */
  kvpack_status (*install)(void* user, const kvpack_muse_snapshot* snapshot);

  /* Takes the final logits of what is live, vocab_size finite numbers. After a failure everything is as
   * before. */
  kvpack_status (*install_logits)(void* user, const float* logits, uint64_t logit_count);

  /* Back to an empty history. */
  kvpack_status (*reset)(void* user);
} kvpack_muse_engine;

/* # Muse caches in a store
 *
 * Exact sessions, final logits included, saved into a store, found by the tokens of a request, and made live
 * again. docs/muse-durable.md. */

/* The durable cache of one model in one store, which it keeps open. May be used by several threads at once;
 * an engine belongs to one of them. */
typedef struct kvpack_muse_cache kvpack_muse_cache;

/* Why an engine considers to publish what is live. */
enum {
  KVPACK_MUSE_PUBLISH_INTERVAL = 1,        /* The history has grown: at multiples of 2,048. */
  KVPACK_MUSE_PUBLISH_PROMPT_BOUNDARY = 2, /* The prompt has been computed. */
  KVPACK_MUSE_PUBLISH_TURN_BOUNDARY = 3,   /* An answer is complete. */
  KVPACK_MUSE_PUBLISH_EXPLICIT = 4,        /* Somebody asked for it. */
  KVPACK_MUSE_PUBLISH_ALIGNED_BOUNDARY = 5 /* The last multiple of 256 in the prompt has been reached. */
};

/* Which cache. */
typedef struct kvpack_muse_cache_options {
  uint64_t struct_size;
  kvpack_store* store; /* May be open for reading only; then nothing can be saved. */
  const kvpack_muse_config* config;
  const kvpack_muse_identity* identity;
  kvpack_allocate_fn allocate; /* Memory of planes that are being restored; NULL: the heap. */
  kvpack_release_fn release;   /* Needed with allocate. */
  void* memory_user;           /* Must stay good until the cache and every ladder that has it are freed. */
  kvpack_log_fn log;           /* Saves, restores, misses and refusals; NULL: nobody is told. */
  void* log_user;              /* Must stay good as long as memory_user. */
} kvpack_muse_cache_options;

/* How a session is saved. */
typedef struct kvpack_muse_save_options {
  uint64_t struct_size;
  const kvpack_id* idempotency_key; /* Under which a retry is the same save. NULL: made of what is saved. */
  uint64_t publication;             /* The caller's generation; 0: 1. */
  uint64_t time_to_live_ms;         /* Then the cut is found no more; 0: no limit. */
  uint32_t span_rule;               /* KVPACK_SPANS. */
  uint32_t grain_tokens;            /* A multiple of 256; 0: 2048. */
  uint32_t window_grain_tokens;     /* The same for sliding layers; 0: plain runs. */
  uint32_t unencrypted;             /* 1: new objects are authenticated but not encrypted. */
  uint32_t parallelism;             /* Threads; changes no byte. 0: as many as the store allows. */
  uint32_t reserved;
} kvpack_muse_save_options;

/* What a save has made. */
typedef struct kvpack_muse_saved {
  uint64_t struct_size;
  uint32_t saved;    /* 0: the schedule did not ask for it; the rest is zero then. */
  uint32_t replayed; /* 1: it was in the store already, and nothing has been written. */
  kvpack_id manifest_id;
  kvpack_input_cut cut;
  uint64_t restored_bytes; /* Payload of all planes and logits. */
  uint64_t publication;
  uint64_t written_chunks; /* Those that were encoded, */
  uint64_t written_object_bytes;
  uint64_t shared_chunks; /* and those that the store had already. */
  uint64_t shared_object_bytes;
} kvpack_muse_saved;

/* How a session is restored. */
typedef struct kvpack_muse_restore_options {
  uint64_t struct_size;
  const kvpack_cancel* cancel; /* NULL: nobody ends it. */
} kvpack_muse_restore_options;

/* What has been made live. */
typedef struct kvpack_muse_restored {
  uint64_t struct_size;
  uint32_t restored; /* 0: a miss; only suffix_tokens and fault_count say something then. */
  uint32_t reserved;
  kvpack_id manifest_id;
  uint64_t token_count;
  uint64_t suffix_tokens;  /* Tokens of the request behind the cut: what is left to compute. */
  uint64_t restored_bytes; /* Payload that was read and verified. */
  uint64_t fault_count;    /* Deeper cuts that were passed over; on_fault of the store was told which. */
} kvpack_muse_restored;

/* Makes the cache of a model.
 *
 * Errors: EXPECTATION as kvpack_muse_identity_stored, or the texts of the identity are too long to be stored
 * beside a cut. */
KVPACK_API kvpack_status kvpack_muse_cache_new(kvpack_muse_cache** out,
                                               const kvpack_muse_cache_options* options,
                                               kvpack_error** error);

/* Saves what is live, with its final logits. What is stored already is not written again. `out` and `options`
 * may be NULL.
 *
 * Errors: STATE the history is empty; EXPECTATION it has the length of the model's context, there are no
 * final logits, they are not finite or of another length, or the planes are not those of the history; what
 * the engine returns, with callback and returned; else as kvpack_store_save. */
KVPACK_API kvpack_status kvpack_muse_cache_save(kvpack_muse_cache* cache, kvpack_muse_saved* out,
                                                const kvpack_muse_engine* engine,
                                                const kvpack_muse_save_options* options,
                                                kvpack_error** error);

/* Saves what is live when its length and `reason`, a KVPACK_MUSE_PUBLISH, ask for it: an interval at
 * multiples of 2,048, an aligned boundary at the last multiple of 256 in `prompt_tokens`, the others always;
 * an empty history never. `out` and `options` may be NULL.
 *
 * Errors: as kvpack_muse_cache_save. */
KVPACK_API kvpack_status kvpack_muse_cache_publish(kvpack_muse_cache* cache, kvpack_muse_saved* out,
                                                   const kvpack_muse_engine* engine, uint32_t reason,
                                                   uint64_t prompt_tokens,
                                                   const kvpack_muse_save_options* options,
                                                   kvpack_error** error);

/* Finds the deepest stored cut of a request: one of exactly its tokens, or a prefix of a multiple of 256.
 *
 * Errors: as kvpack_store_find_deepest. */
KVPACK_API kvpack_status kvpack_muse_cache_find_deepest(kvpack_muse_cache* cache, kvpack_store_hit* out,
                                                        const uint32_t* tokens, uint64_t token_count,
                                                        kvpack_error** error);

/* Makes the deepest stored cut of a request live, KV and final logits together or not at all. A damaged one
 * is reported and passed over; with options->strict of the store it is the error. A miss leaves the engine as
 * it is. `out` and `options` may be NULL.
 *
 * Errors: as kvpack_muse_cache_restore. */
KVPACK_API kvpack_status kvpack_muse_cache_restore_deepest(kvpack_muse_cache* cache,
                                                           kvpack_muse_restored* out,
                                                           const kvpack_muse_engine* engine,
                                                           const uint32_t* tokens, uint64_t token_count,
                                                           const kvpack_muse_restore_options* options,
                                                           kvpack_error** error);

/* Makes one cut live, of which `tokens` are all. `out` and `options` may be NULL.
 *
 * Errors: NOT_FOUND the cut or a file of it is not there; AUTHENTICATION it is not one of this model and
 * these tokens, or damaged, and the other categories of kvpack_store_restore; EXPECTATION the engine cannot
 * take it; CANCELLED; what the engine returns, with callback and returned; INSTALL logits were refused and
 * what was live could not be brought back: nobody knows what is live, and the engine has to be reset. */
KVPACK_API kvpack_status kvpack_muse_cache_restore(kvpack_muse_cache* cache, kvpack_muse_restored* out,
                                                   const kvpack_muse_engine* engine,
                                                   const kvpack_id* manifest_id, const uint32_t* tokens,
                                                   uint64_t token_count,
                                                   const kvpack_muse_restore_options* options,
                                                   kvpack_error** error);

/* Frees a cache. */
KVPACK_API void kvpack_muse_cache_free(kvpack_muse_cache* cache);

/* # Reuse of Muse caches
 *
 * Caches kept in memory, and the order in which they, the live session and the store serve a request.
 * docs/muse-reuse.md. */

/* Complete snapshots in the memory of this process, within a budget. Nothing in it is authenticated. May be
 * used by several threads at once. */
typedef struct kvpack_muse_resident kvpack_muse_resident;

/* How much is kept. */
typedef struct kvpack_muse_resident_options {
  uint64_t struct_size;
  uint64_t capacity_bytes;      /* Of planes and logits; 0: 8 GiB. */
  uint32_t upstream_accounting; /* 1: what is only held counts as well, as in the reference implementation. */
  uint32_t reserved;
} kvpack_muse_resident_options;

/* What is kept, and what has happened. */
typedef struct kvpack_muse_resident_info {
  uint64_t struct_size;
  uint64_t entries;
  uint64_t nodes;              /* Of the tree, its root included. */
  uint64_t unique_chunk_bytes; /* Distinct blocks that are alive. */
  uint64_t resident_bytes;     /* What is held against the capacity. */
  uint64_t held_bytes;         /* What is only kept alive by somebody who reads it. */
  uint64_t overhead_bytes;     /* Token lists and nodes; outside the capacity. */
  uint64_t queries;
  uint64_t hits;
  uint64_t evictions;
} kvpack_muse_resident_info;

/* Makes an empty tier. options may be NULL. */
KVPACK_API kvpack_status kvpack_muse_resident_new(kvpack_muse_resident** out,
                                                  const kvpack_muse_resident_options* options,
                                                  kvpack_error** error);

/* Keeps a copy of what is live in an engine, with its final logits where it has them, in place of one of the
 * same tokens, and evicts what was used longest ago until the capacity is kept. Entries of one identity are
 * not seen under another; `identity` NULL is a scope of its own, for a ladder without a store. `*kept`, which
 * may be NULL, is 0 where the snapshot alone exceeds the capacity.
 *
 * Errors: EXPECTATION the planes are not those of the history, which may not be empty, or logits are not
 * finite; what the engine returns, with callback and returned. */
KVPACK_API kvpack_status kvpack_muse_resident_insert(kvpack_muse_resident* resident, uint32_t* kept,
                                                     const kvpack_muse_identity* identity,
                                                     const kvpack_muse_engine* engine, kvpack_error** error);

/* What the tier holds, and what has happened to it. */
KVPACK_API kvpack_status kvpack_muse_resident_get_info(const kvpack_muse_resident* resident,
                                                       kvpack_muse_resident_info* out, kvpack_error** error);

/* Frees a tier; a ladder that has it goes on. */
KVPACK_API void kvpack_muse_resident_free(kvpack_muse_resident* resident);

/* Asks session, resident and durable tier, from the cheapest on, and makes the best answer live. May be used
 * by several threads at once; an engine belongs to one of them. */
typedef struct kvpack_muse_ladder kvpack_muse_ladder;

/* By which rules a tier serves. */
enum {
  KVPACK_MUSE_REUSE_DEEPEST = 1, /* The deepest cut, where it saves enough over a cheaper tier. */
  KVPACK_MUSE_REUSE_UPSTREAM = 2 /* The first tier that has anything, as in the reference implementation. */
};

/* Who serves a request. */
enum {
  KVPACK_MUSE_SOURCE_MISS = 0, /* Nobody: everything is to be computed. */
  KVPACK_MUSE_SOURCE_SESSION = 1,
  KVPACK_MUSE_SOURCE_RESIDENT = 2,
  KVPACK_MUSE_SOURCE_DURABLE = 3
};

/* Why a tier did not serve. */
enum {
  KVPACK_MUSE_WHY_SERVED = 0,
  KVPACK_MUSE_WHY_ABSENT = 1,         /* There is no such tier. */
  KVPACK_MUSE_WHY_NOT_ASKED = 2,      /* The answer stood before its turn. */
  KVPACK_MUSE_WHY_NOTHING_FOUND = 3,  /* It has no cut, or none as deep as it may be believed. */
  KVPACK_MUSE_WHY_NO_LOGITS = 4,      /* It has the whole request, without what going on takes. */
  KVPACK_MUSE_WHY_SMALL_GAIN = 5,     /* Deeper than a cheaper tier, and not by enough. */
  KVPACK_MUSE_WHY_ANOTHER_SERVED = 6, /* Its turn did not come, or a deeper one saved enough. */
  KVPACK_MUSE_WHY_NO_USE = 7,         /* What it has would not make a transfer shorter. */
  KVPACK_MUSE_WHY_FAILED = 8
};

/* What to do before a remote producer hands a whole prompt over. */
enum {
  KVPACK_MUSE_TRANSFER_SERVE_LOCAL = 1, /* All but the last token is here. */
  KVPACK_MUSE_TRANSFER_DELTA = 2,       /* The producer may leave out what is here. */
  KVPACK_MUSE_TRANSFER_FULL = 3         /* Nothing that is here helps. */
};

/* Which tiers there are, and by what rules they serve. */
typedef struct kvpack_muse_ladder_options {
  uint64_t struct_size;
  kvpack_muse_resident* resident; /* NULL: there is none. */
  kvpack_muse_cache* cache;       /* NULL: there is none. */
  uint64_t min_gain_tokens;       /* What a dearer tier must save over a cheaper one; 0: 256. */
  uint32_t mode;                  /* KVPACK_MUSE_REUSE; 0: deepest. */
  uint32_t reserved;
} kvpack_muse_ladder_options;

/* One tier in a report. Fixed for good. */
typedef struct kvpack_muse_tier_report {
  uint64_t cut;   /* The deepest that it was found to have; 0: nothing. */
  uint32_t asked; /* 1: it was asked. */
  uint32_t why;   /* KVPACK_MUSE_WHY. */
} kvpack_muse_tier_report;

/* How a request is served. */
typedef struct kvpack_muse_reuse_report {
  uint64_t struct_size;
  uint32_t source; /* KVPACK_MUSE_SOURCE. */
  uint32_t action; /* KVPACK_MUSE_TRANSFER, of kvpack_muse_ladder_plan_transfer; else 0. */
  uint64_t cut;    /* Tokens that are live and need not be computed. */
  uint64_t request_tokens;
  uint64_t tokens_to_compute;
  uint64_t bytes_read;  /* Payload and logits, from the tier that served. */
  uint64_t fault_count; /* Damaged cuts that were passed over; on_fault of the store was told which. */
  kvpack_muse_tier_report session;
  kvpack_muse_tier_report resident;
  kvpack_muse_tier_report durable;
} kvpack_muse_reuse_report;

/* Makes a ladder. It keeps its tiers. options may be NULL: then only the live session serves. */
KVPACK_API kvpack_status kvpack_muse_ladder_new(kvpack_muse_ladder** out,
                                                const kvpack_muse_ladder_options* options,
                                                kvpack_error** error);

/* Makes the best prefix of a request live. A live session that serves is not touched: what lies behind
 * out->cut in its history is the caller's to drop. A miss leaves the engine as it is. `options` may be NULL.
 *
 * Errors: as kvpack_muse_cache_find_deepest and kvpack_muse_cache_restore. */
KVPACK_API kvpack_status kvpack_muse_ladder_prepare(kvpack_muse_ladder* ladder, kvpack_muse_reuse_report* out,
                                                    const kvpack_muse_engine* engine, const uint32_t* tokens,
                                                    uint64_t token_count,
                                                    const kvpack_muse_restore_options* options,
                                                    kvpack_error** error);

/* The same before a remote producer hands the whole prompt over: makes live only what makes the transfer
 * shorter, and says in out->action what is to be done. A delta begins at a multiple of `align_tokens`; 0:
 * 256. `options` may be NULL.
 *
 * Errors: as kvpack_muse_ladder_prepare. */
KVPACK_API kvpack_status kvpack_muse_ladder_plan_transfer(
    kvpack_muse_ladder* ladder, kvpack_muse_reuse_report* out, const kvpack_muse_engine* engine,
    const uint32_t* tokens, uint64_t token_count, uint64_t align_tokens,
    const kvpack_muse_restore_options* options, kvpack_error** error);

/* Frees a ladder. */
KVPACK_API void kvpack_muse_ladder_free(kvpack_muse_ladder* ladder);

/* # Clusters
 *
 * Handoffs between machines, over TLS 1.3: a receiver that an engine embeds, and the end that sends to it.
 * Both are configured by the files that `kvpack enroll` writes. Sockets, deadlines, keys, the replay ledger
 * and the generations are the library's. docs/protocol/receiver.md. */

/* Takes handoffs from enrolled producers. kvpack_receiver_run is for one thread, which makes all callbacks,
 * one at a time: while one runs, no other connection is served. kvpack_receiver_stop and the accessors may be
 * used by any thread, also meanwhile and from callbacks. */
typedef struct kvpack_receiver kvpack_receiver;

/* What an offer is admitted to. Exists during the callback; one thread. */
typedef struct kvpack_admission kvpack_admission;

/* How an attempt has ended. Every connection that is accepted is one attempt. */
enum {
  KVPACK_ATTEMPT_COMMITTED = 1, /* What was sent is live. */
  KVPACK_ATTEMPT_EXCESS = 2,    /* Closed at once: too many connections, or gone already. */
  KVPACK_ATTEMPT_STOPPED = 3,   /* The receiver was stopped before its turn. */
  KVPACK_ATTEMPT_HANDSHAKE = 4, /* TLS, certificate, pin or protocol; or never finished. */
  KVPACK_ATTEMPT_BEGIN = 5,     /* No begin frame, or an unreadable one. */
  KVPACK_ATTEMPT_BUSY = 6,      /* Its turn did not come in time, or too much waits. */
  KVPACK_ATTEMPT_VERIFY = 7,    /* What the producer states was refused, also by admit. */
  KVPACK_ATTEMPT_TRANSFER = 8,  /* Broken off, malformed, aborted by the producer, or too slow. */
  KVPACK_ATTEMPT_INSTALL = 9,   /* The engine refused. */
  KVPACK_ATTEMPT_LEDGER = 10    /* The replay ledger refused, or cannot be written any more. */
};

/* What is known of an attempt: no token, no key, no payload. A status of a callback that is no category
 * counts as INSTALL. Pointers are good during the callback; texts end with NUL, and those that came from the
 * peer are not to be trusted. Times in nanoseconds. */
typedef struct kvpack_attempt {
  uint64_t struct_size;
  void* sink_user;         /* `user` of the sink or engine that it was admitted to; NULL: it was not. */
  const char* message;     /* NULL when status is 0. */
  const char* peer;        /* `ip:port`; "" when it was closed at once. */
  const char* peer_sha256; /* Digest of its certificate; "" before the handshake was done. */
  const char* transfer_id; /* "" before a begin frame was read. */
  uint64_t transfer_id_size;
  uint64_t generation;
  uint64_t installed_bytes;
  uint64_t ended_unix_ms;
  uint64_t accept_ns;          /* From accept to the end of the begin frame. */
  uint64_t segment_read_ns;    /* Waiting inside frames. */
  uint64_t segment_process_ns; /* Hashing and judging what came, and the sink's part of it: */
  uint64_t sink_ns;            /* In the sink, while segments came. */
  uint64_t seal_ns;            /* Check of the seal, and prepare_commit. */
  uint64_t reserve_ns;         /* The replay ledger. */
  uint64_t commit_ns;          /* The sink's commit. */
  uint64_t ack_ns;             /* Writing the acknowledgement. */
  uint64_t transfer_commit_ns; /* From admission to the end of the acknowledgement. */
  uint64_t total_ns;           /* From accept. */
  const char* json;            /* All of it, as one line of canonical JSON. */
  uint64_t json_size;
  uint32_t end;         /* KVPACK_ATTEMPT. */
  kvpack_status status; /* 0 when committed, or IO when only the acknowledgement was lost; else why not. */
  uint32_t installed_segments;
  uint32_t refusal_sent; /* 1: the producer was told why. */
} kvpack_attempt;

/* A receiver's files, and the engine around it. */
typedef struct kvpack_receiver_options {
  uint64_t struct_size;
  const char* config_path;   /* The enrolment: ReceiverConfigV2. */
  const char* settings_path; /* Settings of this machine; NULL: the defaults. `store` is not looked at. */
  void* user;                /* Must stay good until the receiver is freed. */

  /* A begin frame of an enrolled producer has come, and it is its turn. Nothing of it has been judged: that
   * is done after this, before the sink's own begin. Gives the admission a sink, by one of the functions
   * below. With a status but 0 the transfer is refused: from 100 on the producer is told the category, as far
   * as the protocol has it. */
  kvpack_status (*admit)(void* user, const kvpack_handoff_offer* offer, kvpack_admission* admission);

  /* An attempt has ended. Comes once for each. Nothing that it was admitted to is used any more, and exported
   * planes have been released. NULL: nobody wants to know. */
  void (*ended)(void* user, const kvpack_attempt* attempt);

  /* The Muse model of the engine, both or none. The configuration must be of it; deltas are judged by its
   * span schedule, and it can be received into an engine of it. */
  const kvpack_muse_config* muse_config;
  const kvpack_muse_identity* muse_identity;

  kvpack_handoff_schedule_fn schedule; /* Of other models; NULL: deltas are refused. */
  void* schedule_user;                 /* Must stay good until the receiver is freed. */

  kvpack_allocate_fn allocate; /* Memory of what is received into Muse engines; NULL: the heap. */
  kvpack_release_fn release;   /* Needed with allocate. */
  void* memory_user;           /* Must stay good until the receiver is freed. */
  kvpack_log_fn log;           /* The end of every attempt, by the thread that runs; NULL: nobody is told. */
  void* log_user;              /* Must stay good until the receiver is freed. */
} kvpack_receiver_options;

/* Which transfers an admission takes beside the identities of the configuration, which all must have. */
typedef struct kvpack_receiver_request {
  uint64_t struct_size;
  const uint32_t* prompt_token_ids; /* The request without its last token; NULL: any, as the seal binds it. */
  uint64_t prompt_token_count;
  uint64_t max_context_tokens; /* Most tokens of a prompt; 0: no bound but the engine's. */
  const char* request_id;      /* What the transfer id must begin with; NULL: any. */
  uint64_t request_id_size;
  const kvpack_handoff_multimodal* multimodal; /* NULL: there may be none. */
  const uint32_t*
      held_token_ids; /* History that a delta goes on from. Not for Muse engines, whose own it is. */
  uint64_t held_token_count;
} kvpack_receiver_request;

/* Counters since the start. */
typedef struct kvpack_receiver_info {
  uint64_t struct_size;
  uint64_t accepted;         /* Connections. */
  uint64_t open_connections; /* Now. */
  uint64_t committed;        /* Attempts by their end. */
  uint64_t excess;
  uint64_t stopped;
  uint64_t handshake;
  uint64_t begin;
  uint64_t busy;
  uint64_t verify;
  uint64_t transfer;
  uint64_t install;
  uint64_t ledger;
  uint64_t installed_bytes;
  uint64_t refusals_sent;
  uint64_t lost_receipts;      /* Lines that the file `receipts` of the settings could not take. */
  uint32_t ledger_was_missing; /* 1: there was no replay ledger, so a new one was made. */
  uint32_t degraded;           /* 1: the ledger cannot be written: nothing is accepted until a restart. */
} kvpack_receiver_info;

/* Opens a receiver: it has the ledger and the socket, and peers can connect, but nobody is answered before
 * kvpack_receiver_run.
 *
 * Errors: CONFIG the files, what they name, a ledger that is damaged or in use, a volume that is too slow for
 * it; EXPECTATION the configuration is of another model, with field, found and expected; IO the socket;
 * NOT_FOUND; INVALID_ARGUMENT `schedule` beside a Muse model. */
KVPACK_API kvpack_status kvpack_receiver_open(kvpack_receiver** out, const kvpack_receiver_options* options,
                                              kvpack_error** error);

/* Receives into a sink, whose `user` must stay good until `ended`. It is begun only when the offer has passed
 * all checks, and may never be. Where several transfers may run at a time, each needs a sink of its own.
 *
 * Errors: INVALID_ARGUMENT a needed callback is NULL; WRONG_STATE there is a sink already. */
KVPACK_API kvpack_status kvpack_admission_into_sink(kvpack_admission* admission,
                                                    const kvpack_handoff_sink* sink, kvpack_error** error);

/* Receives into a Muse engine, which must stay good until `ended`: its `history` is called now, for a delta
 * `export_planes` too, and `install` when all has been verified. It is then as after a prefill of the prompt,
 * without final logits. What is live until then is not touched; exported planes keep still until they are
 * released, which is before `ended`. A draft context is not taken.
 *
 * Errors: WRONG_STATE the receiver was opened without a Muse model, or there is a sink already;
 * INVALID_ARGUMENT; what the engine returns, with callback and returned. */
KVPACK_API kvpack_status kvpack_admission_into_muse(kvpack_admission* admission,
                                                    const kvpack_muse_engine* engine, kvpack_error** error);

/* Takes only what answers this request. Without it any prompt of tokens alone is taken, but no delta into a
 * sink.
 *
 * Errors: INVALID_ARGUMENT; WRONG_STATE it has been said already. */
KVPACK_API kvpack_status kvpack_admission_expect(kvpack_admission* admission,
                                                 const kvpack_receiver_request* request,
                                                 kvpack_error** error);

/* Serves until kvpack_receiver_stop. Once in the life of a receiver.
 *
 * Errors: WRONG_STATE it runs or has run; NO_MEMORY, after which it can only be freed. */
KVPACK_API kvpack_status kvpack_receiver_run(kvpack_receiver* receiver, kvpack_error** error);

/* Ends kvpack_receiver_run once the admitted transfers have ended; all other connections are closed. May come
 * before it. Not for signal handlers. */
KVPACK_API void kvpack_receiver_stop(kvpack_receiver* receiver);

/* Where it listens, `ip:port`, with the port that the system chose for 0. */
KVPACK_API const char* kvpack_receiver_address(const kvpack_receiver* receiver);

/* Where `GET /metrics` is answered; NULL: nowhere. */
KVPACK_API const char* kvpack_receiver_metrics_address(const kvpack_receiver* receiver);

/* What it has done so far. */
KVPACK_API kvpack_status kvpack_receiver_get_info(const kvpack_receiver* receiver, kvpack_receiver_info* out,
                                                  kvpack_error** error);

/* Closes and frees a receiver that does not run. The sinks of transfers that kvpack_receiver_run has left
 * behind, which only a failure does, are aborted. */
KVPACK_API void kvpack_receiver_free(kvpack_receiver* receiver);

/* The settings of the sending end. Immutable; each thread that sends waits for its own transfer. */
typedef struct kvpack_producer kvpack_producer;

/* A producer's file, and the engine around it. */
typedef struct kvpack_producer_options {
  uint64_t struct_size;
  const char* config_path; /* `kvpack.producer.v1`. */

  /* The Muse model of the engine, both or none: the configuration must be of it. Needed to send from an
   * engine of it. */
  const kvpack_muse_config* muse_config;
  const kvpack_muse_identity* muse_identity;

  kvpack_log_fn log; /* What was sent or refused; NULL: nobody is told. */
  void* log_user;    /* Must stay good until the producer is freed. */
} kvpack_producer_options;

/* A segment to be sent. Fixed for good. */
typedef struct kvpack_outgoing_segment {
  kvpack_handoff_shape shape; /* The target's component is called "target", a draft context's "dflash". */
  const kvpack_span* payload; /* Pieces, in order. */
  uint64_t payload_count;
} kvpack_outgoing_segment;

/* Gives the next segment, perhaps once it has been computed. It comes with zeros; a payload_count of 0 says
 * that there is none any more. The payload keeps still until the next call or the end of the transfer. */
typedef kvpack_status (*kvpack_next_segment_fn)(void* user, kvpack_outgoing_segment* out);

/* What is sent: from exactly one of `next`, `segments` and `engine`. */
typedef struct kvpack_transfer {
  uint64_t struct_size;
  const char* receiver;             /* `host:port`, for the same certificate; NULL: that of the settings. */
  const uint32_t* prompt_token_ids; /* Without the last token, which the receiver evaluates by itself. */
  uint64_t prompt_token_count;
  uint64_t prefix_cut;    /* Tokens that the receiver already holds; 0: a full transfer. */
  const char* request_id; /* Of the request that this answers, for the transfer id; NULL: a random one. */
  uint64_t request_id_size;
  const kvpack_handoff_multimodal* multimodal; /* NULL: none. */
  kvpack_next_segment_fn next;
  void* next_user;
  const kvpack_outgoing_segment* segments; /* All of them, in the order of the wire. */
  uint64_t segment_count;
  const kvpack_muse_engine* engine; /* What is live in it, whose history is the prompt: leave that out. */
  uint32_t has_dflash;              /* 1: the segments bring the draft context too. */
  uint32_t reserved;
} kvpack_transfer;

/* How it is sent. */
typedef struct kvpack_send_options {
  uint64_t struct_size;
  kvpack_progress_fn progress; /* Payload bytes sent. The total is 0 where `next` gives the segments. */
  void* progress_user;
  const kvpack_cancel* cancel; /* Ends the transfer between two callbacks, and whatever it waits for. */
  uint32_t no_refusals;        /* 1: as a peer that knows no refusals, for which the connection just ends. */
  uint32_t reserved;
} kvpack_send_options;

/* What has been acknowledged. */
typedef struct kvpack_sent {
  uint64_t struct_size;
  char transfer_id[136]; /* Ends with NUL. */
  uint64_t generation;
  kvpack_id payload_sha256;
  uint64_t payload_bytes;
  uint64_t payload_wire_ns; /* Time in which the socket took payload. */
  uint64_t transfer_start_unix_ns;
  uint64_t first_segment_sent_unix_ns;
  uint64_t transfer_acked_unix_ns;
  uint64_t payload_pacing_bps; /* Bits per second that the sender was held to; 0: not paced. */
  uint32_t segments;
  uint32_t reserved;
} kvpack_sent;

/* Reads a producer's settings. The files that they name are read for each transfer.
 *
 * Errors: CONFIG the file; EXPECTATION it is of another model, with field, found and expected. */
KVPACK_API kvpack_status kvpack_producer_open(kvpack_producer** out, const kvpack_producer_options* options,
                                              kvpack_error** error);

/* Sends one transfer and waits for its acknowledgement. The callbacks are called by this thread. Each attempt
 * takes a new generation, which is never used again: after a failure of the connection the transfer may have
 * been committed. `out`, `json` and `options` may be NULL; `json` gets the receipt as one line, or NULL when
 * memory has run out for it.
 *
 * Errors: any category with `refused_by` = "receiver" and `retry` ("never", "new-generation", "later"): the
 * receiver has refused, in its own words; TIMEOUT; CANCELLED; IO, TLS, ALPN, LEAF_PIN of the connection;
 * CONFIG `receiver`, keys, generation ledger; BUSY another transfer takes a generation at this moment;
 * VALIDATION a rule of the protocol, before anything was sent; STATE the engine has no history; EXPECTATION
 * its planes are not those of its history; WRONG_STATE `engine` without a Muse model; what callbacks return,
 * with callback and returned. */
KVPACK_API kvpack_status kvpack_producer_send(const kvpack_producer* producer, kvpack_sent* out,
                                              kvpack_bytes** json, const kvpack_transfer* transfer,
                                              const kvpack_send_options* options, kvpack_error** error);

/* Frees a producer. */
KVPACK_API void kvpack_producer_free(kvpack_producer* producer);

/* What `kvpack enroll finish --model` takes on both ends for a Muse model: its identities, as canonical JSON.
 *
 * Errors: EXPECTATION as kvpack_muse_identity_stored. */
KVPACK_API kvpack_status kvpack_muse_identity_enrolment(const kvpack_muse_identity* identity,
                                                        kvpack_bytes** out, const kvpack_muse_config* config,
                                                        kvpack_error** error);

/* How long a volume takes to make a reservation of a replay ledger durable, in nanoseconds. */
typedef struct kvpack_volume_times {
  uint64_t struct_size;
  uint64_t min_ns;
  uint64_t median_ns;
  uint64_t p99_ns;
  uint64_t max_ns;
  uint32_t iterations;
  uint32_t fast_enough; /* 1: a receiver starts with a ledger there. */
} kvpack_volume_times;

/* Does in a directory, which is made where it is missing, what a reservation does, `iterations` times (0: 20,
 * at most 10,000). Nothing stays.
 *
 * Errors: IO; INVALID_ARGUMENT. */
KVPACK_API kvpack_status kvpack_volume_probe(kvpack_volume_times* out, const char* directory,
                                             uint32_t iterations, kvpack_error** error);

#ifdef __cplusplus
}
#endif

#endif
