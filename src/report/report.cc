#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "report/event_log.h"
#include "report/html_page.h"
#include "report/svg_chart.h"
#include "tensor/memory.h"

namespace jackscrew {

namespace {

using nlohmann::json;

// Logs are not trusted: a member of the wrong type counts as missing.
std::optional<double> number(const json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}
std::optional<std::string> text_if_any(const json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || found->is_null()) return std::nullopt;
  return found->is_string() ? found->get<std::string>() : found->dump();
}
std::string text(const json& event, const char* key) {
  return text_if_any(event, key).value_or("");
}

class Report {
 public:
  Report(std::string title, const std::vector<json>& events)
      : title_(std::move(title)), events_(events) {
    for (const json& event : events_) {
      const std::string kind = text(event, "event");
      if (kind == "start") start_ = &event;
      if (kind == "memory") memory_ = &event;
      // A run that had ended may go on.
      ended_ = kind == "end" || (ended_ && kind != "start");
      if (kind == "end" || kind == "start") result_step_ = number(event, "result_step");
    }
  }

  std::string page(const std::string& recipe_yaml) const {
    std::string body = fmt::format("<h1>{}</h1>\n<p class=\"lead\">{}</p>\n", html_text(title_),
                                   html_text(lead()));
    body += numbers() + warnings() + "<div class=\"charts\">\n" + charts() + "</div>\n" +
            samples() + exports() + ranks() + subspaces() + environment();
    if (!recipe_yaml.empty()) {
      body += fmt::format("<details><summary>Recipe</summary><pre>{}</pre></details>\n",
                          html_text(recipe_yaml));
    }
    return html_page(title_, body);
  }

 private:
  // Calls use(step, event) for the events of a kind.
  template <class Use>
  void each(const char* kind, const Use& use) const {
    for (const json& event : events_) {
      if (text(event, "event") == kind) use(number(event, "step").value_or(0), event);
    }
  }
  std::vector<ChartPoint> points(const char* kind, const char* key) const {
    std::vector<ChartPoint> out;
    each(kind, [&](double step, const json& event) {
      if (const auto value = number(event, key)) out.push_back({step, *value});
    });
    return out;
  }

  std::string lead() const {
    if (start_ == nullptr) return "no step has been done";
    return fmt::format("{}, {} of {} parameters learn, method {}", text(*start_, "model"),
                       human_count(static_cast<int64_t>(number(*start_, "trained").value_or(0))),
                       human_count(static_cast<int64_t>(number(*start_, "parameters").value_or(0))),
                       text(*start_, "method"));
  }

  // Not every step has a line in the log, but a step that was saved has been done.
  double steps_done() const {
    double done = 0;
    for (const char* kind : {"step", "save", "end"}) {
      each(kind, [&](double step, const json&) { done = std::max(done, step); });
    }
    return done;
  }
  std::string loss_label(double step) const {
    return step == steps_done() ? "loss of the last step"
                                : fmt::format("loss of step {:.0f}", step);
  }

  std::string numbers() const {
    std::string out;
    const auto add = [&](const std::string& value, const std::string& what) {
      out +=
          fmt::format("<div><b>{}</b><span>{}</span></div>\n", html_text(value), html_text(what));
    };
    if (const auto evals = points("eval", "eval_loss"); !evals.empty()) {
      const auto best = std::min_element(evals.begin(), evals.end(),
                                         [](const auto& a, const auto& b) { return a.y < b.y; });
      // What the result has, where that is of another step than the last.
      const auto of_result = std::ranges::find(evals, result_step_.value_or(-1), &ChartPoint::x);
      const bool is_earlier = of_result != evals.end();
      const ChartPoint last = is_earlier ? *of_result : evals.back();
      if (is_earlier) {
        add(fmt::format("{:.4f}", last.y),
            fmt::format("held-out loss of the result, of step {:.0f}", last.x));
      } else if (last.x > 0) {
        add(fmt::format("{:.4f}", last.y),
            ended_ ? "held-out loss at the end"
                   : fmt::format("held-out loss at step {:.0f}", last.x));
      }
      if (evals.front().x == 0) add(fmt::format("{:.4f}", evals.front().y), "held-out loss before");
      if (best->x != last.x && best->x > 0) {
        add(fmt::format("{:.4f}", best->y), fmt::format("the best, at step {:.0f}", best->x));
      }
    }
    const auto losses = points("step", "loss");
    if (!losses.empty()) add(fmt::format("{:.4f}", losses.back().y), loss_label(losses.back().x));
    add(fmt::format("{:.0f} of {}", steps_done(),
                    start_ == nullptr ? "?" : text(*start_, "total_steps")),
        ended_ ? "steps" : "steps so far");
    if (const auto speeds = points("step", "tokens_per_second"); !speeds.empty()) {
      std::vector<double> sorted;
      for (const ChartPoint& point : speeds) sorted.push_back(point.y);
      std::sort(sorted.begin(), sorted.end());
      add(fmt::format("{:.0f}", sorted[sorted.size() / 2]), "tokens a second (median)");
    }
    if (const auto seconds = training_seconds()) add(human_duration(*seconds), "in training");
    if (const auto peak = peak_bytes("device")) add(human_bytes(*peak), "memory at its peak");
    return "<div class=\"numbers\">\n" + out + "</div>\n";
  }

