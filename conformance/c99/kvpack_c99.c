/* The command line of the reader: judges and decodes files of every format, and serves the conformance kit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "line_protocol.h"

enum { DONE = 0, REFUSED = 1, USAGE = 2, SYSTEM = 3 };

#define ROOM ((size_t)(SIZE_MAX / 2 < UINT64_C(17179869184) ? SIZE_MAX / 2 : UINT64_C(17179869184)))

static int usage(void) {
  fputs(
      "usage: kvpack_c99 verify FILE [OPTION...]            judge a file; its magic tells what it is\n"
      "       kvpack_c99 decode FILE OUT [OPTION...]        judge it, then write what it holds\n"
      "       kvpack_c99 endpoint                           answer the conformance kit on standard input\n"
      "\n"
      "  decode writes the manifest of a pack, the plaintext of a chunk, one record of a pack set, the "
      "payloads of\n"
      "  a handoff one after the other, and of any other object its canonical bytes.\n"
      "\n"
      "keys of packs, chunks and pack sets (without them, integrity alone is judged):\n"
      "  --root FILE          32 bytes, the root of the stable keys, and of the epochs where no other is "
      "given\n"
      "  --epoch-root FILE    32 bytes, the root of the epochs' keys\n"
      "  --tenant HEX         the tenant namespace; or --operator TEXT, the operator's name for the tenant\n"
      "a chunk is judged as a whole with\n"
      "  --pack FILE          the pack whose manifest refers to it\n"
      "of a pack set, decode writes\n"
      "  --record N           the object of this record\n"
      "a recorded handoff needs\n"
      "  --mac-key FILE       32 bytes, or 64 hex digits\n"
      "  --key-id TEXT        of the key\n"
      "  --min-epoch N        lowest epoch of the key that is taken; 1 when not given\n"
      "  --now MS             the receiver's clock; the begin's last moment when not given\n"
      "  --lenient            without strict mode\n"
      "\n"
      "exit status: 0 good, 1 refused, 2 wrong usage, 3 a file cannot be read or written\n",
      stderr);
  return USAGE;
}

struct options {
  const char *command, *file, *out;
  const char *root, *epoch_root, *tenant, *operator_id, *pack, *record, *mac_key, *key_id, *min_epoch, *now;
  bool lenient;
};

static bool parse_options(int argc, char** argv, struct options* options) {
  const struct {
    const char* name;
    const char** value;
  } named[] = {{"--root", &options->root},           {"--epoch-root", &options->epoch_root},
               {"--tenant", &options->tenant},       {"--operator", &options->operator_id},
               {"--pack", &options->pack},           {"--record", &options->record},
               {"--mac-key", &options->mac_key},     {"--key-id", &options->key_id},
               {"--min-epoch", &options->min_epoch}, {"--now", &options->now}};
  const size_t count = sizeof named / sizeof *named;
  int i;
  for (i = 2; i < argc; ++i) {
    size_t n = 0;
    if (strcmp(argv[i], "--lenient") == 0) {
      options->lenient = true;
      continue;
    }
    while (n < count && strcmp(argv[i], named[n].name) != 0) ++n;
    if (n < count) {
      if (++i == argc || *named[n].value != NULL) return false;
      *named[n].value = argv[i];
    } else if (argv[i][0] == '-' && argv[i][1] != '\0') {
      return false;
    } else if (options->file == NULL) {
      options->file = argv[i];
    } else if (options->out == NULL && strcmp(options->command, "decode") == 0) {
      options->out = argv[i];
    } else {
      return false;
    }
  }
  return options->file != NULL && (options->out != NULL) == (strcmp(options->command, "decode") == 0);
}

/* ---- files */

/* The whole file, freed by the caller; NULL after a message. */
static uint8_t* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  uint8_t* data = NULL;
  size_t capacity = 0, got;
  *size = 0;
  if (file == NULL) {
    perror(path);
    return NULL;
  }
  do {
    if (*size == capacity) {
      uint8_t* larger;
      capacity = 2 * capacity + 1048576;
      larger = capacity > ROOM ? NULL : (uint8_t*)realloc(data, capacity);
      if (larger == NULL) {
        fprintf(stderr, "%s: too long\n", path);
        free(data);
        fclose(file);
        return NULL;
      }
      data = larger;
    }
    got = fread(data + *size, 1, capacity - *size, file);
    *size += got;
  } while (got != 0);
  if (ferror(file)) {
    perror(path);
    free(data);
    data = NULL;
  }
  fclose(file);
  return data;
}

