#include "text/jinja/runtime.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "text/jinja/failure.h"

namespace jackscrew::jinja {

namespace {

// A conversation of a thousand messages takes a few hundred thousand steps.
constexpr int64_t kMaxSteps = 10'000'000;
constexpr int64_t kMaxBytes = int64_t{1} << 30;

constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};
constexpr std::array<std::string_view, 12> kMonths = {
    "January", "February", "March",     "April",   "May",      "June",
    "July",    "August",   "September", "October", "November", "December"};

std::string directive(const DateTime& time, char letter) {
  using namespace std::chrono;
  const year_month_day date = year(time.year) / month(static_cast<unsigned>(time.month)) /
                              day(static_cast<unsigned>(time.day));
  const sys_days days(date);
  const std::string_view weekday = kDays[std::chrono::weekday(days).c_encoding()];
  const std::string_view month_name = kMonths[static_cast<size_t>(time.month - 1)];
  const int hour12 = time.hour % 12 == 0 ? 12 : time.hour % 12;
  switch (letter) {
    case 'Y':
      return std::to_string(time.year);
    case 'y':
      return fmt::format("{:02}", time.year % 100);
    case 'm':
      return fmt::format("{:02}", time.month);
    case 'd':
      return fmt::format("{:02}", time.day);
    case 'e':
      return fmt::format("{:2}", time.day);
    case 'H':
      return fmt::format("{:02}", time.hour);
    case 'I':
      return fmt::format("{:02}", hour12);
    case 'M':
      return fmt::format("{:02}", time.minute);
    case 'S':
      return fmt::format("{:02}", time.second);
    case 'p':
      return time.hour < 12 ? "AM" : "PM";
    case 'A':
      return std::string(weekday);
    case 'a':
      return std::string(weekday.substr(0, 3));
    case 'B':
      return std::string(month_name);
    case 'b':
    case 'h':
      return std::string(month_name.substr(0, 3));
    case 'j':
      return fmt::format("{:03}", (days - sys_days(year(time.year) / January / 1)).count() + 1);
    case 'F':
      return format_time(time, "%Y-%m-%d");
    case 'T':
      return format_time(time, "%H:%M:%S");
    case 'R':
      return format_time(time, "%H:%M");
    case 'D':
      return format_time(time, "%m/%d/%y");
    case '%':
      return "%";
    case 'n':
      return "\n";
    case 't':
      return "\t";
    default:
      fault("strftime_now: the directive %{}", letter);
  }
}

}  // namespace

std::string format_time(const DateTime& time, std::string_view format) {
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    // "%-d" omits the padding, as in glibc.
    const bool bare = format.substr(i + 1).starts_with('-');
    i += bare ? 2 : 1;
    if (i >= format.size()) fault("strftime_now: a % at the end");
    std::string text = directive(time, format[i]);
    if (bare) text.erase(0, std::min(text.find_first_not_of("0 "), text.size() - 1));
    out += text;
  }
  return out;
}

std::optional<Value> Namespace::attribute(const std::string& name) {
  const Value* value = find_variable(attributes, name);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

Runtime::~Runtime() {
  for (const auto& space : namespaces_) space->attributes.clear();
}

void Runtime::count_steps(int64_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSteps) fault("the template takes more than {} steps", kMaxSteps);
}

void Runtime::count_value(const Value& value, bool is_new) {
  constexpr int64_t kBytesOfItem = 32;
  constexpr int64_t kBytesOfText = 160;   // in addition, for an item that is a short text
  constexpr int64_t kBytesOfStep = 1024;  // read in about the time of a step
  constexpr int64_t kBytesOfWeight = 8;   // of time: whoever reads a value may walk over all of it
  size_t bytes = 0;
  if (const Text* text = value.as_text()) {
    bytes = text->size() + text->runs().size() * sizeof(Text::Run);
  }
  if (const Sequence* sequence = value.as_sequence()) {
    const bool texts = !sequence->items.empty() && sequence->items[0].as_text() != nullptr;
    bytes = sequence->items.size() * (kBytesOfItem + (texts ? kBytesOfText : 0));
  }
  if (const Dict* dict = value.as_dict()) bytes = dict->items.size() * kBytesOfItem;
  const int64_t read = std::max(static_cast<int64_t>(bytes), value.weight() * kBytesOfWeight);
  count_steps(read / kBytesOfStep);
  if (!is_new) return;
  bytes_ += static_cast<int64_t>(bytes);
  if (bytes_ > kMaxBytes) fault("the template takes more than {} MiB", kMaxBytes >> 20);
}

std::shared_ptr<Namespace> Runtime::make_namespace() {
  constexpr int64_t kBytesOfNamespace = 256;
  bytes_ += kBytesOfNamespace;
  return namespaces_.emplace_back(std::make_shared<Namespace>());
}

}  // namespace jackscrew::jinja
