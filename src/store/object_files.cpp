#include "store/object_files.h"

#include <vector>

namespace kvpack::store {
namespace {

Result<std::vector<std::string>> sorted_names(Directory& directory) {
  std::vector<std::string> names;
  KVPACK_TRY(directory.list([&](std::string_view name) {
    names.emplace_back(name);
    return true;
  }));
  std::ranges::sort(names);
  return names;
}

bool is_shard_name(std::string_view name) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return name.size() == 2 && is_digit(name[0]) && is_digit(name[1]);
}

/// @return nothing when the entry has gone
Result<std::optional<FileFacts>> facts_of(Directory& directory, const std::string& name) {
  const auto facts = directory.facts(name);
  if (facts.has_value()) return std::optional<FileFacts>(*facts);
  if (facts.error().code == ErrorCode::kNotFound) return std::optional<FileFacts>();
  return Error(facts.error());
}

Status visit_shard(Directory& shard, const std::string& shard_of, ObjectKind kind,
                   const std::function<Status(const ObjectFile&)>& visit) {
  KVPACK_TRY_ASSIGN(const auto names, sorted_names(shard));
  for (const std::string& name : names) {
    KVPACK_TRY_ASSIGN(const auto facts, facts_of(shard, name));
    if (!facts) continue;
    ObjectFile file{.shard = &shard, .name = name, .facts = *facts};
    const auto id = object_id_of(kind, name);
    if (id && facts->kind == FileKind::kRegular && shard_name(*id) == shard_of) file.id = id;
    KVPACK_TRY(visit(file));
  }
  return success();
}

}  // namespace

Status visit_object_files(const StoreFiles& files, ObjectKind kind,
                          const std::function<Status(const ObjectFile&)>& visit) {
  Directory& shards = files.objects(kind);
  KVPACK_TRY_ASSIGN(const auto names, sorted_names(shards));
  for (const std::string& name : names) {
    KVPACK_TRY_ASSIGN(const auto facts, facts_of(shards, name));
    if (!facts) continue;
    if (facts->kind != FileKind::kDirectory || !is_shard_name(name)) {
      KVPACK_TRY(visit({.shard = &shards, .name = name, .facts = *facts}));
      continue;
    }
    auto shard = shards.open_directory(name);
    if (!shard.has_value() && shard.error().code == ErrorCode::kNotFound) continue;
    if (!shard.has_value()) return std::move(shard.error());
    KVPACK_TRY(visit_shard(**shard, name, kind, visit));
  }
  return success();
}

}  // namespace kvpack::store