struct target {
  FILE* file;
  bool failed;
};

static void write_part(struct target* target, struct kv99_bytes bytes) {
  if (bytes.size != 0 && fwrite(bytes.data, 1, bytes.size, target->file) != bytes.size) target->failed = true;
}

/* A file that has not been there before. */
static int write_file(const char* path, struct kv99_bytes bytes) {
  struct target target = {NULL, false};
  target.file = fopen(path, "rb");
  if (target.file != NULL) {
    fclose(target.file);
    fprintf(stderr, "%s: exists\n", path);
    return SYSTEM;
  }
  target.file = fopen(path, "wb");
  if (target.file == NULL) {
    perror(path);
    return SYSTEM;
  }
  write_part(&target, bytes);
  if (fclose(target.file) != 0 || target.failed) {
    perror(path);
    remove(path);
    return SYSTEM;
  }
  return DONE;
}

/* ---- one piece of work */

struct work {
  const struct options* options;
  struct kv99 kv;
  struct kv99_arena arena;
  struct kv99_bytes file;
  uint8_t* pack_data; /* of --pack */
  struct kv99_keys keys[KV99_MAX_EPOCHS];
  struct kv99_ring ring;
  bool keyed;
  uint8_t stable[32], epoch_root[32], tenant[32];
};

static int refused(struct work* work) {
  fprintf(stderr, "%s: %s:", work->options->file, kv99_token(work->kv.category));
  fwrite(work->kv.text.data, 1, work->kv.text.size, stderr);
  fputs("\n", stderr);
  return REFUSED;
}

/* Says what was found, and writes what is asked for. */
static int finish(struct work* work, const char* verdict, struct kv99_bytes content) {
  int status = DONE;
  if (work->options->out != NULL) status = write_file(work->options->out, content);
  if (status == DONE) printf("%s\n", verdict);
  return status;
}

static bool read_root(const char* path, uint8_t root[32]) {
  size_t size;
  uint8_t* data = read_file(path, &size);
  bool good = false;
  if (data == NULL) return false;
  if (size != 32) {
    fprintf(stderr, "%s: store key must be exactly 32 bytes\n", path);
  } else if (kv99_zero(data, 32)) {
    fprintf(stderr, "%s: store key is all zero\n", path);
  } else {
    memcpy(root, data, 32);
    good = true;
  }
  kv99_wipe(data, size);
  free(data);
  return good;
}

static int load_keys(struct work* work) {
  const struct options* o = work->options;
  if (o->root == NULL)
    return o->epoch_root == NULL && o->tenant == NULL && o->operator_id == NULL ? DONE : usage();
  if ((o->tenant == NULL) == (o->operator_id == NULL)) return usage();
  if (!read_root(o->root, work->stable) ||
      !read_root(o->epoch_root == NULL ? o->root : o->epoch_root, work->epoch_root))
    return SYSTEM;
  work->keyed = true;
  work->ring.keys = work->keys;
  if (o->tenant != NULL) {
    if (strlen(o->tenant) != 64 || !kv99_unhex(kv99_text(o->tenant), false, work->tenant)) return usage();
    return DONE;
  }
  return kv99_tenant_namespace(&work->kv, work->stable, work->epoch_root, 1, kv99_text(o->operator_id),
                               work->tenant)
             ? DONE
             : refused(work);
}

/* Adds the schedule of an epoch that an object names. One too many is an epoch without a key. */
static void want_epoch(struct work* work, uint64_t epoch) {
  size_t i;
  if (!work->keyed || epoch == 0) return;
  for (i = 0; i < work->ring.count; ++i)
    if (work->keys[i].epoch == epoch) return;
  if (work->ring.count < KV99_MAX_EPOCHS &&
      kv99_derive_keys(&work->kv, work->stable, work->epoch_root, work->tenant, epoch,
                       &work->keys[work->ring.count]))
    ++work->ring.count;
}

static const struct kv99_ring* ring_of(const struct work* work) {
  return work->keyed ? &work->ring : NULL;
}

/* ---- packs and chunks */

