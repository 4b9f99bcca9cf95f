#include "report/comparison_page.h"

#include <fmt/format.h>

#include "base/text.h"
#include "report/html_page.h"
#include "report/svg_chart.h"

namespace jackscrew {

namespace {

// A point for every model, at its size.
std::string by_size(const std::string& title, const std::vector<ComparedModel>& models,
                    double ComparedModel::*value) {
  Chart chart{.title = title, .from_zero = value == &ComparedModel::divergence, .series = {}};
  for (size_t i = 0; i < models.size(); ++i) {
    const ComparedModel& model = models[i];
    chart.series.push_back({.name = model.name,
                            .colour = static_cast<int>(i) % kChartColours + 1,
                            .points = {{static_cast<double>(model.bytes), model.*value}}});
  }
  return size_chart(chart);
}

}  // namespace

std::string render_comparison(const std::vector<ComparedModel>& models, const std::string& text,
                              int64_t tokens) {
  const ComparedModel& first = models.at(0);
  const std::string title = fmt::format("{} compared", counted(std::ssize(models), "model"));
  std::string rows =
      "<tr><th>model</th><th>weights</th><th>of the first</th><th>loss</th><th>KL</th>"
      "<th>same token</th><th>tokens a second</th></tr>\n";
  for (const ComparedModel& model : models) {
    rows += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{:.1f} %</td><td>{:.4f}</td><td>{:.2e}</td><td>{:.2f} "
        "%</td><td>{:.1f}</td></tr>\n",
        html_text(model.name), human_bytes(model.bytes),
        100.0 * static_cast<double>(model.bytes) / static_cast<double>(first.bytes), model.loss,
        model.divergence, 100.0 * model.agreement, model.rate);
  }
  const std::string body = fmt::format(
      "<h1>{}</h1>\n<p class=\"lead\">{} of {}; KL of {} to each, nats a token</p>\n"
      "<table class=\"facts\">\n{}</table>\n<h2>By size of the weights</h2>\n"
      "<div class=\"charts\">\n{}{}</div>\n",
      html_text(title), counted(tokens, "token"), html_text(text), html_text(first.name), rows,
      by_size("KL", models, &ComparedModel::divergence),
      by_size("Loss", models, &ComparedModel::loss));
  return html_page(title, body);
}

}  // namespace jackscrew
