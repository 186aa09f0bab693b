/// A chart of moving a cache against computing it, as SVG. docs/cli.md §economics
#pragma once

#include <string>

#include "kvpack/muse/economics.h"

namespace kvpack::cli {

/// An `svg` element over prompts of 256 tokens up to the model's context, both axes logarithmic: complete in
/// itself, so that it is a file (with what `svg_file` puts in front) or a part of a page. Light and dark as
/// the reader prefers; no script, no request, no text of the caller's.
/// @pre rates are above 0 and finite
std::string break_even_chart(const muse::MoveCosts& costs);

/// A chart as the content of a file.
std::string svg_file(const std::string& chart);

/// 0.036 s, 4.2 min, 3.1 h: three significant digits below an hour.
std::string seconds_text(double seconds);

}  // namespace kvpack::cli
