#include "cli/report_page.h"

#include <algorithm>
#include <chrono>

#include "cli/report_markup.h"
#include "cli/store_command.h"

namespace kvpack::cli {

namespace {

constexpr double kWidth = 940;  // Of every chart, in its own units.

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--bg:#ffffff;--fg:#1b1f24;--muted:#57606a;--line:#d0d7de;--panel:#f6f8fa;--rest:#e3e8ee;
--a:#0a5bd3;--b:#7a3fd0;--c:#a86a00;--d:#c3202c;--e:#1a7f37}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--muted:#9aa4af;--line:#30363d;--panel:#161b22;
--rest:#262c34;--a:#5aa2ff;--b:#b48cff;--c:#dba43a;--d:#ff6b62;--e:#4cc763}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1020px;padding:24px 20px 60px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
h1{font-size:1.6rem;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:40px 0 8px;padding-top:12px;border-top:1px solid var(--line)}
p{margin:6px 0;max-width:75ch}
.muted{color:var(--muted)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0 0;padding:0;list-style:none}
.tiles li{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tiles b{display:block;font-size:1.35rem;font-weight:600}
.chart{overflow-x:auto;margin:12px 0}
svg{display:block;width:100%;min-width:700px;height:auto}
svg text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:var(--fg)}
svg .m{fill:var(--muted)}
svg .on{fill:var(--bg);font-weight:600}
svg .h{font-weight:600}
svg .end{text-anchor:end}
svg .mid{text-anchor:middle}
.a{fill:var(--a)}.b{fill:var(--b)}.c{fill:var(--c)}.d{fill:var(--d)}.e{fill:var(--e)}.rest{fill:var(--rest)}
.faint{opacity:.35}
.tick{stroke:var(--fg);stroke-width:1}
.grid{stroke:var(--line);stroke-width:1}
.path{stroke:var(--muted);stroke-width:1.5;fill:none}
.gone{fill:var(--bg);stroke:var(--d);stroke-width:2}
table{border-collapse:collapse;margin:12px 0;width:100%}
caption{text-align:left;font-weight:600;padding:4px 0}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
thead th{color:var(--muted);font-weight:500}
tbody th{font-weight:400}
.id{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.85em;overflow-wrap:anywhere}
.wide{overflow-x:auto}
.findings{list-style:none;padding:0;margin:12px 0}
.findings li{border-left:4px solid var(--c);background:var(--panel);padding:8px 12px;margin:6px 0}
.findings li.problem{border-color:var(--d)}
.findings li.fine{border-color:var(--e)}
summary{cursor:pointer;margin:8px 0}
)css";

std::string utc_text(std::uint64_t ms_since_1970) {
  using namespace std::chrono;
  // Later than the calendar of the library goes.
  if (ms_since_1970 > 900'000'000'000'000U) return "-";
  const sys_seconds time{seconds(static_cast<std::int64_t>(ms_since_1970 / 1'000))};
  const sys_days day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

std::string duration_text(std::uint64_t ms) {
  const double seconds = static_cast<double>(ms) / 1e3;
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 7'200) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3'600);
}

/// `part` of `whole` on `width`.
double on_scale(std::uint64_t part, std::uint64_t whole, double width) {
  if (whole == 0) return 0;
  return std::min(1.0, static_cast<double>(part) / static_cast<double>(whole)) * width;
}

std::string open_chart(std::string_view id, double height, std::string_view title, std::string_view text) {
  return fmt::format(
      "<div class=\"chart\"><svg id=\"{0}\" role=\"img\" viewBox=\"0 0 {1} {2}\" aria-labelledby=\"{0}-t "
      "{0}-d\">"
      "<title id=\"{0}-t\">{3}</title><desc id=\"{0}-d\">{4}</desc>\n",
      id, kWidth, height, escaped(title), escaped(text));
}
constexpr std::string_view kCloseChart = "</svg></div>\n";

std::string text_at(double x, double y, std::string_view classes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>", x, y, classes, escaped(text));
}
std::string box_at(double x, double y, double width, double height, std::string_view classes,
                   std::string_view title) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "class=\"{}\"><title>{}</title></rect>",
      x, y, width, height, classes, escaped(title));
}

// --- stacked bars ---------------------------------------------------------------------------------------

struct Segment {
  std::string name;
  std::uint64_t value = 0;
  std::string text;  ///< The value for people.
  std::string_view color;
};

/// A bar with its segments side by side, and a legend in their order below.
std::string stacked_bar(double y, std::string_view name, const std::vector<Segment>& segments) {
  constexpr double kHeight = 24, kLeast = 2;
  std::uint64_t whole = 0;
  for (const Segment& segment : segments) whole = capped_sum(whole, segment.value);
  std::string out = text_at(0, y + 12, "h", name);
  const double top = y + 20;
  out += box_at(0, top, kWidth, kHeight, "rest", "nothing");
  double x = 0;
  for (const Segment& segment : segments) {
    if (segment.value == 0) continue;
    const double width = std::min(std::max(kLeast, on_scale(segment.value, whole, kWidth)), kWidth - x);
    out +=
        box_at(x, top, std::max(1.0, width - 1), kHeight, segment.color, segment.name + ": " + segment.text);
    x += width;
  }
  if (whole == 0) out += text_at(8, top + 16, "m", "nothing yet");
  double at = 0;
  for (const Segment& segment : segments) {
    const std::string label = segment.name + " " + segment.text;
    out += box_at(at, top + kHeight + 9, 11, 11, segment.color, segment.name);
    out += text_at(at + 16, top + kHeight + 19, "", label);
    at += 40 + 7.2 * static_cast<double>(label.size());
  }
  return out + "\n";
}

// --- sections -------------------------------------------------------------------------------------------

std::string tile(std::string_view name, const std::string& figure_markup) {
  return fmt::format("<li><span class=\"muted\">{}</span><b>{}</b></li>\n", escaped(name), figure_markup);
}

std::string head(const ReportFacts& facts, const ReportEconomics& economics, std::string_view title) {
  const StoreStatus& status = facts.status;
  std::string out = fmt::format("<h1>{}</h1>\n", escaped(title));
  out += fmt::format(
      "<p class=\"muted\">Taken {} by kvpack {}. The store was made {}. Key epochs {} to {}, catalog epoch "
      "{}. "
      "Pressure: {}.</p>\n",
      figure("store.taken_ms", facts.taken_ms, utc_text(facts.taken_ms)), KVPACK_VERSION,
      figure("store.created_ns", status.created_ns, utc_text(status.created_ns / 1'000'000)),
      count_figure("store.minimum_epoch", status.minimum_epoch),
      count_figure("store.key_epoch", status.key_epoch),
      count_figure("store.catalog_epoch", status.catalog_epoch), pressure_name(status.pressure));
  const auto problems = std::ranges::count(facts.findings, true, &ReportFinding::is_problem);
  const std::uint64_t lookups = capped_sum(economics.hits, economics.misses);
  out += "<ul class=\"tiles\">\n";
  out += tile("stored, of " + bytes_text(status.quota_bytes), escaped(bytes_text(status.durable_bytes)));
  out += tile("cuts", escaped(grouped(status.manifests)));
  out += tile("saved by sharing", escaped(bytes_text(status.shared_bytes)));
  out += tile("lookups that hit", escaped(percent_text(economics.hits, lookups)));
  out += tile("given out by restores", escaped(bytes_text(economics.served_bytes)));
  out += tile("problems", escaped(grouped(static_cast<std::uint64_t>(problems))));
  return out + "</ul>\n";
}

std::string quota_chart(const ReportFacts& facts) {
  const StoreStatus& status = facts.status;
  const std::uint64_t used = capped_sum(status.durable_bytes, status.reserved_bytes);
  std::string out = open_chart("chart-quota", 196, "Use of the quota",
                               fmt::format("{} of {} are taken, {} are free.", bytes_text(used),
                                           bytes_text(status.quota_bytes), bytes_text(facts.free_bytes())));
  out += stacked_bar(0, "Quota, " + bytes_text(status.quota_bytes),
                     {{"chunks", facts.chunk_bytes, bytes_text(facts.chunk_bytes), "a"},
                      {"manifests", facts.manifest_bytes, bytes_text(facts.manifest_bytes), "b"},
                      {"reserved", status.reserved_bytes, bytes_text(status.reserved_bytes), "c"},
                      {"free", facts.free_bytes(), bytes_text(facts.free_bytes()), "rest"}});
  const StoreWatermarks marks;
  for (const std::uint32_t mark : {marks.stop, marks.begin, marks.emergency, marks.promotion}) {
    const double x = kWidth * mark / 1'000;
    out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"16\" y2=\"48\" class=\"tick\"/>", x);
    out += text_at(x, 12, "m mid", fmt::format("{}", mark / 10));
  }
  out += text_at(kWidth, 12, "m end", "%");
  out += stacked_bar(96, "Objects, " + bytes_text(capped_sum(facts.chunk_bytes, facts.manifest_bytes)),
                     {{"chunks", facts.chunk_bytes, bytes_text(facts.chunk_bytes), "a"},
                      {"manifests", facts.manifest_bytes, bytes_text(facts.manifest_bytes), "b"}});
  return out + std::string(kCloseChart);
}

std::string size_row(std::string_view name, const std::string& count, std::string_view key,
                     std::uint64_t bytes, std::uint64_t quota) {
  return fmt::format(
      "<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
      "<td class=\"n\">{}</td></tr>\n",
      escaped(name), count, grouped(bytes), bytes_figure(key, bytes), percent_text(bytes, quota));
}

std::string sizes_section(const ReportFacts& facts) {
  const StoreStatus& status = facts.status;
  const std::uint64_t quota = status.quota_bytes;
  std::string out = "<section id=\"sizes\"><h2>Sizes</h2>\n" + quota_chart(facts);
  out +=
      "<p class=\"muted\">Ticks: eviction goes down to 75 % and begins at 85 %; at 92 % saves are refused "
      "when nothing "
      "can be evicted, at 95 % always.</p>\n"
      "<div class=\"wide\"><table><caption>Objects and room</caption><thead><tr><th scope=\"col\">what</th>"
      "<th scope=\"col\" class=\"n\">number</th><th scope=\"col\" class=\"n\">bytes</th><th scope=\"col\" "
      "class=\"n\">"
      "</th><th scope=\"col\" class=\"n\">of the quota</th></tr></thead><tbody>\n";
  out += size_row("chunks: the payload", count_figure("sizes.chunks", status.chunks), "sizes.chunk_bytes",
                  facts.chunk_bytes, quota);
  out += size_row("manifests: one for each cut", count_figure("sizes.cuts", status.manifests),
                  "sizes.manifest_bytes", facts.manifest_bytes, quota);
  out += size_row("all objects", grouped(capped_sum(status.chunks, status.manifests)), "sizes.durable_bytes",
                  status.durable_bytes, quota);
  out += size_row("reserved by unfinished saves", count_figure("sizes.active_uploads", status.active_uploads),
                  "sizes.reserved_bytes", status.reserved_bytes, quota);
  out += size_row("most that saves may reserve", "", "sizes.staging_quota_bytes", status.staging_quota_bytes,
                  quota);
  out += size_row("free", "", "sizes.free_bytes", facts.free_bytes(), quota);
  out += size_row("quota", "", "sizes.quota_bytes", quota, quota);
  out += "</tbody></table></div>\n";
  out += fmt::format(
      "<p>The cuts stand for {} tokens together; restored one by one they would be {} of planes.</p>\n",
      count_figure("sizes.token_count", facts.token_count),
      bytes_figure("sizes.restored_bytes", facts.restored_bytes));
  return out + "</section>\n";
}

std::string class_name(const SharingClass& one) {
  if (one.least_users == 0) return "no cut";
  if (one.most_users == std::numeric_limits<std::uint64_t>::max())
    return fmt::format("{} and more", one.least_users);
  if (one.least_users == one.most_users)
    return fmt::format("{} {}", one.least_users, one.least_users == 1 ? "cut" : "cuts");
  return fmt::format("{} to {}", one.least_users, one.most_users);
}

std::string sharing_chart(const ReportFacts& facts) {
  constexpr double kLeft = 90, kBars = 560, kRow = 26;
  std::uint64_t largest = 0;
  double rows = 0;
  for (const SharingClass& one : facts.sharing) {
    largest = std::max(largest, capped_sum(one.object_bytes, one.saved_bytes));
    rows += one.chunks != 0;
  }
  std::string out = open_chart(
      "chart-sharing", 26 + std::max(1.0, rows) * kRow, "Bytes of chunks by how many cuts name them",
      fmt::format("{} of chunks; {} more without sharing.", bytes_text(facts.chunk_bytes),
                  bytes_text(facts.status.shared_bytes)));
  out += text_at(0, 12, "h", "named by");
  out += box_at(kLeft, 2, 11, 11, "a", "stored") + text_at(kLeft + 16, 12, "", "stored");
  out += box_at(kLeft + 90, 2, 11, 11, "a faint", "saved") + text_at(kLeft + 106, 12, "", "saved by sharing");
  if (rows == 0) out += text_at(kLeft, 40, "m", "no chunk is stored");
  double y = 24;
  for (const SharingClass& one : facts.sharing) {
    if (one.chunks == 0) continue;
    const double stored = std::max(2.0, on_scale(one.object_bytes, largest, kBars));
    const double saved = on_scale(one.saved_bytes, largest, kBars);
    const std::string what =
        fmt::format("{} in {}", bytes_text(one.object_bytes), counted(one.chunks, "chunk"));
    out += text_at(0, y + 14, "", class_name(one));
    out += box_at(kLeft, y, stored, 18, one.least_users == 0 ? "c" : "a", class_name(one) + ": " + what);
    if (one.saved_bytes != 0)
      out += box_at(kLeft + stored, y, saved, 18, "a faint", "saved: " + bytes_text(one.saved_bytes));
    out += text_at(kLeft + stored + saved + 8, y + 14, "m", what);
    out += "\n";
    y += kRow;
  }
  return out + std::string(kCloseChart);
}

std::string sharing_section(const ReportFacts& facts) {
  std::string out = "<section id=\"sharing\"><h2>Sharing</h2>\n";
  out += fmt::format(
      "<p>Cuts share equal chunks. Without it the same cuts would take {} more: {} of what they name is "
      "stored once "
      "for several. A delta also stands on the chunks of its parents without naming them.</p>\n",
      bytes_figure("sharing.saved_bytes", facts.status.shared_bytes),
      percent_text(facts.status.shared_bytes, capped_sum(facts.status.shared_bytes, facts.chunk_bytes)));
  out += sharing_chart(facts);
  out +=
      "<details><summary>As a table</summary><table><thead><tr><th scope=\"col\">named by</th><th "
      "scope=\"col\" "
      "class=\"n\">chunks</th><th scope=\"col\" class=\"n\">stored bytes</th><th scope=\"col\" "
      "class=\"n\">saved "
      "bytes</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < facts.sharing.size(); ++i) {
    const SharingClass& one = facts.sharing[i];
    const std::string path = fmt::format("sharing.classes.{}.", i);
    out += fmt::format(
        "<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>\n",
        escaped(class_name(one)), count_figure(path + "chunks", one.chunks),
        count_figure(path + "object_bytes", one.object_bytes),
        count_figure(path + "saved_bytes", one.saved_bytes));
  }
  return out + "</tbody></table></details></section>\n";
}

