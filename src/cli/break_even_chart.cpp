#include "cli/break_even_chart.h"

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace kvpack::cli {

// Other files of this folder draw too, with names of their own.
namespace break_even {
namespace {

constexpr double kWidth = 960, kHeight = 440;
constexpr double kLeft = 76, kRight = 800, kTop = 56, kBottom = 384;  // of the plot; names stand to its right

// Names of classes begin with `be-`: the page around may have others.
constexpr std::string_view kStyle =
    "<style>.be{--be-bg:#ffffff;--be-fg:#1b1f24;--be-muted:#57606a;--be-line:#d0d7de;--be-move:#0a5bd3;"
    "--be-compute:#a86a00}"
    "@media (prefers-color-scheme:dark){.be{--be-bg:#0d1117;--be-fg:#e6edf3;--be-muted:#9aa4af;"
    "--be-line:#30363d;--be-move:#5aa2ff;--be-compute:#dba43a}}"
    ".be text{font:13px system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\",sans-serif;fill:var(--be-fg)}"
    ".be .be-bg{fill:var(--be-bg)}.be .be-m{fill:var(--be-muted)}.be .be-h{font-weight:600}"
    ".be .be-end{text-anchor:end}.be .be-mid{text-anchor:middle}"
    ".be .be-grid{stroke:var(--be-line);stroke-width:1}"
    ".be .be-line{fill:none;stroke-width:2.5;stroke-linejoin:round}"
    ".be .be-move{stroke:var(--be-move)}.be .be-compute{stroke:var(--be-compute);stroke-dasharray:7 4}"
    ".be .be-at{stroke:var(--be-fg);stroke-width:1.5;stroke-dasharray:2 3}</style>\n";

double x_of(double tokens) {
  static const double kDecades = std::log(static_cast<double>(muse::kMaxContextTokens) / muse::kBlockTokens);
  return kLeft + (kRight - kLeft) * std::log(tokens / muse::kBlockTokens) / kDecades;
}

/// Seconds on a logarithmic scale of whole powers of ten.
class Scale {
 public:
  explicit Scale(const muse::MoveCosts& costs) {
    double least = std::numeric_limits<double>::max(), most = 0;
    for (const std::uint64_t tokens : {muse::kBlockTokens, muse::kMaxContextTokens})
      for (const double seconds :
           {muse::move_seconds(costs, tokens), muse::recompute_seconds(costs, tokens)}) {
        least = std::min(least, seconds);
        most = std::max(most, seconds);
      }
    lowest_ = static_cast<int>(std::floor(std::log10(least)));
    highest_ = std::max(lowest_ + 1, static_cast<int>(std::ceil(std::log10(most))));
  }
  int lowest() const noexcept { return lowest_; }
  int highest() const noexcept { return highest_; }
  double y_of(double seconds) const {
    return kBottom - (kBottom - kTop) * (std::log10(seconds) - lowest_) / (highest_ - lowest_);
  }

 private:
  int lowest_;
  int highest_;
};

std::string text_at(double x, double y, std::string_view classes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, classes, text);
}
std::string rule(double x1, double y1, double x2, double y2, std::string_view classes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, classes);
}

/// A power of ten seconds.
std::string tick_text(int power) {
  if (power < -6 || power > 5) return fmt::format("10^{} s", power);
  constexpr std::array<int, 6> kOnes{1, 10, 100, 1'000, 10'000, 100'000};
  const char* const unit = power < -3 ? "us" : power < 0 ? "ms" : "s";
  const int below = power < -3 ? power + 6 : power < 0 ? power + 3 : power;
  return fmt::format("{} {}", kOnes[static_cast<std::size_t>(below)], unit);
}

std::string axes(const Scale& scale) {
  std::string out;
  for (int power = scale.lowest(); power <= scale.highest(); ++power) {
    const double y = scale.y_of(std::pow(10.0, power));
    out += rule(kLeft, y, kRight, y, "be-grid");
    out += text_at(kLeft - 8, y + 4, "be-m be-end", tick_text(power));
  }
  for (std::uint64_t tokens = muse::kBlockTokens; tokens <= muse::kMaxContextTokens; tokens *= 2) {
    const double x = x_of(static_cast<double>(tokens));
    out += rule(x, kTop, x, kBottom, "be-grid");
    const std::string name = tokens < 1024 ? fmt::format("{}", tokens) : fmt::format("{}k", tokens / 1024);
    out += text_at(x, kBottom + 18, "be-m be-mid", name);
  }
  return out + text_at((kLeft + kRight) / 2, kBottom + 40, "be-mid", "tokens of the prompt (k = 1,024)");
}

template <class Seconds>
std::string curve(const Scale& scale, std::string_view classes, const Seconds& seconds) {
  std::string points;
  // Sixteen steps for each doubling: the kink at the window is one of them.
  for (int step = 0; step <= 9 * 16; ++step) {
    const auto tokens = static_cast<std::uint64_t>(std::lround(muse::kBlockTokens * std::exp2(step / 16.0)));
    points += fmt::format("{}{:.1f},{:.1f}", step == 0 ? "" : " ", x_of(static_cast<double>(tokens)),
                          scale.y_of(seconds(tokens)));
  }
  return fmt::format("<polyline points=\"{}\" class=\"be-line {}\"/>\n", points, classes);
}

/// The names of both lines at their right ends, apart from each other.
std::string names(const Scale& scale, const muse::MoveCosts& costs) {
  double move = scale.y_of(muse::move_seconds(costs, muse::kMaxContextTokens)) + 4;
  double compute = scale.y_of(muse::recompute_seconds(costs, muse::kMaxContextTokens)) + 4;
  constexpr double kApart = 18;
  if (std::abs(move - compute) < kApart) {
    double& lower = move < compute ? compute : move;
    lower = std::min(move, compute) + kApart;
  }
  return text_at(kRight + 10, move, "be-h", "move the cache") +
         text_at(kRight + 10, compute, "be-h", "compute it again");
}

std::string verdict(const std::optional<std::uint64_t>& from) {
  return from ? fmt::format("Moving is faster from {} tokens on", *from)
              : std::string("Moving is never faster within the model's context");
}

std::string draw(const muse::MoveCosts& costs) {
  const Scale scale(costs);
  const auto from = muse::break_even_tokens(costs);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"be\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-labelledby=\"be-title be-desc\">\n<title id=\"be-title\">Moving a cache or computing it</title>\n"
      "<desc id=\"be-desc\">Seconds against tokens of the prompt. {}.</desc>\n",
      kWidth, kHeight, verdict(from));
  out += kStyle;
  out += fmt::format("<rect width=\"{}\" height=\"{}\" class=\"be-bg\"/>\n", kWidth, kHeight);
  out += text_at(kLeft, 30, "be-h", verdict(from));
  out += axes(scale);
  if (from) {
    const double x = x_of(static_cast<double>(*from));
    out += rule(x, kTop, x, kBottom, "be-at");
  }
  out += curve(scale, "be-compute",
               [&](std::uint64_t tokens) { return muse::recompute_seconds(costs, tokens); });
  out += curve(scale, "be-move", [&](std::uint64_t tokens) { return muse::move_seconds(costs, tokens); });
  return out + names(scale, costs) + "</svg>\n";
}

}  // namespace
}  // namespace break_even

std::string seconds_text(double seconds) {
  const auto three_digits = [](double value, std::string_view unit) {
    return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
  };
  if (seconds < 0.9995e-3) return three_digits(seconds * 1e6, "us");
  if (seconds < 0.9995) return three_digits(seconds * 1e3, "ms");
  if (seconds < 119.5) return three_digits(seconds, "s");
  if (seconds < 7170) return three_digits(seconds / 60, "min");
  return three_digits(seconds / 3600, "h");
}

std::string break_even_chart(const muse::MoveCosts& costs) {
  return break_even::draw(costs);
}

std::string svg_file(const std::string& chart) {
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + chart;
}

}  // namespace kvpack::cli
