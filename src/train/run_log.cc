#include "train/run_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/console.h"
#include "base/process_memory.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "generation/samples.h"
#include "report/progress.h"
#include "session/flops.h"
#include "session/plan.h"
#include "train/disk_plan.h"
#include "train/saving.h"

namespace jackscrew {

namespace {

// Prints a line that has the program's own colour codes.
void print_line(const TrainConsole& console, const std::string& line) {
  if (!console.style.quiet) write_message(console.out, line + "\n", console.stop);
}

std::string data_names(const Recipe& recipe) {
  return fmt::format("{}", fmt::join(recipe.data, ", "));
}

// The tokens of the steps before `first` that no line of the log includes.
int64_t tokens_without_a_line(const BatchSampler& sampler, const fs::path& log, int64_t first) {
  int64_t tokens = 0;
  for (int64_t step = logged_until(log, first); step < first; ++step) {
    tokens += sampler.step(step).tokens;
  }
  return tokens;
}

std::optional<int64_t> resumed_at(int64_t first) {
  return first > 0 ? std::optional(first) : std::nullopt;
}

}  // namespace

void say(const TrainConsole& console, const std::string& line) {
  print_line(console, one_line(line));
}

RunLog::RunLog(const Run& run, const fs::path& output, int64_t first)
    : run_(run),
      events_(output / kLogName, resumed_at(first)),
      board_(output, resumed_at(first)),
      earlier_tokens_(tokens_without_a_line(run.sampler, output / kLogName, first)) {}

void RunLog::introduce(int64_t first, const fs::path& output, const DiskPlan& disk) {
  peak_ = run_.crew.session().measure_peak();
  const Recipe& recipe = run_.recipe;
  int64_t trained = 0;
  run_.crew.visit([&](const StateRef& state) { trained += learning_elements(state); });
  say(fmt::format("model     {}: {} parameters, {} of them trained ({})", recipe.model,
                  human_count(run_.files.config.parameter_count()), human_count(trained),
                  recipe.learner));
  if (first == 0 && !recipe.adapter.empty()) {
    say(fmt::format("adapter   {}: training continues from it; optimizer states start over",
                    recipe.adapter));
  }
  if (recipe.random_init && makes_adapter(recipe)) {
    say("          the random weights are not saved, so the adapter will fit no model");
  }
  if (!recipe.random_init) warn_of_unused_tensors(run_.files);
  warn_of_rounding_twice();
  introduce_data();
  introduce_machine();
  introduce_ranks();
  const LearnerNotes notes = run_.crew.session().learner().notes();
  for (size_t i = 0; i < notes.lines.size(); ++i) {
    say(fmt::format("{:<10}{}", i == 0 ? recipe.learner : "", notes.lines[i]));
  }
  for (const std::string& warning : notes.warnings) warn(warning);
  const std::string doubt = doubt_of_rate(recipe.learning_rate);
  if (!doubt.empty()) warn(doubt);
  const Schedule& schedule = run_.schedule;
  say(fmt::format("steps     {} ({} per epoch), learning rate {:.3g} {}, {} of warm-up",
                  schedule.total_steps, run_.sampler.steps_per_epoch(), recipe.learning_rate,
                  recipe.options.text("lr_scheduler_type"),
                  counted(schedule.warmup_steps, "step")));
  if (first == schedule.total_steps) {
    say("          all of them are done; the result is written now");
  }
  warn_of_disk(output, disk);
  log_start(first, trained);
  log_booked(first);
}

void RunLog::warn_of_rounding_twice() const {
  Session& session = run_.crew.session();
  if (run_.recipe.random_init || !session.learner().original_model().empty()) return;
  for (const auto& parameter : session.stage().parameters()) {
    const Weight& weight = *parameter->weight;
    if (!weight.spec().is_block_matrix() || session.learner().changes(weight.spec())) continue;
    const StoredTensor* stored = run_.files.source->find(weight.name());
    if (stored == nullptr || stored->format->name() == std::string_view(weight.format().name())) {
      return;
    }
    const auto is_rounded = [&](int64_t bytes) { return bytes < 2 * weight.size(); };
    if (!is_rounded(stored->size_bytes()) || !is_rounded(weight.storage().bytes.size())) return;
    return warn(
        fmt::format("storage={} rounds a second time weights that are {} in the file; "
                    "storage=keep, the default of method=lora, takes them as they are",
                    weight.format().name(), stored->format->name()));
  }
}

void RunLog::introduce_data() {
  const DatasetStats& stats = run_.data.train.stats();
  say(fmt::format("data      {}: {}, {}, {:.0f}% of them trained; sequences {:.0f}% full",
                  data_names(run_.recipe), counted(stats.examples, "example"),
                  counted(stats.tokens, "token"),
                  100.0 * static_cast<double>(stats.trained_tokens) /
                      static_cast<double>(std::max<int64_t>(1, stats.tokens)),
                  100.0 * run_.sampler.fill_rate()));
  const std::string limit = stats.room > 0
                                ? fmt::format("{} tokens beside the virtual ones", stats.room)
                                : fmt::format("sequence_len={}", run_.recipe.sequence_len);
  if (stats.truncated + stats.dropped > 0) {
    say(fmt::format("          {} cut to {}, {} skipped (nothing to train on)",
                    counted(stats.truncated, "record"), limit, stats.dropped));
  }
  if (stats.too_long > 0) {
    say(fmt::format("          {} skipped: longer than {}", counted(stats.too_long, "record"),
                    limit));
  }
  if (run_.recipe.report_samples > 0 && run_.data.samples.empty()) {
    say(fmt::format("samples   none in the report: no prompt leaves room for {} more tokens in {}",
                    kAnswerTokens, run_.data.sample_tokens));
  }
}

void RunLog::introduce_machine() {
  Session& session = run_.crew.session();
  const SessionPlan& plan = run_.plan;
  say(fmt::format(
      "machine   {}, {}, {}, product {}{}", session.device().description(),
      counted(session.ops().threads(), "thread"), session.ops().level(), session.product().name(),
      peak_.flops > 0
          ? fmt::format(", {} peak {:.0f} GFLOP/s", dtype_name(peak_.operands), peak_.flops * 1e-9)
          : ""));
  if (run_.recipe.device == "auto") {
    const std::string note = note_on_gpus();
    if (!note.empty()) say("          " + note);
  }
  say(fmt::format("memory    {}: {}{}", human_bytes(plan.ledger.peak), purposes_text(plan.ledger),
                  plan.recompute ? "; activations recomputed" : ""));
  if (plan.mapped_bytes > 0) {
    say(fmt::format("          and {} of weights in the map of their file",
                    human_bytes(plan.mapped_bytes)));
  }
  if (plan.host.peak > 0) {
    say(fmt::format("          and {} on the host: {}", human_bytes(plan.host.peak),
                    purposes_text(plan.host)));
  }
  if (plan.disk.peak > 0) {
    say(fmt::format("          and {} of masters in files", human_bytes(plan.disk.peak)));
  }
}

void RunLog::introduce_ranks() {
  const Layout& layout = run_.crew.layout();
  if (layout.ranks() == 1 && layout.lanes == 1) return;
  std::string stages;
  const std::vector<int64_t>& split = run_.crew.use().place.stage_split;
  for (size_t stage = 0; stage + 1 < split.size(); ++stage) {
    stages += (stage == 0 ? " of blocks " : ", ") + blocks_text(split, stage);
  }
  say(fmt::format("ranks     {}: {} of the model, {}{}; {} in a step", layout.ranks(),
                  counted(layout.replicas, "copy", "copies"), counted(layout.stages, "stage"),
                  stages, counted(layout.lanes, "lane")));
}

// Tells for each rank what it held, how long its steps waited for others, and what it sent.
void RunLog::report_ranks(int64_t done) {
  if (run_.crew.layout().ranks() == 1) return;
  const std::vector<RankReport> reports = run_.crew.reports();
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const RankReport& of = reports[rank];
    const double waited = seconds_ > 0 ? std::min(1.0, of.seconds_waited / seconds_) : 0.0;
    events_.write("rank", done,
                  JsonObject()
                      .add("rank", rank)
                      .add("host", of.host)
                      .add("computes_on", of.computes_on)
                      .add("device", ledger_json(of.device))
                      .add("host_memory", ledger_json(of.host_memory))
                      .add("sent_stream", of.sent.stream)
                      .add("sent_gradient", of.sent.gradient)
                      .add("seconds_waited", of.seconds_waited)
                      .add("waited_share", waited));
    say(fmt::format(
        "rank {:<5}on {}, {}: peak {} allocated, steps waited {:.0f}% of their time, sent {}", rank,
        of.host, of.computes_on, human_bytes(of.device.peak), 100.0 * waited,
        human_bytes(of.sent.all())));
  }
}