// --- the tree -------------------------------------------------------------------------------------------

/// 1, 2 or 5 times a power of ten, so that the axis has at most ten marks.
std::uint64_t axis_step(std::uint64_t most) {
  std::uint64_t step = 1;
  for (const std::uint64_t factor : {2U, 5U, 10U})
    if (most / step > 10) step = factor;
  for (std::uint64_t ten = 10; most / step > 10; ten *= 10)
    for (const std::uint64_t factor : {2U, 5U, 10U})
      if (most / step > 10) step = ten * factor;
  return step;
}

class TreeChart {
 public:
  explicit TreeChart(const ShownForest& forest) : forest_(forest) {}

  std::string draw() const {
    const double height = kTop + static_cast<double>(std::max<std::size_t>(1, forest_.lanes)) * kLane + 10;
    std::string out =
        open_chart("chart-tree", height, "Cuts by their number of tokens, each on the cut that it extends",
                   fmt::format("{} in {}; the deepest has {} tokens.", counted(forest_.cuts.size(), "cut"),
                               counted(forest_.lanes, "row"), grouped(forest_.deepest_tokens)));
    out += axis(height);
    std::vector<std::size_t> last(forest_.lanes);
    for (std::size_t i = 0; i < forest_.cuts.size(); ++i) last[forest_.cuts[i].lane] = i;
    for (const ShownCut& cut : forest_.cuts) out += edge(cut);
    for (std::size_t i = 0; i < forest_.cuts.size(); ++i)
      out += node(forest_.cuts[i], last[forest_.cuts[i].lane] == i);
    return out + std::string(kCloseChart);
  }

