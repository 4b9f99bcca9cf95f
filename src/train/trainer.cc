#include "train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "report/report.h"
#include "session/adapter.h"
#include "train/crew.h"
#include "train/disk_plan.h"
#include "train/output_dir.h"
#include "train/result.h"
#include "train/result_move.h"
#include "train/resume.h"
#include "train/run_data.h"
#include "train/run_evaluation.h"
#include "train/run_exports.h"
#include "train/run_log.h"
#include "train/run_pace.h"
#include "train/run_samples.h"
#include "train/run_start.h"
#include "train/run_watch.h"
#include "train/saving.h"

namespace jackscrew {

namespace {

class Trainer {
 public:
  Trainer(const Recipe& recipe, const TrainConsole& console, Transport* transport)
      : recipe_(with_lanes(with_adapter_options(of_rank(recipe, 0)),
                           transport == nullptr ? 1 : transport->size())),
        console_(console),
        files_(open_model(recipe.model, recipe.adapter, recipe.tokenizer)),
        tokenizer_(make_tokenizer(recipe.tokenizer, files_)),
        format_(settle_chat_date(recipe_, tokenizer_)),
        watch_(recipe.watch) {
    // Until the first step there is nothing to save: a stop ends the run at once.
    console_.style.check = [this] {
      if (!has_begun_ && console_.stop_requested()) stop_before_the_first_step();
    };
    check_model(recipe_, files_);
    settle_lengths(recipe_, files_);
    check_exports(recipe_, files_);
    crew_.emplace(recipe_, files_, transport, recipe.to_yaml());
    check_output_dir(recipe_);
    claim_.emplace(recipe_.output_dir);
    refuse_other_recipe(recipe_);
    data_ = read_run_data(recipe_, files_, tokenizer_, console_.style, *claim_);
    sampler_.emplace(data_.train, run_batches(recipe_));
    total_steps_ = total_steps(recipe_, sampler_->steps_per_epoch());
    pace_ = RunPace(total_steps_, recipe_.eval_steps);
    schedule_ = run_schedule(recipe_, total_steps_);
    start_ = find_start(recipe_, claim_->path(), total_steps_, data_.inputs);
    checkpoint_ = start_.checkpoint;
  }

  // Whether other ranks are in common work with this one and would wait for it for ever.
  bool is_in_common_work() const { return crew_ && crew_->is_in_common_work(); }

  void run() {
    if (start_.finished) return complete(*start_.finished);
    open_session();
    const int64_t first = checkpoint_.empty() ? 0 : resume();
    if (first > 0) say(fmt::format("resuming from {} at step {}", checkpoint_.string(), first));
    const bool has_watch = start_.is_own && watch_.restore(checkpoint_, data_.inputs.held_out);
    if (!start_.writes_again.empty()) warn(start_.writes_again);
    claim_->keep();
    const fs::path output = claim_->path();
    // Checkpoints of a run that this one replaces would look like its own, and so would its log.
    own_ = start_.replaces_another ? 0 : first;
    if (own_ == 0) remove_earlier_run(output, data_.token_files);
    log_.emplace(RunLog::Run{recipe_, console_, files_, data_, *sampler_, schedule_, plan_, *crew_},
                 output, own_);
    if (!has_watch) warn_of_other_held_out(output / kLogName, data_.inputs.held_out);
    // A run that had already ended is not begun anew and keeps its recipe.
    const fs::path recipe = output / kRecipeName;
    if (own_ < total_steps_ || !fs::exists(recipe)) write_text_atomic(recipe, recipe_.to_yaml());
    log_->introduce(first, output, disk_);
    if (!has_watch) {
      watch_.replay(output);  // its last start says what is held out now
    } else if (recipe_.load_best_model_at_end) {
      watch_.find_kept(output);
    }
    const std::string slow =
        leave_out_slow_samples(data_, recipe_.options, log_->peak_flops(),
                               plan_.weight_bytes * crew_->layout().stages, files_.config);
    if (!slow.empty()) say(slow);
    if (first == 0) {
      evaluate_now(0);
      answer_samples(all_samples(data_), 0, log_->events());  // nothing depends on them
    } else if (pace_.evaluates_after(first) && watch_.last_evaluated() < first) {
      evaluate_now(first);
      // If it is the best, its checkpoint must be here: the run may go on from another directory.
      const bool is_here = fs::exists(checkpoint_path(output, first));
      if (is_here) watch_.saved(first);
      if (!is_here && must_save(first, false)) try_to_save(first);
    }
    console_.style.check();
    has_begun_ = true;
    console_.enter(RunPhase::steps);
    finish(run_steps(first));
  }