void RunLog::warn_of_disk(const fs::path& output, const DiskPlan& disk) {
  // The masters of this rank; others have theirs already as well.
  const int64_t masters = run_.plan.disk.peak - run_.crew.session().disk_ledger().total;
  if (const auto limit = file_size_limit(); limit && disk.largest_file > *limit) {
    warn(fmt::format(
        "the run may write a file of {}, but no file may have more than {}: raise the file size "
        "limit (ulimit -f)",
        human_bytes(disk.largest_file, *limit), human_bytes(*limit, disk.largest_file)));
  }
  const int64_t wanted = bytes_to_write(disk, masters, output);
  std::error_code error;
  const fs::space_info space = fs::space(output, error);
  if (error || space.available >= static_cast<uintmax_t>(wanted)) return;
  warn(fmt::format("the run may write {} to {}, which has {} free", human_bytes(wanted),
                   output.string(), human_bytes(static_cast<int64_t>(space.available))));
}

void RunLog::log_start(int64_t first, int64_t trained) {
  const Recipe& recipe = run_.recipe;
  Session& session = run_.crew.session();
  JsonObject start;
  start.add("model", recipe.model).add("parameters", run_.files.config.parameter_count());
  start.add("trained", trained);
  start.add("total_steps", run_.schedule.total_steps).add("planned_peak", run_.plan.ledger.peak);
  start.add("isa", session.ops().level()).add("threads", session.ops().threads());
  start.add("method", recipe.method).add("data", data_names(recipe)).add("storage", recipe.storage);
  start.add("data_fingerprint", run_.data.inputs.data);
  start.add("model_fingerprint", run_.data.inputs.model);
  if (!run_.data.inputs.held_out.empty()) {
    start.add(kHeldOutFingerprint, run_.data.inputs.held_out);
  }
  start.add("product", session.product().name());
  start.add("device", session.device().description());
  start.add("cpu", cpu_name()).add("version", JACKSCREW_VERSION);
  events_.write(EventKind::start, first, start);
}

