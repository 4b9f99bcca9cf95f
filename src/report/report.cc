#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/process_memory.h"
#include "base/shared_names.h"
#include "base/text.h"
#include "report/event_log.h"
#include "report/html_page.h"
#include "report/progress.h"
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
// A number as an integer, or the nearest that there is: what a log says may be absurd.
int64_t whole(double number) {
  constexpr double kMost = 9007199254740992.0;  // 2^53: until there a double has every integer
  return std::isnan(number) ? 0 : static_cast<int64_t>(std::clamp(number, -kMost, kMost));
}
std::optional<std::string> text_if_any(const json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || found->is_null()) return std::nullopt;
  return found->is_string() ? found->get<std::string>() : found->dump();
}
std::string text(const json& event, const char* key) {
  return text_if_any(event, key).value_or("");
}

// Events are added in order, and what the page shows of each is kept: a run may log a million
// steps.
class Report {
 public:
  void add(const json& event) {
    const std::string kind = text(event, "event");
    const double step = number(event, "step").value_or(0);
    const std::optional<double> time = number(event, "time");
    if (is_empty_) begun_ = time;
    is_empty_ = false;
    last_step_ = step;
    if (time) add_time(kind, *time);
    // Not every step has a line in the log, but a step that was saved has been done.
    if (kind == "step" || kind == "save" || kind == "end")
      steps_done_ = std::max(steps_done_, step);
    // A run that had ended may go on.
    ended_ = kind == "end" || (ended_ && kind != "start");
    if (kind == "end" || kind == "start") result_step_ = number(event, "result_step");
    // Exports belong to the present result: a run that writes another removes them.
    if (kind == "end") exports_.clear();
    if (kind == "start") start_ = event;
    if (kind == "memory") memory_ = event;
    if (kind == "step") add_step(step, event);
    if (kind == "eval") add_evaluation(step, event);
    if (kind == "booked") add_booked(step, event);
    if (kind == "warn") warnings_.push_back(text(event, "message"));
    if (kind == "sample") add_sample(step, event);
    if (kind == "rank") ranks_.push_back(event);
    if (kind == "refresh") add_refresh(step, event);
    if (kind == "export") exports_[fs::path(text(event, "path")).filename().string()] = event;
  }
  bool is_empty() const { return is_empty_; }

  std::string page(const std::string& title, const std::string& recipe_yaml) const {
    std::string body =
        fmt::format("<h1>{}</h1>\n<p class=\"lead\">{}</p>\n", html_text(title), html_text(lead()));
    body += numbers() + warnings() + "<div class=\"charts\">\n" + charts() + "</div>\n" +
            samples() + exports() + ranks() + subspaces() + environment();
    if (!recipe_yaml.empty()) {
      body += fmt::format("<details><summary>Recipe</summary><pre>{}</pre></details>\n",
                          html_text(recipe_yaml));
    }
    return html_page(title, body);
  }

 private:
  // The values of a logged step; not a number where the log does not say.
  struct LoggedStep {
    double step, loss, learning_rate, grad_norm, tokens_per_second;
  };
  // The bytes of each purpose from a moment on; see Memory.
  struct Booked {
    double step;
    std::array<double, kPurposes> bytes;
  };
  struct Answers {
    // Missing: of a run that has not come so far.
    std::optional<std::string> prompt, expected, before, after;
  };
  // How often a matrix's subspace was refreshed, and the last time.
  struct Refreshes {
    int64_t count = 0;
    double overlap = 0, step = 0, next = 0;
  };

  // The time between each process's start and the end of its run or its last event, summed. A
  // finished run's exports and late answers may be written much later.
  void add_time(const std::string& kind, double time) {
    if (kind == "start") time_before_ = time;
    if (!time_before_) return;
    training_seconds_ = training_seconds_.value_or(0) + std::max(0.0, time - *time_before_);
    time_before_ = kind == "end" ? std::nullopt : std::optional(time);
  }
  void add_step(double step, const json& event) {
    if (steps_.size() == steps_.capacity()) make_room_for_steps();
    const auto value = [&](const char* key) { return number(event, key).value_or(NAN); };
    steps_.push_back({step, value("loss"), value("learning_rate"), value("grad_norm"),
                      value("tokens_per_second")});
  }
  // A run may log more steps than its memory limit leaves room for.
  void make_room_for_steps() {
    const size_t count = std::max<size_t>(1024, steps_.size() + steps_.size() / 4);
    // While they are moved, as much is taken twice; so much also covers what charts() takes for a
    // series of all steps, in two copies while it is drawn.
    static_assert(5 * sizeof(LoggedStep) >= sizeof(LoggedStep) + 10 * sizeof(ChartPoint));
    require_memory(static_cast<int64_t>(count * sizeof(LoggedStep)),
                   fmt::format("the report of more than {} logged steps", steps_.size()),
                   "`jackscrew report DIR` writes it where there is more memory");
    steps_.reserve(count);
  }
  void add_evaluation(double step, const json& event) {
    if (const auto loss = number(event, "eval_loss")) evaluations_.push_back({step, *loss});
  }
  void add_booked(double step, const json& event) {
    Booked& booked = booked_.emplace_back();
    booked.step = step;
    for (int purpose = 0; purpose < kPurposes; ++purpose) {
      const char* name = purpose_name(static_cast<Purpose>(purpose));
      booked.bytes[static_cast<size_t>(purpose)] = number(event, name).value_or(0);
    }
  }
  void add_sample(double step, const json& event) {
    Answers& answers = answers_[whole(number(event, "index").value_or(0))];
    answers.prompt = text_if_any(event, "prompt");
    answers.expected = text_if_any(event, "expected");
    (step == 0 ? answers.before : answers.after) = text_if_any(event, "answer");
  }
  void add_refresh(double step, const json& event) {
    Refreshes& of = refreshes_[text(event, "weight")];
    ++of.count;
    of.step = step;
    of.overlap = number(event, "overlap").value_or(0);
    of.next = number(event, "next").value_or(step);
  }