  // An error as the user hears it: that the result is whole comes first. A stop says so by itself.
  Error as_told(const Error& error, bool ranks_lost) {
    if (!has_result_ || error.kind() == ErrorKind::interrupted) return error;
    const fs::path* output = claim_->find();
    return output == nullptr ? error : failed_after_the_result(error, recipe_, *output, ranks_lost);
  }

  // Writes the exports beside the result, after this run or for one that had ended; rank 0 alone.
  void write_exports() {
    const fs::path output = claim_->path();
    if (start_.finished) log_earlier_exports(recipe_, output);
    if (lacks_exports(recipe_, output)) {
      console_.enter(RunPhase::exports);
      log_.reset();
      crew_.reset();  // frees its memory
      write_run_exports(recipe_, files_, output, console_);
    }
    if (!start_.finished) say(fmt::format("done      {}", output.string()));
  }

 private:
  void say(const std::string& line) const { jackscrew::say(console_, line); }

  void report() {
    write_if_possible(kReportName, [&] {
      say(fmt::format("report    {}", write_report(claim_->path()).string()));
    });
  }

  // Opens the model on all ranks, as it is before the first step.
  void open_session() {
    recipe_.output_dir = claim_->path().string();
    if (!start_.finished) disk_ = plan_disk(recipe_, files_, tokenizer_, total_steps_);
    plan_ = crew_->rehearse(data_memory(recipe_, data_, *sampler_, total_steps_),
                            bytes_in_memory(disk_, recipe_.output_dir));
    crew_->load(plan_, console_.style);
    info_ = describe_run(recipe_, files_, tokenizer_, crew_->session(), data_.inputs.data);
    crew_->begin_run(total_steps_);
  }

  // Says that nothing is left to train, and answers what the report lacks. The result stays as is.
  void complete(const FinishedRun& finished) {
    has_result_ = true;
    const fs::path output = claim_->path();
    if (!fs::exists(output / kReportName)) report();  // the run was killed before
    const std::vector<size_t> samples = unanswered_samples(output, data_);
    warn_of_other_held_out(output / kLogName, data_.inputs.held_out);
    checkpoint_ = checkpoint_path(output, finished.result_step);
    const bool can_answer = !samples.empty() && fs::exists(checkpoint_);
    const bool is_whole = !can_answer && !lacks_exports(recipe_, output);
    say(fmt::format("finished  {} has the result of this recipe, {}{}", output.string(),
                    counted(finished.step, "step"), is_whole ? "; nothing to do" : ""));
    say(fmt::format("          to continue, {}; to start over and replace it, overwrite=true",
                    finished.continue_hint));
    if (samples.empty()) return;
    say("samples   " + lacking_answers(std::ssize(samples), checkpoint_, can_answer));
    if (!can_answer) return;
    open_session();
    restore();
    EventLog log(output / kLogName, std::numeric_limits<int64_t>::max());
    const int64_t left = answer_samples(samples, finished.step, log);
    report();
    if (left > 0) throw stopped_before_the_answers(recipe_, claim_->path(), finished.result_step);
  }

  void restore() try { restore_states(checkpoint_); } catch (const Error& error) {
    refuse_states(checkpoint_, recipe_, error);
  }

  // Restores the checkpoint to train on; returns the steps already done.
  int64_t resume() {
    const CheckpointInfo now = checkpoint_info(read_checkpoint_info(checkpoint_).step);
    restore();
    for (const std::string& line : resume_warnings(checkpoint_, now, recipe_.options)) warn(line);
    return now.step;
  }

  void restore_states(const fs::path& checkpoint) {
    restore_checkpoint(
        checkpoint, states(), [this] { crew_->learner_restored(); }, crew_->ops());
    crew_->restored();
  }

  // What a checkpoint written by this run records about it.
  CheckpointInfo checkpoint_info(int64_t step) const {
    CheckpointInfo info = info_;
    info.step = step;
    if (info.watch_width > 0) info.watch = watch_.state(data_.inputs.held_out);
    return info;
  }