  // The time between each process's start and the end of its run or its last event, summed. A
  // finished run's exports and late answers may be written much later.
  std::optional<double> training_seconds() const {
    double total = 0;
    std::optional<double> before;  // of a run that goes on
    bool any = false;
    for (const json& event : events_) {
      const auto time = number(event, "time");
      if (!time) continue;
      const std::string kind = text(event, "event");
      if (kind == "start") before = time;
      if (!before) continue;
      any = true;
      total += std::max(0.0, *time - *before);
      before = kind == "end" ? std::nullopt : time;
    }
    return any ? std::optional(total) : std::nullopt;
  }

  std::optional<int64_t> peak_bytes(const char* place) const {
    if (memory_ == nullptr || !memory_->contains(place)) return std::nullopt;
    const auto peak = number((*memory_)[place], "peak");
    return peak ? std::optional(static_cast<int64_t>(*peak)) : std::nullopt;
  }

  std::string warnings() const {
    std::string out;
    each("warn", [&](double, const json& event) {
      out += fmt::format("<p class=\"warning\">{}</p>\n", html_text(text(event, "message")));
    });
    return out;
  }

  std::string charts() const {
    const auto evals = points("eval", "eval_loss");
    std::string out = line_chart({.title = "Loss",
                                  .series = {{"of the step", 1, points("step", "loss")},
                                             {"held out", 2, evals, evals.size() <= 60}}});
    out += line_chart({.title = "Learning rate",
                       .from_zero = true,
                       .series = {{"", 3, points("step", "learning_rate")}}});
    out += line_chart({.title = "Gradient norm, before clipping",
                       .from_zero = true,
                       .series = {{"", 4, points("step", "grad_norm")}}});
    out += line_chart({.title = "Tokens a second",
                       .from_zero = true,
                       .series = {{"", 5, points("step", "tokens_per_second")}}});
    return out + memory_chart();
  }

  // The booked bytes at each moment, by purpose; see Memory.
  std::string memory_chart() const {
    Chart chart{.title = "Memory, by purpose", .unit = ChartUnit::bytes, .series = {}};
    for (int purpose = 0; purpose < kPurposes; ++purpose) {
      const char* name = purpose_name(static_cast<Purpose>(purpose));
      ChartSeries series{.name = name, .colour = purpose + 1, .points = {}};
      double most = 0;
      each("booked", [&](double step, const json& event) {
        const double bytes = number(event, name).value_or(0);
        series.points.push_back({step, bytes});
        most = std::max(most, bytes);
      });
      const double last = events_.empty() ? 0 : number(events_.back(), "step").value_or(0);
      if (!series.points.empty() && series.points.back().x < last) {
        series.points.push_back({last, series.points.back().y});
      }
      if (most > 0) chart.series.push_back(std::move(series));
    }
    return stacked_chart(chart);
  }

  std::string samples() const {
    struct Answers {
      // Missing: of a run that has not come so far.
      std::optional<std::string> prompt, expected, before, after;
    };
    std::map<int64_t, Answers> all;
    each("sample", [&](double step, const json& event) {
      Answers& answers = all[static_cast<int64_t>(number(event, "index").value_or(0))];
      answers.prompt = text_if_any(event, "prompt");
      answers.expected = text_if_any(event, "expected");
      (step == 0 ? answers.before : answers.after) = text_if_any(event, "answer");
    });
    if (all.empty()) return {};
    std::string out = "<h2>Answers before and after</h2>\n";
    for (const auto& [index, answers] : all) {
      out += "<div class=\"sample\">";
      const auto line = [&](const char* name, const std::optional<std::string>& value) {
        if (!value) return;
        out += fmt::format("<span>{}</span><div>{}</div>", name,
                           value->empty() ? "(nothing)" : html_text(*value));
      };
      line("prompt", answers.prompt);
      line("before", answers.before);
      line("after", answers.after);
      line("the record", answers.expected);
      out += "</div>\n";
    }
    return out;
  }

  // A table of what each rank held and did; empty for a run of one rank.
  std::string ranks() const {
    std::string rows;
    each("rank", [&](double, const json& event) {
      const auto peak = event.contains("device") ? number(event["device"], "peak") : std::nullopt;
      rows += fmt::format(
          "<tr><td>rank {} on {}</td><td>{}</td><td>{}</td><td>steps waited {:.0f}% of their "
          "time</td><td>sent {}</td></tr>\n",
          html_text(text(event, "rank")), html_text(text(event, "host")),
          html_text(text(event, "computes_on")),
          human_bytes(static_cast<int64_t>(peak.value_or(0))),
          100.0 * number(event, "waited_share").value_or(0),
          human_bytes(static_cast<int64_t>(number(event, "sent_stream").value_or(0) +
                                           number(event, "sent_gradient").value_or(0))));
    });
    if (rows.empty()) return {};
    return "<h2>Ranks</h2>\n<table class=\"facts\">\n" + rows + "</table>\n";
  }

