// Configuration files in a file system in memory, from a good one with a change.
#pragma once

#include <string>

#include "kvpack/core/canonical_json.h"
#include "support/fake_fs.h"

namespace kvpack::net::testing {

inline std::string digest_of(char c) {
  return std::string(64, c);
}

inline JsonValue identity_json() {
  JsonValue out = JsonValue::object();
  out.set("adapter_sha256", digest_of('a'));
  out.set("chat_template_sha256", digest_of('b'));
  out.set("context_policy_sha256", digest_of('c'));
  out.set("model_revision", "m");
  out.set("model_sha256", digest_of('d'));
  out.set("tokenizer_revision", "t");
  out.set("tokenizer_sha256", digest_of('e'));
  return out;
}

/// The same object without one member.
inline JsonValue without(const JsonValue& object, std::string_view key) {
  JsonObject members;
  for (const JsonMember& member : *object.as_object())
    if (member.key != key) members.push_back({member.key, member.value.clone()});
  return JsonValue(std::move(members));
}

inline void put_credentials(kvpack::testing::FakeFileSystem& fs) {
  fs.put_directory("/etc");
  fs.put_directory("/etc/kvpack");
  for (const char* name : {"chain.pem", "key.pem", "ca.pem", "hmac.key"})
    fs.put_file(std::string("/etc/kvpack/") + name, {});
}

inline void put_json(kvpack::testing::FakeFileSystem& fs, const std::string& path, const JsonValue& value) {
  fs.put_file(path, canonical_json(value));
}

}  // namespace kvpack::net::testing
