#include "report/event_log.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/map_guard.h"

namespace jackscrew {

namespace {

// A map's pages are given back after so many bytes.
constexpr size_t kReadAtOnce = size_t{1} << 20;

// Calls use(line) for every line of a file; none when there is no file.
template <class Use>
void for_lines(const fs::path& path, const Use& use) {
  if (!fs::exists(path)) return;
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  size_t released = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    use(text.substr(begin, end - begin));
    begin = end + 1;
    if (begin - released < kReadAtOnce) continue;
    file.release(released, begin - released);
    released = begin;
  }
  // Not of the size: a run that writes the log takes back the half of a line that a full disk
  // refused.
  check_pages(bytes.data());
}

// The event of a line, without values nested deeper than any that a run writes, whose copies might
// take more stack than there is; nullopt where the line is not valid.
std::optional<nlohmann::json> event_of(std::string_view line) {
  const auto is_shallow = [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    return depth <= 32;
  };
  auto event = nlohmann::json::parse(line, is_shallow, /*allow_exceptions=*/false);
  if (!event.is_object()) return std::nullopt;
  const auto step = event.find("step");
  const auto kind = event.find("event");
  if (step == event.end() || !step->is_number_integer()) return std::nullopt;
  if (kind == event.end() || !kind->is_string()) return std::nullopt;
  return std::optional(std::move(event));
}

// Whether a run itself writes such events; a learner's have names of their own.
bool is_of_run(std::string_view event) {
  for (int kind = 0; kind <= static_cast<int>(EventKind::exported); ++kind) {
    if (event == event_name(static_cast<EventKind>(kind))) return true;
  }
  return false;
}

bool is_start(const nlohmann::json& event) {
  return event["event"] == event_name(EventKind::start);
}

// What a `start` says that is held out.
std::string held_out_of(const nlohmann::json& start) {
  const auto found = start.find(kHeldOutFingerprint);
  return found != start.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Rewrites `path` with only the events up to `resumed_step` (none without it); returns the step of
// the last one.
int64_t keep_events(const fs::path& path, std::optional<int64_t> resumed_step) {
  AtomicFile kept(path);
  FileWriter writer(kept.path());
  int64_t last_step = 0;
  if (resumed_step) {
    for_lines(path, [&](std::string_view line) {
      const auto event = event_of(line);
      if (!event) return;
      const auto step = event->at("step").get<int64_t>();
      if (step < 0 || step > *resumed_step) return;
      // What a learner did as the next step began, it will do again.
      if (step == *resumed_step && !is_of_run(event->at("event").get<std::string>())) return;
      writer.write(line);
      writer.write("\n");
      last_step = std::max(last_step, step);
    });
  }
  writer.close();
  kept.commit();
  return last_step;
}

}  // namespace

void for_events(const fs::path& path, const EventUse& use) {
  for_lines(path, [&](std::string_view line) {
    if (const auto event = event_of(line)) use(*event);
  });
}

void for_comparable_events(const fs::path& path, const EventUse& use) {
  const std::string now = held_out_fingerprint(path);
  std::string then;
  for_events(path, [&](const nlohmann::json& event) {
    if (is_start(event)) then = held_out_of(event);
    const bool is_other = !now.empty() && !then.empty() && then != now;
    if (!is_other || event["event"] != event_name(EventKind::eval)) use(event);
  });
}

std::string held_out_fingerprint(const fs::path& path) {
  std::string held_out;
  for_lines(path, [&](std::string_view line) {
    // Parsing the lines of all steps would take most of the time.
    if (line.find(event_name(EventKind::start)) == std::string_view::npos) return;
    const auto event = event_of(line);
    if (event && is_start(*event)) held_out = held_out_of(*event);
  });
  return held_out;
}

int64_t logged_until(const fs::path& path, int64_t step) {
  std::optional<int64_t> logged;
  for_events(path, [&](const nlohmann::json& event) {
    const auto at = event["step"].get<int64_t>();
    const bool begins = is_start(event) && !logged;
    if (at <= step && (begins || event["event"] == event_name(EventKind::step))) logged = at;
  });
  return logged.value_or(step);
}

const char* event_name(EventKind kind) {
  switch (kind) {
    case EventKind::start:
      return "start";
    case EventKind::step:
      return "step";
    case EventKind::eval:
      return "eval";
    case EventKind::save:
      return "save";
    case EventKind::warn:
      return "warn";
    case EventKind::end:
      return "end";
    case EventKind::memory:
      return "memory";
    case EventKind::booked:
      return "booked";
    case EventKind::sample:
      return "sample";
    case EventKind::exported:
      return "export";
  }
  return "warn";
}

EventLog::EventLog(const fs::path& path, std::optional<int64_t> resumed_step)
    : last_step_(keep_events(path, resumed_step)), file_(path) {}

void EventLog::write(const char* event, int64_t step, const JsonObject& fields) {
  if (step < last_step_) {
    fail(ErrorKind::generic, "event {} of step {} comes after step {}", event, step, last_step_);
  }
  last_step_ = step;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  JsonObject line;
  line.add("event", event).add("step", step).add("time", now.count()).merge(fields);
  // Those of a learner may be as many as the steps.
  const bool is_one_of_many =
      !is_of_run(event) || std::string_view(event) == event_name(EventKind::step);
  file_.append(line.text() + "\n", is_one_of_many ? PieceKind::ordinary : PieceKind::important);
}

}  // namespace jackscrew
