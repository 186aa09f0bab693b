/// A report as one HTML page that needs nothing beside it, and as JSON with the same numbers. docs/cli.md
/// §Report
#pragma once

#include "cli/report_facts.h"
#include "kvpack/core/canonical_json.h"

namespace kvpack::cli {

/// The sections of a report as members: `store` `sizes` `sharing` `tree` `counters` `quarantine` `findings`
/// `economics`.
void add_report(const ReportFacts& facts, const ReportEconomics& economics, JsonValue& result);

/// Charts are SVG, light and dark as the reader prefers; no script, no request. Each number that the JSON
/// has, the page has as a `data` element whose `data-name` is the path in the JSON.
/// @param title  any text of the caller's; shown as it is
std::string report_page(const ReportFacts& facts, const ReportEconomics& economics, std::string_view title);

}  // namespace kvpack::cli