 private:
  static constexpr double kLeft = 8, kRight = 280, kTop = 34, kLane = 22;

  double x_of(const ShownCut& cut) const {
    return kLeft + on_scale(cut.token_count, forest_.deepest_tokens, kWidth - kLeft - kRight);
  }
  static double y_of(const ShownCut& cut) { return kTop + kLane * static_cast<double>(cut.lane) + kLane / 2; }

  std::string axis(double height) const {
    std::string out = text_at(kWidth, 14, "m end", "tokens");
    const std::uint64_t step = axis_step(forest_.deepest_tokens);
    for (std::uint64_t at = 0; at <= forest_.deepest_tokens && at <= 10 * step; at += step) {
      const double x = kLeft + on_scale(at, forest_.deepest_tokens, kWidth - kLeft - kRight);
      out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"20\" y2=\"{1:.1f}\" class=\"grid\"/>", x,
                         height);
      out += text_at(x, 14, at == 0 ? "m" : "m mid", grouped(at));
    }
    return out + "\n";
  }

  /// From the parent, or from no token at all.
  std::string edge(const ShownCut& cut) const {
    const double y = y_of(cut);
    if (!cut.parent)
      return fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" class=\"path\"/>", kLeft, y, x_of(cut));
    const ShownCut& parent = forest_.cuts[*cut.parent];
    return fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" class=\"path\"/>", x_of(parent),
                       y_of(parent), y, x_of(cut));
  }

  std::string node(const ShownCut& cut, bool is_last) const {
    const double x = x_of(cut), y = y_of(cut);
    std::string what =
        fmt::format("{}: {} tokens, {} of its own objects, {} of that shared, depth {}, {}",
                    cut.manifest_id.hex().substr(0, 12), grouped(cut.token_count), bytes_text(cut.own_bytes),
                    bytes_text(cut.shared_bytes), cut.depth, cut_state_name(cut.state));
    if (cut.hidden_cuts != 0)
      what += fmt::format(", and on it {} not shown, {}", counted(cut.hidden_cuts, "cut"),
                          bytes_text(cut.hidden_bytes));
    std::string out =
        cut.state == CutState::kAvailable
            ? fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" class=\"cut {}\">", x, y,
                          cut.parent ? "b" : "a")
            : fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"9\" height=\"9\" class=\"cut gone\">",
                          x - 4.5, y - 4.5);
    out += fmt::format("<title>{}</title>{}", escaped(what),
                       cut.state == CutState::kAvailable ? "</circle>" : "</rect>");
    if (is_last) out += text_at(x + 10, y + 4, "m", end_label(cut));
    return out + "\n";
  }

  static std::string end_label(const ShownCut& cut) {
    std::string label = fmt::format("{} tokens, {}", grouped(cut.token_count), bytes_text(cut.own_bytes));
    if (cut.hidden_cuts != 0) label += fmt::format(", +{}", counted(cut.hidden_cuts, "cut"));
    return label;
  }

  const ShownForest& forest_;
};

