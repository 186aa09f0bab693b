#include "cli/report_page.h"

#include "cli/store_command.h"

namespace kvpack::cli {

namespace {

JsonValue optional_number(const std::optional<std::uint64_t>& number) {
  return number ? JsonValue(*number) : JsonValue();
}

JsonValue store_section(const ReportFacts& facts) {
  const StoreStatus& status = facts.status;
  JsonValue section = JsonValue::object();
  section.set("taken_ms", facts.taken_ms);
  section.set("created_ns", status.created_ns);
  section.set("pressure", pressure_name(status.pressure));
  section.set("key_epoch", status.key_epoch);
  section.set("minimum_epoch", status.minimum_epoch);
  section.set("catalog_epoch", status.catalog_epoch);
  return section;
}

JsonValue sizes_json(const ReportFacts& facts) {
  const StoreStatus& status = facts.status;
  JsonValue section = JsonValue::object();
  section.set("quota_bytes", status.quota_bytes);
  section.set("staging_quota_bytes", status.staging_quota_bytes);
  section.set("durable_bytes", status.durable_bytes);
  section.set("reserved_bytes", status.reserved_bytes);
  section.set("free_bytes", facts.free_bytes());
  section.set("cuts", status.manifests);
  section.set("manifest_bytes", facts.manifest_bytes);
  section.set("chunks", status.chunks);
  section.set("chunk_bytes", facts.chunk_bytes);
  section.set("active_uploads", status.active_uploads);
  section.set("token_count", facts.token_count);
  section.set("restored_bytes", facts.restored_bytes);
  return section;
}

JsonValue sharing_json(const ReportFacts& facts) {
  JsonValue classes = JsonValue::array();
  for (const SharingClass& one : facts.sharing) {
    JsonValue value = JsonValue::object();
    value.set("least_cuts", one.least_users);
    value.set("most_cuts", one.most_users == std::numeric_limits<std::uint64_t>::max()
                               ? JsonValue()
                               : JsonValue(one.most_users));
    value.set("chunks", one.chunks);
    value.set("object_bytes", one.object_bytes);
    value.set("saved_bytes", one.saved_bytes);
    classes.push(std::move(value));
  }
  JsonValue section = JsonValue::object();
  section.set("saved_bytes", facts.status.shared_bytes);
  section.set("classes", std::move(classes));
  return section;
}

JsonValue tree_json(const ShownForest& forest) {
  JsonValue cuts = JsonValue::array();
  for (const ShownCut& cut : forest.cuts) {
    JsonValue value = JsonValue::object();
    value.set("manifest_id", cut.manifest_id.hex());
    value.set("parent_manifest_id",
              cut.parent ? JsonValue(forest.cuts[*cut.parent].manifest_id.hex()) : JsonValue());
    value.set("state", cut_state_name(cut.state));
    value.set("token_count", cut.token_count);
    value.set("depth", cut.depth);
    value.set("own_bytes", cut.own_bytes);
    value.set("shared_bytes", cut.shared_bytes);
    value.set("hidden_cuts", cut.hidden_cuts);
    value.set("hidden_bytes", cut.hidden_bytes);
    cuts.push(std::move(value));
  }
  JsonValue section = JsonValue::object();
  section.set("roots", forest.roots);
  section.set("omitted_cuts", forest.omitted_cuts);
  section.set("omitted_bytes", forest.omitted_bytes);
  section.set("cuts", std::move(cuts));
  return section;
}

JsonValue quarantine_json(const ReportFacts& facts) {
  JsonValue groups = JsonValue::array();
  for (const QuarantineGroup& group : facts.quarantine) {
    JsonValue value = JsonValue::object();
    value.set("kind", group.kind);
    value.set("reason", path_json(group.reason));
    value.set("files", group.files);
    value.set("file_bytes", group.file_bytes);
    value.set("newest_ns", group.newest_ns);
    value.set("next_expiry_ns", group.next_expiry_ns);
    groups.push(std::move(value));
  }
  JsonValue section = JsonValue::object();
  section.set("files", facts.quarantined_files);
  section.set("bytes", facts.status.quarantine_bytes);
  section.set("cap_bytes", facts.status.quarantine_cap_bytes);
  section.set("groups", std::move(groups));
  return section;
}

JsonValue findings_json(const ReportFacts& facts) {
  JsonValue findings = JsonValue::array();
  for (const ReportFinding& finding : facts.findings) {
    JsonValue value = JsonValue::object();
    value.set("level", finding.is_problem ? "problem" : "notice");
    value.set("name", finding.name);
    value.set("count", finding.count);
    value.set("text", finding.text);
    findings.push(std::move(value));
  }
  return findings;
}

JsonValue economics_json(const ReportEconomics& economics) {
  JsonValue section = JsonValue::object();
  section.set("hits", economics.hits);
  section.set("misses", economics.misses);
  section.set("restores", economics.restores);
  section.set("served_bytes", economics.served_bytes);
  section.set("served_tokens", optional_number(economics.served_tokens));
  section.set("prefill_tokens_per_second", optional_number(economics.rates.prefill_tokens_per_second));
  section.set("wire_bytes_per_second", optional_number(economics.rates.wire_bytes_per_second));
  section.set("recompute_ms", optional_number(economics.recompute_ms));
  section.set("move_ms", optional_number(economics.move_ms));
  section.set("muse_break_even_tokens", optional_number(economics.muse_break_even_tokens));
  return section;
}

}  // namespace

void add_report(const ReportFacts& facts, const ReportEconomics& economics, JsonValue& result) {
  JsonValue counters = JsonValue::object();
  for (const StoreCounter& counter : facts.status.counters)
    counters.set(counter.name, facts.counter(counter.name));
  result.set("store", store_section(facts));
  result.set("sizes", sizes_json(facts));
  result.set("sharing", sharing_json(facts));
  result.set("tree", tree_json(facts.forest));
  result.set("counters", std::move(counters));
  result.set("quarantine", quarantine_json(facts));
  result.set("findings", findings_json(facts));
  result.set("economics", economics_json(economics));
}

}  // namespace kvpack::cli