static bool open_pack(struct work* work, struct kv99_bytes pack, struct kv99_pack_header* header,
                      struct kv99_manifest* manifest, struct kv99_bytes* plaintext, bool* readable) {
  const struct kv99_limits limits = kv99_default_limits();
  const struct kv99_keys* keys = NULL;
  if (!kv99_check_pack(&work->kv, pack, header)) return false;
  want_epoch(work, header->epoch);
  if (work->keyed && (!kv99_find_keys(&work->kv, &work->ring, header->epoch, &keys) ||
                      !kv99_authenticate_pack(&work->kv, pack, header, keys)))
    return false;
  return kv99_read_pack(&work->kv, pack, header, keys, &limits, manifest, plaintext, readable);
}

static int judge_pack(struct work* work) {
  struct kv99_pack_header header;
  struct kv99_manifest* manifest = (struct kv99_manifest*)kv99_alloc(&work->kv, 1, sizeof *manifest);
  struct kv99_bytes plaintext;
  bool readable;
  if (manifest == NULL || !open_pack(work, work->file, &header, manifest, &plaintext, &readable))
    return refused(work);
  if (!readable) {
    if (work->options->out != NULL) {
      fputs("the manifest is encrypted: keys are needed\n", stderr);
      return REFUSED;
    }
    return finish(work, "pack: integrity only, not authenticated; the manifest is encrypted", plaintext);
  }
  return finish(work, work->keyed ? "pack: authenticated" : "pack: integrity only, not authenticated",
                plaintext);
}

/* Finds the reference to the chunk in the manifest of --pack. */
static bool claim_of(struct work* work, const struct kv99_chunk_header* header,
                     const struct kv99_manifest* manifest, struct kv99_chunk_claim* claim) {
  uint32_t i, j;
  for (i = 0; i < manifest->payload_count; ++i) {
    for (j = 0; j < manifest->payloads[i].ref_count; ++j) {
      const struct kv99_chunk_ref* ref = &manifest->payloads[i].refs[j];
      if (memcmp(ref->object_key, header->object_key, KV99_ID) != 0) continue;
      claim->ref = *ref;
      claim->span = &manifest->schema.states[i].spans[j];
      claim->state = &manifest->payloads[i].key;
      claim->family = &manifest->family;
      claim->tenant = manifest->tenant;
      return true;
    }
  }
  return kv99_refuse(&work->kv, KV99_NOT_FOUND, "the manifest does not refer to this chunk");
}

static int judge_chunk(struct work* work) {
  struct kv99_chunk_header header;
  struct kv99_chunk_claim claim;
  struct kv99_pack_header pack_header;
  struct kv99_manifest* manifest = (struct kv99_manifest*)kv99_alloc(&work->kv, 1, sizeof *manifest);
  struct kv99_bytes plaintext;
  uint8_t family_id[KV99_ID];
  size_t size;
  bool readable;
  if (manifest == NULL || !kv99_inspect_chunk(&work->kv, work->file, &header)) return refused(work);
  if (work->options->pack == NULL) {
    if (work->options->out != NULL) {
      fputs("a chunk is decoded with --pack\n", stderr);
      return USAGE;
    }
    return finish(work, "chunk: well formed; nothing is authenticated without --pack", work->file);
  }
  work->pack_data = read_file(work->options->pack, &size);
  if (work->pack_data == NULL) return SYSTEM;
  memset(&claim, 0, sizeof claim);
  if (!open_pack(work, kv99_bytes_of(work->pack_data, size), &pack_header, manifest, &plaintext, &readable))
    return refused(work);
  if (!readable) {
    fputs("the manifest of the pack is encrypted: keys are needed\n", stderr);
    return REFUSED;
  }
  if (!claim_of(work, &header, manifest, &claim) || !kv99_family_id(&work->kv, &manifest->family, family_id))
    return refused(work);
  claim.family_id = family_id;
  want_epoch(work, claim.ref.epoch);
  if (work->keyed && !kv99_find_keys(&work->kv, &work->ring, claim.ref.epoch, &claim.keys))
    return refused(work);
  if (!kv99_open_chunk(&work->kv, work->file, &claim, &header, &plaintext)) return refused(work);
  if (work->options->out != NULL && plaintext.size == 0) {
    fputs("the chunk is encrypted: keys are needed\n", stderr);
    return REFUSED;
  }
  return finish(work, work->keyed ? "chunk: authenticated" : "chunk: integrity only, not authenticated",
                plaintext);
}