std::string cut_table(const ShownForest& forest) {
  std::string out =
      "<details><summary>The shown cuts as a table</summary><div class=\"wide\"><table><thead><tr>"
      "<th scope=\"col\">manifest</th><th scope=\"col\">on</th><th scope=\"col\" class=\"n\">tokens</th>"
      "<th scope=\"col\" class=\"n\">depth</th><th scope=\"col\" class=\"n\">own bytes</th><th scope=\"col\" "
      "class=\"n\">shared bytes</th><th scope=\"col\" class=\"n\">cuts not shown</th><th scope=\"col\" "
      "class=\"n\">"
      "their bytes</th><th scope=\"col\">state</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < forest.cuts.size(); ++i) {
    const ShownCut& cut = forest.cuts[i];
    const std::string path = fmt::format("tree.cuts.{}.", i);
    const std::string parent = cut.parent ? forest.cuts[*cut.parent].manifest_id.hex().substr(0, 12) : "";
    out += fmt::format("<tr><td class=\"id\">{}</td><td class=\"id\">{}</td>", cut.manifest_id.hex(), parent);
    for (const auto& [name, value] : {std::pair("token_count", cut.token_count),
                                      {"depth", cut.depth},
                                      {"own_bytes", cut.own_bytes},
                                      {"shared_bytes", cut.shared_bytes},
                                      {"hidden_cuts", cut.hidden_cuts},
                                      {"hidden_bytes", cut.hidden_bytes}})
      out += fmt::format("<td class=\"n\">{}</td>", count_figure(path + name, value));
    out += fmt::format("<td>{}</td></tr>\n", cut_state_name(cut.state));
  }
  return out + "</tbody></table></div></details>\n";
}