// Logs the purposes of the device's memory if they have changed.
void RunLog::log_booked(int64_t step) {
  const auto& booked = run_.crew.session().memory().ledger().current;
  if (booked == booked_) return;
  booked_ = booked;
  events_.write(EventKind::booked, step, purposes_json(booked));
}

void RunLog::worked(const StepBatch& batch, double seconds) {
  resident_peak_ = std::max(resident_peak_, anonymous_resident_bytes());
  unlogged_.tokens += batch.tokens;
  // Counts only this rank's stage and its share of the batch.
  unlogged_.flops += training_flops(run_.crew.session().stage(), batch) /
                     static_cast<double>(run_.crew.layout().replicas);
  unlogged_.seconds += seconds;
  seconds_ += seconds;
}

// Other programs may have slowed the measurement of the peak. If a step surpasses it, measures
// again, up to kMeasurements times; after that the share is unknown.
std::optional<double> RunLog::share_of_peak(double flops) {
  constexpr int kMeasurements = 3;
  while (peak_.flops > 0 && flops > peak_.flops && peak_measurements_ < kMeasurements) {
    ++peak_measurements_;
    peak_.flops = std::max(peak_.flops, run_.crew.session().measure_peak().flops);
  }
  if (peak_.flops == 0.0 || flops > peak_.flops) return std::nullopt;
  return flops / peak_.flops;
}

void RunLog::step(int64_t done, const StepResult& result, double seconds_left) {
  const Work work = std::exchange(unlogged_, Work{});
  const double rate = run_.schedule.rate(done - 1);
  const double epoch =
      static_cast<double>(done) / static_cast<double>(run_.sampler.steps_per_epoch());
  StepLine line;
  line.step = done;
  line.total_steps = run_.schedule.total_steps;
  line.loss = result.loss;
  line.learning_rate = rate;
  line.grad_norm = result.grad_norm;
  line.tokens_per_second = static_cast<double>(work.tokens) / work.seconds;
  line.speed_of_light = share_of_peak(work.flops / work.seconds);
  line.memory_used = run_.crew.session().memory().ledger().peak;
  line.memory_budget = run_.recipe.device_memory;
  if (const int64_t host = run_.crew.session().host_ledger().peak; host > 0) {
    line.host_used = host;
    line.host_budget = run_.recipe.host_memory;
  }
  line.seconds_left = seconds_left;
  print_line(run_.console, format_step_line(line, run_.console.colour, run_.console.width));
  log_booked(done);
  warn_of_refused_graphs();
  warn_of_no_gradient(done, result);
  events_.write(EventKind::step, done,
                JsonObject()
                    .add("loss", result.loss)
                    .add("grad_norm", result.grad_norm)
                    .add("learning_rate", rate)
                    .add("epoch", epoch)
                    .add("tokens", work.tokens + std::exchange(earlier_tokens_, 0))
                    .add("tokens_per_second", line.tokens_per_second));
  board_.scalar("train/loss", done, static_cast<float>(result.loss));
  board_.scalar("train/learning_rate", done, static_cast<float>(rate));
  board_.scalar("train/grad_norm", done, static_cast<float>(result.grad_norm));
  board_.scalar("train/tokens_per_second", done, static_cast<float>(line.tokens_per_second));
}

// Work that the GPU's driver refuses to record is issued anew every time: correct, but slower.
void RunLog::warn_of_refused_graphs() {
  const RepeatCounts counts = run_.crew.session().ops().repeat_counts();
  if (counts.refused == 0 || std::exchange(warned_of_graphs_, true)) return;
  warn(
      fmt::format("a step's work could not be recorded as a CUDA graph ({}): every kernel is "
                  "launched by itself, which is slower",
                  counts.refusal));
}

