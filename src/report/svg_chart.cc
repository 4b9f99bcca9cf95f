#include "report/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "base/text.h"
#include "report/html_page.h"

namespace jackscrew {

namespace {

// Size and margins of the drawing, in its own units; the page scales it.
constexpr double kWidth = 640, kHeight = 240;
constexpr double kLeft = 64, kRight = 12, kTop = 12, kBottom = 28;
// A line with more points than this is drawn as a band: single points would be invisible.
constexpr size_t kMostPoints = 240;
constexpr double kMostTicks = 16;  // more than tick_step() makes

struct Range {
  double low, high;
  double length() const { return high - low; }
};

// 1, 2 or 5 times a power of ten, about 1/`parts` of the range; for bytes, a power of two.
double tick_step(const Range& range, int parts, ChartUnit unit) {
  const double rough = range.length() / parts;
  if (unit == ChartUnit::bytes) return std::exp2(std::ceil(std::log2(rough)));
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10.0 * power;
}

// The decimals that tell numbers apart which differ by `step`; may be negative.
int decimals_of(double step) {
  return static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
}

// A number that differs from those at the next ticks by `step`, with as many digits as show that.
std::string tick_text(double value, double step, ChartUnit unit) {
  const double size = std::abs(value);
  const auto in = [&](double scale, int least, const char* name) {
    return fmt::format("{:.{}f}{}", value / scale, std::max(least, decimals_of(step / scale)),
                       name);
  };
  if (unit == ChartUnit::bytes) {
    if (size >= 0x1p30) return in(0x1p30, 2, " GiB");
    if (size >= 0x1p20) return in(0x1p20, 1, " MiB");
    return size >= 0x1p10 ? in(0x1p10, 1, " KiB") : in(1, 0, " B");
  }
  if (size >= 1e4 && size < 1e15) return size < 1e6 ? in(1e3, 1, "k") : in(1e6, 1, "M");
  // More digits have no room beside the drawing.
  constexpr int kLeast = 4, kMost = 8;
  const int whole = value == 0 ? 1 : static_cast<int>(std::floor(std::log10(size))) + 1;
  return fmt::format("{:.{}g}", value, std::clamp(whole + decimals_of(step), kLeast, kMost));
}

// Maps values to places in the drawing.
class Frame {
 public:
  // x is in bytes, or in steps.
  Frame(Range x, Range y, ChartUnit unit, ChartUnit x_unit = ChartUnit::plain)
      : x_(x), y_(y), unit_(unit), x_unit_(x_unit) {
    // A single value still needs a range around it.
    if (x_.length() <= 0) x_.high = x_.low + 1;
    if (y_.length() <= 0) {
      const double room = y_.low == 0 ? 1 : std::abs(y_.low) * 0.1;
      y_ = {y_.low - room, y_.high + room};
    }
  }
  double x(double value) const {
    return kLeft + (value - x_.low) / x_.length() * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - (value - y_.low) / y_.length() * (kHeight - kTop - kBottom);
  }
  std::string axes() const {
    std::string out;
    const auto each_tick = [](const Range& range, double step, ChartUnit unit, const auto& use) {
      if (!std::isnormal(step)) return;  // the range is too long, or too short, for doubles
      const double first = std::ceil(range.low / step);
      const double last = std::floor(range.high / step + 1e-9);
      // Where values differ by their last bits alone, counting on from them never ends.
      const auto ticks = static_cast<int64_t>(std::min(last - first, kMostTicks));
      for (int64_t i = 0; i <= ticks; ++i) {
        const double value = (first + static_cast<double>(i)) * step;
        use(value, tick_text(value, step, unit));
      }
    };
    each_tick(y_, tick_step(y_, 4, unit_), unit_, [&](double value, const std::string& text) {
      out += fmt::format(
          "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text x=\"{}\" y=\"{:.1f}\" class=\"ytick\">{}</text>",
          kLeft, kWidth - kRight, y(value), y(value), kLeft - 6, y(value) + 4, text);
    });
    // Steps and bytes are integers.
    each_tick(x_, std::max(1.0, tick_step(x_, 6, x_unit_)), x_unit_,
              [&](double value, const std::string& text) {
                out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" class=\"xtick\">{}</text>",
                                   x(value), kHeight - 8, text);
              });
    return out;
  }

 private:
  Range x_, y_;
  ChartUnit unit_, x_unit_;
};

std::string figure(const Chart& chart, const std::string& drawing) {
  std::string legend;
  for (const ChartSeries& series : chart.series) {
    if (series.points.empty() || series.name.empty()) continue;
    legend += fmt::format("<span class=\"key\"><i class=\"c{}\"></i>{}</span>", series.colour,
                          html_text(series.name));
  }
  return fmt::format(
      "<figure><figcaption><b>{}</b>{}</figcaption>"
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg></figure>\n",
      html_text(chart.title), legend, kWidth, kHeight, html_text(chart.title), drawing);
}

std::string path(const Frame& frame, const std::vector<ChartPoint>& points, bool begins = true) {
  std::string out;
  for (const ChartPoint& point : points) {
    out += fmt::format("{}{:.1f} {:.1f}", out.empty() && begins ? "M" : "L", frame.x(point.x),
                       frame.y(point.y));
  }
  return out;
}

// Groups of adjacent points: the mean, lowest and highest of each.
struct Band {
  std::vector<ChartPoint> low, mean, high;
};
Band band_of(const std::vector<ChartPoint>& points) {
  Band band;
  const size_t count = kMostPoints;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = points.size() * i / count;
    const size_t end = points.size() * (i + 1) / count;
    ChartPoint low = points[begin], high = points[begin], mean{0, 0};
    for (size_t j = begin; j < end; ++j) {
      low.y = std::min(low.y, points[j].y);
      high.y = std::max(high.y, points[j].y);
      mean.x += points[j].x / static_cast<double>(end - begin);
      mean.y += points[j].y / static_cast<double>(end - begin);
    }
    low.x = high.x = mean.x;
    band.low.push_back(low);
    band.mean.push_back(mean);
    band.high.push_back(high);
  }
  return band;
}

