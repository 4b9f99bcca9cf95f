// Everything that a run reports: lines for the user, events in train_log.jsonl, curves for
// TensorBoard.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "data/batch.h"
#include "optim/schedule.h"
#include "report/event_log.h"
#include "report/tensorboard.h"
#include "session/evaluate.h"
#include "session/plan.h"
#include "train/crew.h"
#include "train/output_dir.h"
#include "train/run_data.h"
#include "train/train_console.h"

namespace jackscrew {

// Prints a line of a run to console.out, unless the run is quiet.
void say(const TrainConsole& console, const std::string& line);

// The fields of a run's `end` line.
JsonObject end_event(const fs::path& output_dir, size_t samples, const JsonObject& graphs,
                     std::optional<int64_t> result_step);

class RunLog {
 public:
  // What stays the same from a run's first step to its last. Everything must outlive the log.
  struct Run {
    const Recipe& recipe;
    const TrainConsole& console;
    const ModelFiles& files;
    const RunData& data;
    const BatchSampler& sampler;
    const Schedule& schedule;
    const SessionPlan& plan;
    Crew& crew;
  };

  // Begins the files in `output` anew or, where steps are done already, continues them.
  RunLog(const Run& run, const fs::path& output, int64_t first);

  // Prints the lines before the first step, which is `first`; `output` is where the run writes what
  // `disk` says. Measures the device's peak.
  void introduce(int64_t first, const fs::path& output, const DiskPlan& disk);
  // The measured peak of the device, FLOP/s; 0 where it is not known.
  double peak_flops() const { return peak_.flops; }
  // For what is not reported here: answers (run_samples.h).
  EventLog& events() { return events_; }

  // Adds steps to the next log line. Evaluations and checkpoints do not count.
  void worked(const StepBatch& batch, double seconds);
  void waited(double seconds) {
    unlogged_.seconds += seconds;
    seconds_ += seconds;
  }
  // Writes the line of a step.
  void step(int64_t done, const StepResult& result, double seconds_left);

  void evaluated(int64_t step, const EvalResult& result);
  void saved(int64_t step, const fs::path& checkpoint);
  // Why the run ends after a step. Others may have been logged since it: nothing waits for the
  // device until then.
  void failed(int64_t step, const std::string& what, double loss);
  void event(int64_t step, const LearnerEvent& event) {
    events_.write(event.name.c_str(), step, event.fields);
  }
  // The result is that of an earlier step than the last, and of that evaluation.
  void takes_best(int64_t step, const std::string& evaluation);
  // Writes the last events of a run whose result is in `output_dir`, and its peak memory. Waits for
  // room on a full disk (saving.h): without its `end`, the run would not count as finished.
  void ended(int64_t done, OutputClaim& output_dir);

 private:
  struct Work {
    int64_t tokens = 0;
    double flops = 0;
    double seconds = 0;
  };

  void put_back(const fs::path& output);
  void say(const std::string& line) const { jackscrew::say(run_.console, line); }
  void warn_of_rounding_twice() const;
  void introduce_data();
  void introduce_machine();
  void introduce_ranks();
  void report_ranks(int64_t done);
  void warn_of_disk(const fs::path& output, const DiskPlan& disk);
  void log_start(int64_t first, int64_t trained);
  void log_booked(int64_t step);
  std::optional<double> share_of_peak(double flops);
  void warn_of_refused_graphs();
  void warn_of_no_gradient(int64_t done, const StepResult& result);
  JsonObject graphs_json() const;

  Run run_;
  EventLog events_;
  TensorBoardWriter board_;
  std::array<int64_t, kPurposes> booked_{};  // as last logged
  DevicePeak peak_;
  int peak_measurements_ = 1;
  double seconds_ = 0;      // of all steps
  Work unlogged_;           // of this process, since the last line of the log
  int64_t earlier_tokens_;  // of an earlier process, after its last log line
  int64_t resident_peak_ = 0;
  std::optional<int64_t> result_step_;  // of the result, where it is not the last
  bool warned_of_graphs_ = false;
  bool warned_of_leftovers_ = false;
  bool warned_of_no_gradient_ = false;
};

}  // namespace jackscrew