  StateSource states() {
    return [this](const StateVisitor& visitor) { crew_->visit(visitor); };
  }

  int64_t answer_samples(const std::vector<size_t>& samples, int64_t step, EventLog& log) {
    const int64_t left = jackscrew::answer_samples(crew_->session(), files_, tokenizer_, data_,
                                                   samples, console_, step, log);
    if (const fs::path* output = claim_->find()) log.put_back(*output);  // answers take minutes
    return left;
  }

  // Returns false where a stop has cut the evaluation short: a resumed run then makes it.
  bool evaluate_now(int64_t step) {
    if (data_.evaluation.size() == 0) return true;
    wait_for_result();
    const Stopwatch watch;
    const auto result = evaluate_run(*crew_, data_.evaluation, console_.style, [this] {
      if (console_.stop_requested() && !has_begun_) stop_before_the_first_step();
      return console_.stop_requested();
    });
    if (!result) return false;
    if (!std::isfinite(result->loss)) {
      end_as_diverged(step, step, result->loss,
                      fmt::format("evaluation after step {}: loss {} is not finite", step,
                                  plain_number(result->loss)));
    }
    log_->evaluated(step, *result);
    watch_.evaluated(step, result->loss);
    pace_.evaluated(watch.seconds());
    return true;
  }

  void save_now(int64_t step) {
    if (step == saved_step_) return;
    wait_for_result();
    require_finite_parameters(step);
    const fs::path before = claim_->path();
    if (step < total_steps_ && !console_.stop_requested()) crew_->reserve_master_files();
    write_checkpoint(before, checkpoint_info(step), recipe_.to_yaml(), states(), crew_->ops());
    const fs::path output = claim_->path();  // may have been moved meanwhile
    checkpoint_ = checkpoint_path(output, step);
    saved_step_ = step;
    watch_.saved(step);
    remove_replaced(output, own_, checkpoint_, recipe_.save_total_limit,
                    recipe_.load_best_model_at_end ? best_checkpoint() : fs::path());
    own_ = step;
    log_->saved(step, checkpoint_);  // and what could not be removed
  }

  [[noreturn]] void stop_before_the_first_step() {
    if (start_.finished) {
      throw stopped_before_the_answers(recipe_, claim_->path(), start_.finished->result_step);
    }
    const bool is_first = checkpoint_.empty();
    const std::string hint = is_first ? "this command saved nothing; run it again" : how_to_go_on();
    throw Error(ErrorKind::interrupted,
                fmt::format("stopped before {} step", is_first ? "the first" : "another"),
                hint_after_stop(crew_->layout().ranks(), hint));
  }

  // The checkpoint of the best evaluation that has one; empty before the first.
  fs::path best_checkpoint() {
    return watch_.kept() ? checkpoint_path(claim_->path(), watch_.kept()->step) : fs::path();
  }

  // Takes a request to save, which is then fulfilled.
  bool must_save(int64_t done, bool last) {
    if (take_save_request(console_, *claim_)) return true;
    if (recipe_.load_best_model_at_end && (last || watch_.beats_kept(done))) return true;
    return recipe_.save_steps > 0 && (last || done % recipe_.save_steps == 0);
  }

  // Waits for the device, and ends the run if a step was not finite.
  StepResult wait_for_result() {
    const Stopwatch watch;
    const StepResult result = crew_->result();
    log_->waited(watch.seconds());
    if (result.finite) return result;
    const int64_t step = result.step + 1;
    const std::string what = fmt::format(
        "step {}: loss {} with gradient norm {} is not finite; the step was not applied", step,
        plain_number(result.loss), plain_number(result.grad_norm));
    end_as_diverged(step, result.step, result.loss, what);
  }