std::string draw_line(const Frame& frame, const ChartSeries& series) {
  std::string out;
  const bool is_band = series.points.size() > kMostPoints;
  Band band = is_band ? band_of(series.points) : Band{};
  const std::vector<ChartPoint>& line = is_band ? band.mean : series.points;
  if (is_band) {
    std::reverse(band.low.begin(), band.low.end());
    out += fmt::format("<path class=\"band c{}\" d=\"{}{}Z\"/>", series.colour,
                       path(frame, band.high), path(frame, band.low, false));
  }
  out += fmt::format("<path class=\"line c{}\" d=\"{}\"/>", series.colour, path(frame, line));
  if (!series.dots && line.size() > 1) return out;
  for (const ChartPoint& point : line) {
    out += fmt::format(
        "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{} at step {:.0f}: "
        "{:.5g}</title></circle>",
        series.colour, frame.x(point.x), frame.y(point.y), html_text(series.name), point.x,
        point.y);
  }
  return out;
}

struct Ranges {
  Range x, y;
};

// Removes points that are not finite, and returns the ranges of the rest: none where none is left.
std::optional<Ranges> finite_ranges(Chart& chart) {
  Range x{HUGE_VAL, -HUGE_VAL}, y{HUGE_VAL, -HUGE_VAL};
  for (ChartSeries& series : chart.series) {
    std::erase_if(series.points, [](const ChartPoint& point) { return !std::isfinite(point.y); });
    for (const ChartPoint& point : series.points) {
      x = {std::min(x.low, point.x), std::max(x.high, point.x)};
      y = {std::min(y.low, point.y), std::max(y.high, point.y)};
    }
  }
  if (x.low > x.high) return std::nullopt;
  if (chart.from_zero) y.low = std::min(0.0, y.low);
  return Ranges{x, y};
}

}  // namespace

std::string line_chart(Chart chart) {
  const auto ranges = finite_ranges(chart);
  if (!ranges) return {};
  const Frame frame(ranges->x, ranges->y, chart.unit);
  std::string drawing = frame.axes();
  for (const ChartSeries& series : chart.series) {
    if (!series.points.empty()) drawing += draw_line(frame, series);
  }
  return figure(chart, drawing);
}

std::string stacked_chart(const Chart& chart) {
  if (chart.series.empty() || chart.series.front().points.empty()) return {};
  const size_t moments = chart.series.front().points.size();
  std::vector<double> below(moments, 0.0);
  std::vector<double> total(moments, 0.0);
  for (const ChartSeries& series : chart.series) {
    for (size_t i = 0; i < moments; ++i) total[i] += series.points[i].y;
  }
  const auto& moment = chart.series.front().points;
  const Frame frame({moment.front().x, moment.back().x},
                    {0.0, *std::max_element(total.begin(), total.end())}, chart.unit);
  std::string drawing = frame.axes();
  for (const ChartSeries& series : chart.series) {
    std::vector<ChartPoint> outline, base;
    for (size_t i = 0; i < moments; ++i) {
      if (i > 0) {  // the value before the step
        outline.push_back({moment[i].x, below[i - 1] + series.points[i - 1].y});
        base.push_back({moment[i].x, below[i - 1]});
      }
      outline.push_back({moment[i].x, below[i] + series.points[i].y});
      base.push_back({moment[i].x, below[i]});
    }
    std::reverse(base.begin(), base.end());
    drawing +=
        fmt::format("<path class=\"area c{}\" d=\"{}{}Z\"><title>{}</title></path>", series.colour,
                    path(frame, outline), path(frame, base, false), html_text(series.name));
    for (size_t i = 0; i < moments; ++i) below[i] += series.points[i].y;
  }
  return figure(chart, drawing);
}

std::string size_chart(const Chart& given) {
  Chart chart = given;
  auto ranges = finite_ranges(chart);
  if (!ranges) return {};
  if (ranges->x.length() <= 0) ranges->x = {0.9 * ranges->x.low, 1.1 * ranges->x.high};
  const Frame frame(ranges->x, ranges->y, chart.unit, ChartUnit::bytes);
  std::string drawing = frame.axes();
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      drawing += fmt::format(
          "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"><title>{}, {}: "
          "{:.5g}</title></circle>",
          series.colour, frame.x(point.x), frame.y(point.y), html_text(series.name),
          human_bytes(static_cast<int64_t>(point.x)), point.y);
    }
  }
  return figure(chart, drawing);
}

}  // namespace jackscrew