std::string tree_section(const ReportFacts& facts) {
  const ShownForest& forest = facts.forest;
  std::string out = "<section id=\"tree\"><h2>Prefixes</h2>\n";
  out += fmt::format(
      "<p>Each mark is a cut; it lies on the cut that it extends. A cut that was saved in full begins at 0, "
      "also when a "
      "prefix of it is stored. There are {} such beginnings. Shown are the cuts that take most room together "
      "with what "
      "stands on them; {} more cuts of {} are left out.</p>\n",
      count_figure("tree.roots", forest.roots), count_figure("tree.omitted_cuts", forest.omitted_cuts),
      bytes_figure("tree.omitted_bytes", forest.omitted_bytes));
  if (forest.cuts.empty()) {
    out += "<p class=\"muted\">No cut is shown.</p>\n";
  } else {
    out += TreeChart(forest).draw();
    out +=
        "<p class=\"muted\">Blue: saved in full. Violet: a delta on its parent. Open square: damaged or "
        "being "
        "evicted.</p>\n";
    out += cut_table(forest);
  }
  return out + "</section>\n";
}

// --- use ------------------------------------------------------------------------------------------------

std::string use_chart(const ReportFacts& facts) {
  const auto segment = [&](const char* name, const char* counter, std::string_view color) {
    return Segment{name, facts.counter(counter), grouped(facts.counter(counter)), color};
  };
  std::string out = open_chart(
      "chart-use", 284, "Lookups, restores and saves by how they ended",
      fmt::format("{} lookups found the whole input, {} a part of it, {} nothing.",
                  grouped(facts.counter("lookups_exact")), grouped(facts.counter("lookups_ancestor")),
                  grouped(facts.counter("lookups_miss"))));
  out +=
      stacked_bar(0, "Lookups",
                  {segment("whole input", "lookups_exact", "e"),
                   segment("a part of it", "lookups_ancestor", "a"), segment("miss", "lookups_miss", "c")});
  out += stacked_bar(
      96, "Restores",
      {segment("committed", "restores_committed", "e"), segment("refused", "restores_refused", "d")});
  out += stacked_bar(
      192, "Saves",
      {segment("published", "saves_committed", "e"), segment("there already", "saves_replayed", "a"),
       segment("refused", "saves_refused", "d")});
  return out + std::string(kCloseChart);
}

