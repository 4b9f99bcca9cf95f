// Charts as SVG elements for a page that defines the colours: lines over steps, stacked areas, and
// points over sizes.
#pragma once

#include <string>
#include <vector>

namespace jackscrew {

struct ChartPoint {
  double x, y;
};

// The page's classes c1 to c12.
inline constexpr int kChartColours = 12;

struct ChartSeries {
  std::string name;  // in the legend; may be empty
  int colour = 1;    // 1 to kChartColours
  std::vector<ChartPoint> points;
  bool dots = false;  // mark every point, for series with few
};

// The unit of numbers on an axis.
enum class ChartUnit { plain, bytes };

struct Chart {
  std::string title;
  ChartUnit unit = ChartUnit::plain;
  bool from_zero = false;  // the y axis begins at 0
  std::vector<ChartSeries> series;
};

// Draws each series as a line; a series with many points as a band from the lowest to the highest
// of adjacent points, with their mean in it. Points that are not finite are omitted. Empty when no
// point is left.
std::string line_chart(Chart chart);

// Draws the series stacked on one another, each holding its value until its next point; all must
// have the same x. Empty when there is no point.
std::string stacked_chart(const Chart& chart);

// Draws the points of each series by themselves; x is in bytes. Points that are not finite are
// omitted. Empty when no point is left.
std::string size_chart(const Chart& chart);

}  // namespace jackscrew
