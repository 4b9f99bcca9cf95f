// train_log.jsonl: one JSON object per line for everything that happens in a run.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/json_object.h"
#include "base/shared_names.h"
#include "report/growing_file.h"

namespace jackscrew {

// Kinds that any run may write. Learners add their own, and runs of several ranks add `rank`.
enum class EventKind { start, step, eval, save, warn, end, memory, booked, sample, exported };

const char* event_name(EventKind kind);

using EventUse = std::function<void(const nlohmann::json& event)>;

// Calls use(event) for the events of a log in order, each an object with a name as `event` and an
// integer `step`; invalid lines, such as one torn by a crash, are skipped. None when there is no
// file. A log may have a line for each of a million steps: no more than one event is held.
void for_events(const fs::path& path, const EventUse& use);

// The same without evaluations of other data than those that the last `start` names: the losses of
// two texts cannot be compared. Where a `start` does not say, they are taken for the same.
void for_comparable_events(const fs::path& path, const EventUse& use);

// In `start` events: what is held out for evaluation.
inline constexpr const char* kHeldOutFingerprint = "eval_data_fingerprint";

// The fingerprint in the last `start` of a log; empty: it does not say.
std::string held_out_fingerprint(const fs::path& path);

// The step, at most `step`, up to which the log covers steps: that of its last step line or, if it
// has none, the one at which it began. `step` where there is no log.
int64_t logged_until(const fs::path& path, int64_t step);

// Every line begins with `event` (the kind), `step` (optimizer steps done) and `time` (seconds
// since 1970). Other members have the names of Hugging Face's trainer_state.json where it has one:
// `loss`, `grad_norm`, `learning_rate`, `epoch`; and `tokens_per_second`.
class EventLog {
 public:
  // Starts the file anew; with `resumed_step`, keeps the events up to that step, so that repeated
  // steps appear once. Lines torn by a crash are dropped. The file is rewritten atomically. Throws
  // Error(generic) when it cannot be written.
  explicit EventLog(const fs::path& path, std::optional<int64_t> resumed_step = std::nullopt);

  // Writes one line and passes it to the system; if that fails, warns once (GrowingFile). Steps
  // must not decrease.
  void write(const char* event, int64_t step, const JsonObject& fields = {});
  void write(EventKind kind, int64_t step, const JsonObject& fields = {}) {
    write(event_name(kind), step, fields);
  }

  // Writes the lines that wait for room; throws what GrowingFile::flush() throws.
  void flush() { file_.flush(); }

  // Writes the log anew in `directory` if it was removed or replaced meanwhile (GrowingFile).
  void put_back(const fs::path& directory) { file_.put_back(directory); }

  // The highest step of an event so far; 0 without events.
  int64_t last_step() const { return last_step_; }

 private:
  int64_t last_step_;
  GrowingFile file_;
};

}  // namespace jackscrew