std::string use_section(const ReportFacts& facts) {
  std::string out = "<section id=\"use\"><h2>Hits and refusals</h2>\n";
  out +=
      "<p class=\"muted\">Since the store was made or rebuilt. Readers count for themselves, and a killed "
      "process takes "
      "its last half minute with it.</p>\n";
  out += use_chart(facts);
  out +=
      "<details><summary>All counters</summary><table><thead><tr><th scope=\"col\">counter</th><th "
      "scope=\"col\" "
      "class=\"n\">value</th></tr></thead><tbody>\n";
  for (const StoreCounter& counter : facts.status.counters)
    out += fmt::format("<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td></tr>\n", counter.name,
                       count_figure(fmt::format("counters.{}", counter.name), facts.counter(counter.name)));
  return out + "</tbody></table></details></section>\n";
}

// --- findings, quarantine, economics --------------------------------------------------------------------

std::string findings_section(const ReportFacts& facts) {
  std::string out = "<section id=\"findings\"><h2>Findings and quarantine</h2>\n<ul class=\"findings\">\n";
  if (facts.findings.empty()) out += "<li class=\"fine\">Nothing to report.</li>\n";
  for (std::size_t i = 0; i < facts.findings.size(); ++i) {
    const ReportFinding& finding = facts.findings[i];
    const std::string_view level = finding.is_problem ? "problem" : "notice";
    out += fmt::format(
        "<li class=\"{0}\"><b>{0}</b> <code>{1}</code> {2}: {3}</li>\n", level, escaped(finding.name),
        count_figure(fmt::format("findings.{}.count", i), finding.count), escaped(finding.text));
  }
  out += "</ul>\n";
  out += fmt::format(
      "<p>Quarantine keeps {} files of {} as evidence for a day, at most {}. A report reads no object: "
      "<code>kvpack store fsck --deep</code> does.</p>\n",
      count_figure("quarantine.files", facts.quarantined_files),
      bytes_figure("quarantine.bytes", facts.status.quarantine_bytes),
      bytes_figure("quarantine.cap_bytes", facts.status.quarantine_cap_bytes));
  if (facts.quarantine.empty()) return out + "</section>\n";
  out +=
      "<div class=\"wide\"><table><caption>Files in quarantine</caption><thead><tr><th "
      "scope=\"col\">kind</th><th "
      "scope=\"col\">reason</th><th scope=\"col\" class=\"n\">files</th><th scope=\"col\" "
      "class=\"n\">bytes</th><th "
      "scope=\"col\">the last came</th><th scope=\"col\">the first goes</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < facts.quarantine.size(); ++i) {
    const QuarantineGroup& group = facts.quarantine[i];
    const std::string path = fmt::format("quarantine.groups.{}.", i);
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td><td>{}</td><td>{}</td></tr>\n",
        escaped(group.kind), escaped(group.reason), count_figure(path + "files", group.files),
        count_figure(path + "file_bytes", group.file_bytes),
        figure(path + "newest_ns", group.newest_ns, utc_text(group.newest_ns / 1'000'000)),
        figure(path + "next_expiry_ns", group.next_expiry_ns, utc_text(group.next_expiry_ns / 1'000'000)));
  }
  return out + "</tbody></table></div></section>\n";
}