  // Returns the number of steps done in the end.
  int64_t run_steps(int64_t first) {
    pace_.begin(first);
    int64_t done = first;
    while (done < total_steps_ && !watch_.out_of_patience()) {
      const bool ends_run = done + 1 == total_steps_ && data_.evaluation.size() == 0;
      if (ends_run) console_.enter(RunPhase::writes_result);
      train_step(done++);
      if (done % recipe_.logging_steps == 0 || done == total_steps_) {
        const StepResult result = wait_for_result();
        log_->step(done, result, pace_.seconds_left(done));
        watch_.logged(result.loss);
        if (watch_.losses_too_high()) {
          end_as_diverged(done, done, result.loss,
                          fmt::format("step {}: {}", done, watch_.why_given_up(result.loss)));
        }
      }
      const bool complete = !pace_.evaluates_after(done) || evaluate_now(done);
      const bool last = complete && (done == total_steps_ || watch_.out_of_patience());
      if (last) console_.enter(RunPhase::writes_result);
      if (must_save(done, last)) pace_.save([&] { try_to_save(done); });
      if (console_.stop_requested() && !last) stop(done);
    }
    if (done < total_steps_) say("stopped   " + watch_.why_stopped(done > first));
    return done;
  }

  // Its batch ends with it: memory is counted for a step's or an evaluation's, not for both.
  void train_step(int64_t step) {
    const Stopwatch watch;
    const StepBatch batch = sampler_->step(step);
    do_step(batch, step);
    for (const LearnerEvent& event : crew_->take_events()) log_->event(step, event);
    log_->worked(batch, watch.seconds());
  }

  // On a terminal, a long step shows how far it is.
  void do_step(const StepBatch& batch, int64_t step) try {
    ProgressBar bar(std::cerr, step_style(console_.style),
                    fmt::format("step {}/{}", step + 1, total_steps_),
                    crew_->session().block_passes(batch), "blocks");
    crew_->accumulate(batch, schedule_.rate(step), step, bar.callback());
    bar.clear();
    crew_->apply(recipe_.weight_decay);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::non_finite) throw;
    // The learner found a value that is not finite, left by earlier steps.
    end_as_diverged(step, step, NAN, fmt::format("after step {}: {}", step, error.what()),
                    error.hint());
  }

  // Restores the state of the best evaluation, if the recipe asks for it and it is another one.
  // Returns the step whose states are the result.
  int64_t take_best(int64_t done) {
    if (!recipe_.load_best_model_at_end) return done;
    if (const std::string lost = watch_.best_not_kept(done); !lost.empty()) warn(lost);
    if (watch_.result_step(done) == done) return done;
    fs::path path;
    or_leave_elsewhere(done, [&] { path = best_checkpoint(); });
    std::error_code unreachable;
    if (!fs::exists(path, unreachable)) {
      warn(path.string() + " is gone: the result is not that of the best evaluation");
      return done;
    }
    // The last states may be in no checkpoint yet: save them before the best replace them.
    if (const fs::path last = checkpoint_path({}, done); checkpoint_.filename() != last) {
      or_leave_elsewhere(done, [&] {
        write_patiently(
            console_, last.string(), *claim_, [&] { save_now(done); }, [] {});
      });
    }
    restore_states(path);
    saved_step_ = done;
    log_->takes_best(watch_.kept()->step, watch_.kept_text());
    return watch_.kept()->step;
  }

  // `updates`: how many came before what went wrong.
  [[noreturn]] void end_as_diverged(int64_t step, int64_t updates, double loss,
                                    const std::string& what, const std::string& hint = {}) {
    log_->failed(step, what, loss);
    report();
    throw Error(ErrorKind::non_finite, what,
                hint_after_non_finite(recipe_, updates, hint, newest()));
  }

  // Finite gradients may make weights non-finite, which must not overwrite good ones.
  void require_finite_parameters(int64_t step) {
    const std::string name = crew_->non_finite_parameter();
    if (name.empty()) return;
    end_as_diverged(step, step, NAN, fmt::format("step {}: {} is no longer finite", step, name));
  }

  void finish(int64_t done) {
    console_.enter(RunPhase::writes_result);
    const int64_t result = take_best(done);
    const bool may_learn = recipe_.learning_rate > 0;  // with 0 nothing is to be gained
    if (const std::string text = watch_.nothing_gained(); may_learn && !text.empty()) warn(text);
    require_finite_parameters(done);
    remove_abandoned(*claim_, own_);  // before there is a result whose end they would pass for
    write_result(done);
    has_result_ = true;
    console_.enter(RunPhase::answers);
    log_->ended(done, *claim_);
    end_move(claim_->path());
    write_if_possible(kReportName, [&] { write_report(claim_->path()); });  // it may be killed now
    const int64_t left = answer_samples(all_samples(data_), done, log_->events());
    if (left > 0) try_to_save(done);  // a repeated command gives the rest from it
    report();
    if (left > 0) throw stopped_before_the_answers(recipe_, claim_->path(), result);
  }

