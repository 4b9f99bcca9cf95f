// The state that a rendering shares with the functions it calls: limits and clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "text/jinja/value.h"

namespace jackscrew::jinja {

// A moment of local time, for strftime_now.
struct DateTime {
  int year = 1970;
  int month = 1;  // 1 .. 12
  int day = 1;
  int hour = 0;
  int minute = 0;
  int second = 0;

  bool operator==(const DateTime&) const = default;
};

// Python's strftime in the C locale. Throws Failure for an unknown directive.
std::string format_time(const DateTime& time, std::string_view format);

// The object of namespace(), the only one that templates can change.
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "namespace"; }
  std::optional<Value> attribute(const std::string& name) override;

  Variables attributes;
};

class Runtime {
 public:
  explicit Runtime(const DateTime& now) : now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const DateTime& now() const { return now_; }

  // These throw Failure beyond limits that no chat template needs.
  void count_steps(int64_t steps);
  // Counts a value that was just made (`is_new`) or is about to be read.
  void count_value(const Value& value, bool is_new);

  std::shared_ptr<Namespace> make_namespace();

 private:
  DateTime now_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  // Namespaces may refer to each other in cycles; the destructor takes them apart.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace jackscrew::jinja