  std::vector<ChartPoint> points(double LoggedStep::*value) const {
    std::vector<ChartPoint> out;
    out.reserve(steps_.size());
    for (const LoggedStep& step : steps_) {
      if (!std::isnan(step.*value)) out.push_back({step.step, step.*value});
    }
    return out;
  }

  std::string lead() const {
    if (!start_) return "no step has been done";
    return fmt::format("{}, {} of {} parameters learn, method {}", text(*start_, "model"),
                       human_count(whole(number(*start_, "trained").value_or(0))),
                       human_count(whole(number(*start_, "parameters").value_or(0))),
                       text(*start_, "method"));
  }

  std::string loss_label(double step) const {
    return step == steps_done_ ? "loss of the last step" : fmt::format("loss of step {:.0f}", step);
  }

  std::string numbers() const {
    std::string out;
    const auto add = [&](const std::string& value, const std::string& what) {
      out +=
          fmt::format("<div><b>{}</b><span>{}</span></div>\n", html_text(value), html_text(what));
    };
    if (const std::vector<ChartPoint>& evals = evaluations_; !evals.empty()) {
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
    if (const auto losses = points(&LoggedStep::loss); !losses.empty()) {
      add(fmt::format("{:.4f}", losses.back().y), loss_label(losses.back().x));
    }
    add(fmt::format("{:.0f} of {}", steps_done_, start_ ? text(*start_, "total_steps") : "?"),
        ended_ ? "steps" : "steps so far");
    if (auto speeds = points(&LoggedStep::tokens_per_second); !speeds.empty()) {
      std::ranges::sort(speeds, {}, &ChartPoint::y);
      add(rate_text(speeds[speeds.size() / 2].y), "tokens a second (median)");
    }
    if (training_seconds_) add(human_duration(*training_seconds_), "in training");
    if (const auto peak = peak_bytes("device")) add(human_bytes(*peak), "memory at its peak");
    return "<div class=\"numbers\">\n" + out + "</div>\n";
  }

  std::optional<int64_t> peak_bytes(const char* place) const {
    if (!memory_ || !memory_->contains(place)) return std::nullopt;
    const auto peak = number((*memory_)[place], "peak");
    return peak ? std::optional(whole(*peak)) : std::nullopt;
  }

  std::string warnings() const {
    std::string out;
    for (const std::string& warning : warnings_) {
      out += fmt::format("<p class=\"warning\">{}</p>\n", html_text(warning));
    }
    return out;
  }

  std::string charts() const {
    std::string out =
        line_chart({.title = "Loss",
                    .series = {{"of the step", 1, points(&LoggedStep::loss)},
                               {"held out", 2, evaluations_, evaluations_.size() <= 60}}});
    out += line_chart({.title = "Learning rate",
                       .from_zero = true,
                       .series = {{"", 3, points(&LoggedStep::learning_rate)}}});
    out += line_chart({.title = "Gradient norm, before clipping",
                       .from_zero = true,
                       .series = {{"", 4, points(&LoggedStep::grad_norm)}}});
    out += line_chart({.title = "Tokens a second",
                       .from_zero = true,
                       .series = {{"", 5, points(&LoggedStep::tokens_per_second)}}});
    return out + memory_chart();
  }

  std::string memory_chart() const {
    Chart chart{.title = "Memory, by purpose", .unit = ChartUnit::bytes, .series = {}};
    for (int purpose = 0; purpose < kPurposes; ++purpose) {
      const char* name = purpose_name(static_cast<Purpose>(purpose));
      ChartSeries series{.name = name, .colour = purpose + 1, .points = {}};
      double most = 0;
      for (const Booked& booked : booked_) {
        const double bytes = booked.bytes[static_cast<size_t>(purpose)];
        series.points.push_back({booked.step, bytes});
        most = std::max(most, bytes);
      }
      if (!series.points.empty() && series.points.back().x < last_step_) {
        series.points.push_back({last_step_, series.points.back().y});
      }
      if (most > 0) chart.series.push_back(std::move(series));
    }
    return stacked_chart(chart);
  }

  std::string samples() const {
    if (answers_.empty()) return {};
    std::string out = "<h2>Answers before and after</h2>\n";
    for (const auto& [index, answers] : answers_) {
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
    for (const json& event : ranks_) {
      const auto peak = event.contains("device") ? number(event["device"], "peak") : std::nullopt;
      rows += fmt::format(
          "<tr><td>rank {} on {}</td><td>{}</td><td>{}</td><td>steps waited {:.0f}% of their "
          "time</td><td>sent {}</td></tr>\n",
          html_text(text(event, "rank")), html_text(text(event, "host")),
          html_text(text(event, "computes_on")), human_bytes(whole(peak.value_or(0))),
          100.0 * number(event, "waited_share").value_or(0),
          human_bytes(whole(number(event, "sent_stream").value_or(0) +
                            number(event, "sent_gradient").value_or(0))));
    }
    if (rows.empty()) return {};
    return "<h2>Ranks</h2>\n<table class=\"facts\">\n" + rows + "</table>\n";
  }

  // A table of GaLore's subspaces: the last refresh of each matrix.
  std::string subspaces() const {
    if (refreshes_.empty()) return {};
    std::string rows;
    for (const auto& [weight, of] : refreshes_) {
      rows += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>overlap {:.2f} at the last</td><td>gap of {:.0f} "
          "steps</td></tr>\n",
          html_text(weight), counted(of.count, "refresh", "refreshes"), of.overlap,
          of.next - of.step);
    }
    return fmt::format(
        "<h2>Subspaces</h2>\n<details><summary>{}, by matrix</summary><table class=\"facts\">\n{}"
        "</table></details>\n",
        counted(std::ssize(refreshes_), "matrix", "matrices"), rows);
  }

  std::string exports() const {
    if (exports_.empty()) return {};
    std::string rows;
    for (const auto& [name, event] : exports_) {
      rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                          html_text(text(event, "format")), html_text(text(event, "path")),
                          human_bytes(whole(number(event, "bytes").value_or(0))));
    }
    return "<h2>Exports</h2>\n<table class=\"facts\">\n" + rows + "</table>\n";
  }