  // A full disk ends no run: the next checkpoint may fit, and so may the result alone.
  void try_to_save(int64_t step) {
    write_or_warn(checkpoint_path({}, step).string(), [&] { save_now(step); });
  }

  [[noreturn]] void stop(int64_t done) {
    or_leave_elsewhere(done, [&] { save_now(done); });
    throw Error(ErrorKind::interrupted, fmt::format("stopped after step {}", done), how_to_go_on());
  }

  fs::path newest() { return claim_->present(checkpoint_); }
  std::string how_to_go_on() { return jackscrew::how_to_go_on(recipe_, start_, newest()); }

  void write_result(int64_t done) try {
    write_patiently(
        console_, "the result", *claim_,
        [&] {
          jackscrew::write_result(*crew_, files_, tokenizer_, format_, claim_->path(),
                                  !start_.writes_again.empty());
        },
        [&] { try_to_save(done); });
  } catch (const Error& error) {
    if (!may_save_after(error)) throw;
    if (saved_step_ != done) leave_elsewhere(done, error);
    throw Error(console_.stop_requested() ? ErrorKind::interrupted : error.kind(),
                fmt::format("the result is not written: {}", error.what()), how_to_go_on());
  }

  void or_leave_elsewhere(int64_t step, const std::function<void()>& save) try {
    save();
  } catch (const std::exception& exception) {
    const Error error = error_of(exception);
    if (!may_save_after(error)) throw;
    leave_elsewhere(step, error);
  }

  // Writes the states to another disk, when nothing more can be written to output_dir.
  [[noreturn]] void leave_elsewhere(int64_t step, const Error& why) {
    const ErrorKind kind = console_.stop_requested() ? ErrorKind::interrupted : why.kind();
    write_elsewhere(kind, why, [&](const fs::path& directory) {
      return write_checkpoint(directory, checkpoint_info(step), recipe_.to_yaml(), states(),
                              crew_->ops());
    });
  }

  Recipe recipe_;
  TrainConsole console_;
  std::optional<OutputClaim> claim_;
  ModelFiles files_;
  Tokenizer tokenizer_;
  ChatFormat format_;
  RunData data_;
  std::optional<BatchSampler> sampler_;
  RunStart start_;
  fs::path checkpoint_;  // newest one begun from or written; empty: none
  int64_t total_steps_ = 0;
  Schedule schedule_;
  SessionPlan plan_;
  DiskPlan disk_;
  std::optional<Crew> crew_;
  CheckpointInfo info_;  // of this run's checkpoints, as of step 0
  std::optional<RunLog> log_;
  RunWatch watch_;
  bool has_begun_ = false;   // the steps
  bool has_result_ = false;  // in output_dir, and nothing is left to train
  RunPace pace_;
  int64_t own_ = 0;          // later checkpoints in output_dir are not this run's
  int64_t saved_step_ = -1;  // whose states checkpoint_ has: the present ones may be the best
};

}  // namespace

void train(const Recipe& recipe, const TrainConsole& console, Transport* transport) {
  for (const char* name : {"model", "data", "output_dir"}) recipe.options.require(name, "train");
  std::shared_ptr<Trainer> trainer;
  const auto dismiss_or = [&](const auto& error_of_loss) {
    try {
      dismiss(transport);
    } catch (const Error& lost) {
      throw RanksLost(error_of_loss(lost), trainer);
    }
  };
  try {
    trainer = std::make_shared<Trainer>(recipe, console, transport);
    trainer->run();
  } catch (const std::exception& exception) {
    const bool lost = trainer && trainer->is_in_common_work();
    const Error error = trainer ? trainer->as_told(error_of(exception), lost) : error_of(exception);
    if (lost) throw RanksLost(error, trainer);
    const bool is_own = is_own_error(exception);
    if (console.report && is_own) console.report(error);
    dismiss_or([&](const Error&) { return error; });  // the first error says more
    if (is_own) throw Error(error);
    throw;
  }
  dismiss_or([&](const Error& lost) { return trainer->as_told(lost, true); });
  trainer->write_exports();
}

}  // namespace jackscrew