std::string time_chart(std::uint64_t recompute_ms, std::uint64_t move_ms) {
  constexpr double kLeft = 90, kBars = 700, kRow = 26;
  std::string out = open_chart(
      "chart-economics", 8 + 2 * kRow, "Time to compute what restores have given out, and to move it",
      fmt::format("Computing takes {}, moving {}.", duration_text(recompute_ms), duration_text(move_ms)));
  double y = 4;
  for (const auto& [name, ms, color] :
       {std::tuple("computing", recompute_ms, "c"), {"moving", move_ms, "a"}}) {
    const double width = std::max(2.0, on_scale(ms, std::max(recompute_ms, move_ms), kBars));
    out += text_at(0, y + 14, "", name);
    out += box_at(kLeft, y, width, 18, color, fmt::format("{}: {}", name, duration_text(ms)));
    out += text_at(kLeft + width + 8, y + 14, "m", duration_text(ms));
    y += kRow;
  }
  return out + std::string(kCloseChart);
}

std::string economics_section(const ReportEconomics& economics) {
  std::string out = "<section id=\"economics\"><h2>Economics</h2>\n<table><tbody>\n";
  const auto row = [&](std::string_view name, const std::string& markup) {
    out += fmt::format("<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td></tr>\n", escaped(name), markup);
  };
  row("lookups that hit", count_figure("economics.hits", economics.hits));
  row("lookups that missed", count_figure("economics.misses", economics.misses));
  row("restores", count_figure("economics.restores", economics.restores));
  row("given out by restores", bytes_figure("economics.served_bytes", economics.served_bytes));
  if (economics.served_tokens)
    row("tokens that were not computed again (estimate)",
        count_figure("economics.served_tokens", *economics.served_tokens));
  if (economics.rates.prefill_tokens_per_second)
    row("tokens that are computed in a second",
        count_figure("economics.prefill_tokens_per_second", *economics.rates.prefill_tokens_per_second));
  if (economics.recompute_ms)
    row("time that computing them would have taken (estimate)",
        figure("economics.recompute_ms", *economics.recompute_ms, duration_text(*economics.recompute_ms)));
  if (economics.rates.wire_bytes_per_second)
    row("bytes that are moved in a second",
        count_figure("economics.wire_bytes_per_second", *economics.rates.wire_bytes_per_second));
  if (economics.move_ms)
    row("time that moving the bytes takes (estimate)",
        figure("economics.move_ms", *economics.move_ms, duration_text(*economics.move_ms)));
  if (economics.rates.has_both())
    row("tokens from which on moving is faster than computing, in caches of Muse Glimmer 30B",
        economics.muse_break_even_tokens
            ? count_figure("economics.muse_break_even_tokens", *economics.muse_break_even_tokens)
            : "never");
  out += "</tbody></table>\n";
  if (economics.recompute_ms && economics.move_ms)
    out += time_chart(*economics.recompute_ms, *economics.move_ms);
  out +=
      "<p class=\"muted\">Estimates take the average stored cut for the average restored one. Times need "
      "<code>--prefill-tps</code> and <code>--wire</code>.</p>\n";
  return out + "</section>\n";
}

}  // namespace

std::string report_page(const ReportFacts& facts, const ReportEconomics& economics, std::string_view title) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"referrer\" "
      "content=\"no-referrer\">\n<title>{}</title>\n<style>{}</style></head>\n<body>\n<main>\n",
      escaped(title), kStyle);
  out += head(facts, economics, title);
  out += sizes_section(facts);
  out += sharing_section(facts);
  out += tree_section(facts);
  out += use_section(facts);
  out += findings_section(facts);
  out += economics_section(economics);
  return out + "</main>\n</body></html>\n";
}

}  // namespace kvpack::cli