  // A table of GaLore's subspaces: the last refresh of each matrix.
  std::string subspaces() const {
    struct Refreshes {
      int64_t count = 0;
      double overlap = 0, step = 0, next = 0;
    };
    std::map<std::string, Refreshes> all;
    each("refresh", [&](double step, const json& event) {
      Refreshes& of = all[text(event, "weight")];
      ++of.count;
      of.step = step;
      of.overlap = number(event, "overlap").value_or(0);
      of.next = number(event, "next").value_or(step);
    });
    if (all.empty()) return {};
    std::string rows;
    for (const auto& [weight, of] : all) {
      rows += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>overlap {:.2f} at the last</td><td>gap of {:.0f} "
          "steps</td></tr>\n",
          html_text(weight), counted(of.count, "refresh", "refreshes"), of.overlap,
          of.next - of.step);
    }
    return fmt::format(
        "<h2>Subspaces</h2>\n<details><summary>{}, by matrix</summary><table class=\"facts\">\n{}"
        "</table></details>\n",
        counted(std::ssize(all), "matrix", "matrices"), rows);
  }

  // Those of the present result: a run that writes another removes them. Each as it was written
  // last.
  std::string exports() const {
    // By the file's name: a directory may be spelled in several ways.
    std::map<std::string, const json*> present;
    for (const json& event : events_) {
      const std::string kind = text(event, "event");
      if (kind == "end") present.clear();
      if (kind == "export") present[fs::path(text(event, "path")).filename().string()] = &event;
    }
    if (present.empty()) return {};
    std::string rows;
    for (const auto& [name, event] : present) {
      rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                          html_text(text(*event, "format")), html_text(text(*event, "path")),
                          human_bytes(static_cast<int64_t>(number(*event, "bytes").value_or(0))));
    }
    return "<h2>Exports</h2>\n<table class=\"facts\">\n" + rows + "</table>\n";
  }

  std::string environment() const {
    if (start_ == nullptr) return {};
    std::string rows;
    const auto add = [&](const char* name, const std::string& value) {
      if (value.empty()) return;
      rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", name, html_text(value));
    };
    if (const auto time = number(events_.front(), "time")) add("begun", date_text(*time));
    add("data", text(*start_, "data"));
    add("device", text(*start_, "device"));
    add("CPU", text(*start_, "cpu"));
    add("threads", text(*start_, "threads"));
    add("instruction set", text(*start_, "isa"));
    add("product", text(*start_, "product"));
    add("storage", text(*start_, "storage"));
    if (const auto peak = peak_bytes("host"); peak && *peak > 0) {
      add("memory on the host", human_bytes(*peak));
    }
    if (const auto peak = peak_bytes("disk"); peak && *peak > 0) {
      add("masters in files", human_bytes(*peak));
    }
    add("Jackscrew", text(*start_, "version"));
    return "<h2>Run</h2>\n<table class=\"facts\">\n" + rows + "</table>\n";
  }

  static std::string date_text(double seconds) {
    using namespace std::chrono;
    const sys_seconds time{std::chrono::seconds(static_cast<int64_t>(seconds))};
    const auto day = floor<days>(time);
    const year_month_day date(day);
    const hh_mm_ss clock(time - day);
    return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                       clock.hours().count(), clock.minutes().count());
  }

  std::string title_;
  const std::vector<json>& events_;
  const json* start_ = nullptr;   // the last
  const json* memory_ = nullptr;  // the last
  bool ended_ = false;
  std::optional<double> result_step_;  // of the result, where it is not the last
};

}  // namespace

std::string render_report(const std::string& title, const std::vector<json>& events,
                          const std::string& recipe_yaml) {
  return Report(title, events).page(recipe_yaml);
}

fs::path write_report(const fs::path& output_dir) {
  std::vector<json> events = read_events(output_dir / kLogName);
  drop_other_evaluations(events);
  if (events.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{} is not a run directory", output_dir.string()),
                "give the output_dir of a training run");
  }
  const fs::path recipe = output_dir / kRecipeName;
  const fs::path page = output_dir / kReportName;
  fs::path directory = fs::absolute(output_dir).lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();  // "runs/a/", or "."
  const std::string name = directory.filename().string();
  write_text_atomic(page, render_report(name.empty() ? "run" : name, events,
                                        fs::exists(recipe) ? read_text(recipe) : std::string()));
  return page;
}

}  // namespace jackscrew
