#include "cli/bench/chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace kvpack::cli::bench {

// Other files of the tool draw too, with names of their own.
namespace ratio_chart_parts {
namespace {

constexpr double kPanelWidth = 400, kHeight = 420;
constexpr double kLeft = 58, kRight = 384, kTop = 92, kBottom = 344;  // of the plot inside a panel

// Names of classes begin with `kb-`: the page around may have others.
constexpr std::string_view kStyle =
    "<style>.kb{--kb-bg:#ffffff;--kb-fg:#1b1f24;--kb-muted:#57606a;--kb-line:#d0d7de;--kb-0:#0a5bd3;"
    "--kb-1:#a86a00;--kb-2:#1a7f37;--kb-3:#8250df}"
    "@media (prefers-color-scheme:dark){.kb{--kb-bg:#0d1117;--kb-fg:#e6edf3;--kb-muted:#9aa4af;"
    "--kb-line:#30363d;--kb-0:#5aa2ff;--kb-1:#dba43a;--kb-2:#4ac26b;--kb-3:#bc8cff}}"
    ".kb text{font:13px system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\",sans-serif;fill:var(--kb-fg)}"
    ".kb .kb-bg{fill:var(--kb-bg)}.kb .kb-m{fill:var(--kb-muted)}.kb .kb-h{font-weight:600}"
    ".kb .kb-end{text-anchor:end}.kb .kb-mid{text-anchor:middle}.kb .kb-small{font-size:11px}"
    ".kb .kb-grid{stroke:var(--kb-line);stroke-width:1}.kb .kb-one{stroke:var(--kb-muted);stroke-width:1.5;"
    "stroke-dasharray:4 3}"
    ".kb .kb-line{fill:none;stroke-width:2.2;stroke-linejoin:round}.kb .kb-range{stroke-width:1.2}"
    ".kb .kb-s0{stroke:var(--kb-0)}.kb .kb-s1{stroke:var(--kb-1)}.kb .kb-s2{stroke:var(--kb-2)}"
    ".kb .kb-s3{stroke:var(--kb-3)}.kb .kb-f0{fill:var(--kb-0)}.kb .kb-f1{fill:var(--kb-1)}"
    ".kb .kb-f2{fill:var(--kb-2)}.kb .kb-f3{fill:var(--kb-3)}</style>\n";
constexpr std::size_t kColours = 4;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string text_at(double x, double y, std::string_view classes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, classes,
                     escaped(text));
}
std::string rule(double x1, double y1, double x2, double y2, std::string_view classes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, classes);
}

/// Both axes of one panel: x is logarithmic to base 2, y begins at 0.
class Axes {
 public:
  Axes(const std::vector<Point>& points, double left) : left_(left) {
    for (const Point& point : points) {
      if (std::ranges::find(ticks_, point.x) == ticks_.end()) ticks_.push_back(point.x);
      most_ = std::max(most_, std::ceil(point.ratio.max));
    }
    std::ranges::sort(ticks_);
  }
  double x_of(double x) const {
    const double first = std::log2(ticks_.front()), last = std::log2(ticks_.back());
    const double share = last > first ? (std::log2(x) - first) / (last - first) : 0.5;
    return left_ + kLeft + 12 + share * (kRight - kLeft - 24);
  }
  double y_of(double ratio) const { return kBottom - (kBottom - kTop) * ratio / most_; }

  std::string draw(std::string_view title) const {
    std::string out;
    const double step = most_ > 12 ? std::ceil(most_ / 6) : most_ > 6 ? 2 : 1;
    for (double y = 0; y <= most_; y += step) {
      out += rule(left_ + kLeft, y_of(y), left_ + kRight, y_of(y), "kb-grid");
      out += text_at(left_ + kLeft - 8, y_of(y) + 4, "kb-m kb-end", fmt::format("{:.0f}", y));
    }
    out += rule(left_ + kLeft, y_of(1), left_ + kRight, y_of(1), "kb-one");
    for (const double tick : ticks_)
      out += text_at(x_of(tick), kBottom + 18, "kb-m kb-mid", fmt::format("{:.0f}", tick));
    return out + text_at(left_ + (kLeft + kRight) / 2, kBottom + 40, "kb-mid", title);
  }

 private:
  double left_;
  double most_ = 2;
  std::vector<double> ticks_{};
};

/// One series of a panel: the range of the rounds at each point, and a line through the medians.
std::string series(const Axes& axes, const std::vector<Point>& points, std::string_view name,
                   std::size_t colour) {
  std::string line, ranges, dots;
  for (const Point& point : points) {
    if (point.series != name) continue;
    const double x = axes.x_of(point.x);
    line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", x, axes.y_of(point.ratio.median));
    ranges += rule(x, axes.y_of(point.ratio.min), x, axes.y_of(point.ratio.max),
                   fmt::format("kb-range kb-s{}", colour));
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\" class=\"kb-f{}\"/>\n", x,
                        axes.y_of(point.ratio.median), colour);
  }
  return ranges + fmt::format("<polyline points=\"{}\" class=\"kb-line kb-s{}\"/>\n", line, colour) + dots;
}

std::vector<std::string> series_names(const std::vector<Point>& points) {
  std::vector<std::string> names;
  for (const Point& point : points)
    if (std::ranges::find(names, point.series) == names.end()) names.push_back(point.series);
  return names;
}

}  // namespace
}  // namespace ratio_chart_parts

std::string ratio_chart(const std::vector<Point>& points, const std::string& caption) {
  using namespace ratio_chart_parts;
  const std::vector<std::string> names = series_names(points);
  std::string body;
  double left = 0;
  for (const std::string_view panel : {kChunksPanel, kSizePanel, kThreadsPanel}) {
    std::vector<Point> here;
    std::ranges::copy_if(points, std::back_inserter(here),
                         [&](const Point& point) { return point.panel == panel; });
    if (here.empty()) continue;
    std::ranges::stable_sort(here, {}, &Point::x);
    const Axes axes(here, left);
    body += axes.draw(panel);
    for (std::size_t i = 0; i < names.size(); ++i)
      if (std::ranges::find(here, names[i], &Point::series) != here.end())
        body += series(axes, here, names[i], i % kColours);
    left += kPanelWidth;
  }
  const double width = std::max(left, kPanelWidth);
  std::string legend;
  double x = kLeft;
  for (std::size_t i = 0; i < names.size(); ++i) {
    legend += rule(x, 58, x + 22, 58, fmt::format("kb-line kb-s{}", i % kColours));
    legend += text_at(x + 28, 62, "", names[i]);
    x += 60 + 7.5 * static_cast<double>(names[i].size());
  }
  return fmt::format(
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
             "class=\"kb\" "
             "viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-labelledby=\"kb-title kb-desc\">\n"
             "<title id=\"kb-title\">kvpack beside the naive program</title>\n<desc id=\"kb-desc\">Speed "
             "over that "
             "of the naive program on one thread, over chunks, their size and threads.</desc>\n",
             width, kHeight) +
         std::string(kStyle) +
         fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" class=\"kb-bg\"/>\n", width, kHeight) +
         text_at(kLeft, 30, "kb-h",
                 "Speed over the naive program on one thread (N = 1); bars: least and most in a round") +
         legend + body + text_at(kLeft, kHeight - 10, "kb-m kb-small", caption) + "</svg>\n";
}

}  // namespace kvpack::cli::bench
