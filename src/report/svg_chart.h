// Charts as SVG elements, for a page that brings the colours: lines over steps, and stacked areas.
#pragma once

#include <string>
#include <vector>

namespace jackscrew {

struct ChartPoint {
  double x, y;
};

struct ChartSeries {
  std::string name;  // of the legend; may be empty
  int colour = 1;    // 1 to 12: the page's classes c1 to c12
  std::vector<ChartPoint> points;
  bool dots = false;  // mark every point: there are few
};

// What stands beside a number on the y axis.
enum class ChartUnit { plain, bytes };

struct Chart {
  std::string title;
  ChartUnit unit = ChartUnit::plain;
  bool from_zero = false;  // the y axis begins at 0
  std::vector<ChartSeries> series;
};

// Each series as a line; one with many points as a band from lowest to highest of neighbours with
// their mean in it. Points that are not finite are left out. Empty when no point is left.
std::string line_chart(const Chart& chart);

// The series on top of one another, each holding its value until its next point; all have the same
// x. Empty when there is no point.
std::string stacked_chart(const Chart& chart);

// A text as HTML shows it.
std::string html_text(const std::string& text);

}  // namespace jackscrew