// A model that has run away into numbers without a slope never comes back, and its loss is finite.
void RunLog::warn_of_no_gradient(int64_t done, const StepResult& result) {
  if (result.grad_norm > 0 || std::exchange(warned_of_no_gradient_, true)) return;
  const bool learns = run_.recipe.learning_rate > 0;  // else the rate is not at fault
  warn(fmt::format("step {}: the gradient is 0, so nothing learns; a {} does that{}", done,
                   learns ? "learning_rate that is far too high" : "lora_dropout close to 1",
                   learns ? ", or a lora_dropout close to 1" : ""));
}

// Counts micro-batches and updates of this process; no fields where nothing is recorded.
JsonObject RunLog::graphs_json() const {
  const RepeatCounts counts = run_.crew.session().ops().repeat_counts();
  JsonObject out;
  if (counts.issued + counts.replayed == 0) return out;
  out.add("recorded", counts.recorded).add("replayed", counts.replayed);
  return out.add("issued", counts.issued).add("refused", counts.refused);
}

void RunLog::evaluated(int64_t step, const EvalResult& result) {
  say(fmt::format("eval step {} | loss {:.4f} | ppl {} | {}", step, result.loss,
                  perplexity_text(result.perplexity), counted(result.tokens, "token")));
  events_.write(EventKind::eval, step,
                JsonObject().add("eval_loss", result.loss).add("perplexity", result.perplexity));
  board_.scalar("eval/loss", step, static_cast<float>(result.loss));
}

// What the run wrote at its start, and somebody has removed since.
void RunLog::put_back(const fs::path& output) {
  events_.put_back(output);
  board_.put_back(output);
  const fs::path recipe = output / kRecipeName;
  std::error_code unreachable;  // writing it says so, too
  if (fs::exists(recipe, unreachable)) return;
  write_or_warn(kRecipeName, [&] { write_text_atomic(recipe, run_.recipe.to_yaml()); });
}

void RunLog::failed(int64_t step, const std::string& what, double loss) {
  events_.write(EventKind::warn, std::max(step, events_.last_step()),
                JsonObject().add("message", what).add("loss", loss));
}

void RunLog::saved(int64_t step, const fs::path& checkpoint) {
  put_back(checkpoint.parent_path());
  events_.write(EventKind::save, step, JsonObject().add("path", checkpoint.string()));
  say(fmt::format("saved     {}", checkpoint.string()));
  const std::vector<fs::path> left = unfinished_checkpoints(checkpoint.parent_path());
  if (left.empty() || std::exchange(warned_of_leftovers_, true)) return;
  warn(
      fmt::format("{} is left of a checkpoint that should be gone, and takes room: the system "
                  "refuses to remove all of it",
                  left.front().string()));
}

void RunLog::takes_best(int64_t step, const std::string& evaluation) {
  result_step_ = step;
  say("result    of " + evaluation);
}

JsonObject end_event(const fs::path& output_dir, size_t samples, const JsonObject& graphs,
                     std::optional<int64_t> result_step) {
  JsonObject end;
  end.add("output_dir", output_dir.string()).add("samples", samples).add("graphs", graphs);
  if (result_step) end.add("result_step", *result_step);
  return end;
}

void RunLog::ended(int64_t done, OutputClaim& output_dir) {
  const fs::path output = output_dir.path();
  put_back(output);
  resident_peak_ = std::max(resident_peak_, anonymous_resident_bytes());
  const Ledger& ledger = run_.crew.session().memory().ledger();
  events_.write(EventKind::memory, done,
                JsonObject()
                    .add("device", ledger_json(ledger))
                    .add("host", ledger_json(run_.crew.session().host_ledger()))
                    .add("disk", ledger_json(run_.crew.session().disk_ledger()))
                    .add("mapped", run_.plan.mapped_bytes)
                    .add("fits", true)
                    .add("peak_at", ledger.peak_at)
                    .add("resident_peak", resident_peak_));
  report_ranks(done);
  events_.write(EventKind::end, done,
                end_event(output, run_.data.samples.size(), graphs_json(), result_step_));
  const bool beside = run_.crew.session().device().own_memory().has_value();
  say(fmt::format(
      "memory    peak {} allocated, {}{}", human_bytes(ledger.peak),
      resident_peak_ > 0 ? human_bytes(resident_peak_) + " resident" : "resident size unknown",
      beside ? " on the host" : ""));
  try {
    write_patiently(
        run_.console, kLogName, output_dir, [&] { events_.flush(); }, [] {});
  } catch (const Error& error) {
    // The result is whole, and the warning is given. What is written later tries once more.
    if (error.kind() != ErrorKind::generic) throw;
  }
}

}  // namespace jackscrew