/* ---- pack sets */

static bool parse_number(const char* text, uint64_t* value) {
  *value = 0;
  if (*text == '\0') return false;
  for (; *text != '\0'; ++text)
    if (*text < '0' || *text > '9' || !kv99_multiply(*value, 10, value) ||
        !kv99_add(*value, (uint64_t)(*text - '0'), value))
      return false;
  return true;
}

static int judge_set(struct work* work) {
  struct kv99_pack_set set;
  struct kv99_bytes object = work->file;
  uint64_t i, record = 0;
  int level;
  if (work->options->out != NULL &&
      (work->options->record == NULL || !parse_number(work->options->record, &record)))
    return usage();
  /* Opened without keys first, to learn the epochs. What is wrong with it is said by the second look. */
  if (work->keyed && kv99_open_set(&work->kv, work->file, NULL, &set)) {
    want_epoch(work, set.epoch);
    for (i = 0; i < set.count; ++i) want_epoch(work, kv99_read_set_entry(&set, i).epoch);
  }
  if (work->keyed && work->ring.count == 0)
    want_epoch(work, 1); /* a ring has a tenant only with a schedule */
  if (!kv99_verify_set(&work->kv, work->file, ring_of(work), &level)) return refused(work);
  if (work->options->out != NULL) {
    if (!kv99_open_set(&work->kv, work->file, ring_of(work), &set)) return refused(work);
    if (record >= set.count) {
      fputs("no such record\n", stderr);
      return USAGE;
    }
    if (!kv99_set_record(&work->kv, &set, record, &object)) return refused(work);
  }
  return finish(work,
                level == KV99_AUTHENTICATED ? "pack set: authenticated"
                : level == KV99_INTEGRITY
                    ? "pack set: integrity only, not authenticated"
                    : "pack set: integrity only, not authenticated; a manifest is encrypted, so that "
                      "whether the records belong together was not checked",
                object);
}

/* ---- recorded handoff */

static void collect(void* context, const struct kv99_segment* segment, struct kv99_bytes payload) {
  struct kv99_out* out = (struct kv99_out*)context;
  (void)segment;
  kv99_put(out, payload.data, payload.size);
}

static int judge_handoff(struct work* work) {
  const struct options* o = work->options;
  struct kv99_handoff_policy policy;
  struct kv99_frame* first = (struct kv99_frame*)kv99_alloc(&work->kv, 1, sizeof *first);
  struct kv99_sink sink;
  struct kv99_transfer transfer;
  struct kv99_out out = {NULL, 0, 0};
  uint8_t key[32], *data;
  size_t size;
  bool good;
  memset(&policy, 0, sizeof policy);
  memset(&sink, 0, sizeof sink);
  policy.min_epoch = 1;
  policy.strict = !o->lenient;
  policy.recorded = true;
  policy.max_segments = KV99_MAX_SEGMENTS;
  if (o->mac_key == NULL || o->key_id == NULL ||
      (o->min_epoch != NULL && !parse_number(o->min_epoch, &policy.min_epoch)) ||
      (o->now != NULL && !parse_number(o->now, &policy.now)))
    return usage();
  data = read_file(o->mac_key, &size);
  if (data == NULL) return SYSTEM;
  good = kv99_mac_key(&work->kv, kv99_bytes_of(data, size), key);
  kv99_wipe(data, size);
  free(data);
  if (!good || first == NULL) return refused(work);
  policy.key = key;
  policy.key_id = kv99_text(o->key_id);
  if (o->now == NULL && kv99_read_frame(&work->kv, work->file, false, first) &&
      first->kind == KV99_FRAME_BEGIN)
    policy.now = first->begin.expires;
  good = kv99_receive(&work->kv, work->file, &policy, &sink, &transfer);
  if (good && o->out != NULL) { /* what has verified is read once more, now for its payloads */
    memset(&sink, 0, sizeof sink);
    sink.ready = collect;
    sink.context = &out;
    out.capacity = work->file.size; /* payloads are parts of it */
    out.data = (uint8_t*)kv99_alloc(&work->kv, out.capacity, 1);
    good = out.data != NULL && kv99_receive(&work->kv, work->file, &policy, &sink, &transfer);
  }
  kv99_wipe(key, sizeof key);
  if (!good) return refused(work);
  return finish(work,
                transfer.cut == 0 ? "handoff: authenticated"
                                  : "handoff: authenticated; a delta, whose cut is not under the seal",
                kv99_bytes_of(out.data, out.size));
}