  std::string environment() const {
    if (!start_) return {};
    std::string rows;
    const auto add = [&](const char* name, const std::string& value) {
      if (value.empty()) return;
      rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", name, html_text(value));
    };
    if (begun_) add("begun", date_text(*begun_));
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
    constexpr double kLast = 253402300799;  // of the year 9999
    const sys_seconds time{std::chrono::seconds(whole(std::clamp(seconds, 0.0, kLast)))};
    const auto day = floor<days>(time);
    const year_month_day date(day);
    const hh_mm_ss clock(time - day);
    return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                       clock.hours().count(), clock.minutes().count());
  }

  bool is_empty_ = true;
  bool ended_ = false;
  double last_step_ = 0;  // of the last event
  double steps_done_ = 0;
  std::optional<double> begun_;        // the time of the first event
  std::optional<double> time_before_;  // of the event before, in a run that goes on
  std::optional<double> training_seconds_;
  std::optional<double> result_step_;  // of the result, where it is not the last
  std::optional<json> start_;          // the last
  std::optional<json> memory_;         // the last
  std::vector<LoggedStep> steps_;
  std::vector<ChartPoint> evaluations_;
  std::vector<Booked> booked_;
  std::vector<std::string> warnings_;
  std::map<int64_t, Answers> answers_;  // by index
  std::vector<json> ranks_;
  std::map<std::string, Refreshes> refreshes_;  // by matrix
  // Each as it was written last, by the file's name: a directory may be spelled in several ways.
  std::map<std::string, json> exports_;
};

}  // namespace

fs::path write_report(const fs::path& output_dir) {
  Report report;
  for_comparable_events(output_dir / kLogName, [&](const json& event) { report.add(event); });
  if (report.is_empty()) {
    throw Error(ErrorKind::usage, fmt::format("{} is not a run directory", output_dir.string()),
                "give the output_dir of a training run");
  }
  const fs::path recipe = output_dir / kRecipeName;
  const fs::path page = output_dir / kReportName;
  fs::path directory = fs::absolute(output_dir).lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();  // "runs/a/", or "."
  const std::string name = directory.filename().string();
  write_text_atomic(page, report.page(name.empty() ? "run" : name,
                                      fs::exists(recipe) ? read_text(recipe) : std::string()));
  return page;
}

}  // namespace jackscrew