/* ---- canonical objects */

static int judge_object(struct work* work) {
  union {
    struct kv99_family family;
    struct kv99_schema schema;
    struct kv99_declaration declaration;
    struct kv99_manifest manifest;
    struct kv99_sidecar sidecar;
    struct kv99_transform transform;
    struct kv99_rotation rotation;
  }* value = kv99_alloc(&work->kv, 1, sizeof *value);
  const struct kv99_limits limits = kv99_default_limits();
  struct kv99* kv = &work->kv;
  const struct kv99_bytes file = work->file;
  const char* verdict;
  bool good;
  if (value == NULL) return refused(work);
  if (memcmp(file.data, "KVFAM1\0", 8) == 0) {
    verdict = "family: valid";
    good = kv99_decode_family(kv, file, &value->family) && kv99_family_rules(kv, &value->family);
  } else if (memcmp(file.data, "KVRCS1\0", 8) == 0) {
    verdict = "schema: well formed";
    good = kv99_decode_schema(kv, file, &value->schema);
  } else if (memcmp(file.data, "KVSTS1\0", 8) == 0) {
    verdict = "state declaration: well formed";
    good = kv99_decode_declaration(kv, file, &value->declaration);
  } else if (memcmp(file.data, "KVMNF1\0", 8) == 0) {
    verdict = "manifest: valid, not authenticated";
    good = kv99_decode_manifest(kv, file, &value->manifest) &&
           kv99_manifest_rules(kv, &value->manifest, &limits);
  } else if (memcmp(file.data, "KVSSC1\0", 8) == 0) {
    verdict = "statistics sidecar: valid";
    good = kv99_decode_sidecar(kv, file, &value->sidecar);
  } else if (memcmp(file.data, "KVXFM1\0", 8) == 0) {
    verdict = "transform descriptor: valid";
    good = kv99_decode_transform(kv, file, &value->transform);
  } else if (memcmp(file.data, "KVRTA1\0", 8) == 0) {
    verdict = "rotation family: valid";
    good = kv99_decode_rotation(kv, file, &value->rotation);
  } else {
    verdict = "";
    good = kv99_refuse(kv, KV99_BAD_MAGIC, "no format of kvpack begins like this");
  }
  return good ? finish(work, verdict, file) : refused(work);
}

static int judge(struct work* work) {
  if (work->file.size < 8) {
    kv99_refuse(&work->kv, KV99_TRUNCATED, "the file is shorter than a magic");
    return refused(work);
  }
  if (memcmp(work->file.data, "KVPKP1\0", 8) == 0) return judge_pack(work);
  if (memcmp(work->file.data, "KVCHK1\0", 8) == 0) return judge_chunk(work);
  if (memcmp(work->file.data, "KVSET1\0", 8) == 0) return judge_set(work);
  if (memcmp(work->file.data, "KVPKV2\0", 8) == 0) return judge_handoff(work);
  return judge_object(work);
}

static int run(const struct options* options) {
  struct work* work = (struct work*)calloc(1, sizeof *work);
  uint8_t* data;
  size_t size;
  int status;
  if (work == NULL) return SYSTEM;
  work->options = options;
  kv99_start(&work->kv, &work->arena, ROOM);
  data = read_file(options->file, &size);
  if (data == NULL) {
    free(work);
    return SYSTEM;
  }
  work->file = kv99_bytes_of(data, size);
  status = load_keys(work);
  if (status == DONE) status = judge(work);
  kv99_end(&work->kv);
  kv99_free(&work->kv, &work->arena);
  free(work->pack_data);
  kv99_wipe(work, sizeof *work);
  free(work);
  free(data);
  return status;
}

int main(int argc, char** argv) {
  struct options options;
  memset(&options, 0, sizeof options);
  if (argc < 2) return usage();
  options.command = argv[1];
  if (strcmp(argv[1], "endpoint") == 0) return argc == 2 ? kv99_serve() : usage();
  if (strcmp(argv[1], "verify") != 0 && strcmp(argv[1], "decode") != 0) return usage();
  return parse_options(argc, argv, &options) ? run(&options) : usage();
}
