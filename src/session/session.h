// Session: everything that a run holds on one device, and the work on it. The same class plans (on
// the plan device, without arithmetic) and runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress_callback.h"
#include "session/device_peak.h"
#include "session/model_files.h"
#include "session/sequence_logits.h"
#include "session/training_step.h"

namespace jackscrew {

// The outcome of a rehearsal.
struct SessionPlan {
  ArenaSizes arenas;
  Ledger ledger;  // of the device
  Ledger host;    // beside it: masters, and what other ranks receive and send where the device is a
                  // GPU
  Ledger disk;    // masters that lie in files
  int64_t decomposition_bytes = 0;  // of the host, in no ledger (Learner::decomposition_bytes())
  int64_t weight_bytes = 0;         // of this session's weights as they are stored
  int64_t mapped_bytes = 0;         // the part of weight_bytes that stays in file maps
  bool recompute = false;           // what gradient_checkpointing=auto came to
  int64_t gradients = 0;            // how many tensors learn, now or later
  // This is an end of a pipeline, and the embedding, which the other end holds as well, learns.
  bool updates_tied = false;
  Traffic sent;  // at most, in a step of full micro-batches
};

// Throws Error(usage) where a model has no gradients. A stage of it may have none.
void require_learning(const std::string& learner, int64_t gradients);

// What a caller may supply or observe while a session is built.
struct SessionHooks {
  OpsWrapper wrap = {};  // benchmarks measure what passes
  // Called with the bytes of each weight once it is loaded: the plan's weight_bytes in all.
  ProgressCallback loaded = {};
  // The device to use instead of the recipe's; null: the recipe's.
  std::shared_ptr<const Device> device = {};
  // Connects to the other ranks, if `place` has any; must outlive the session.
  Transport* transport = nullptr;
};

// The directory of a rank's master files while a run lasts (master=mmap). The run owns it, and
// empties it.
fs::path masters_directory(const fs::path& output_dir, int rank = 0);

// The calls, in order, of a run that trains:
//   rehearse(), then the constructor with that plan
//   restored(), if an adapter was loaded into it
//   learner().begin_run()
//   where the run continues: visit() to overwrite the states; learner_restored() and restored()
//   for every step: accumulate(), apply(), learner().take_events(); result() when somebody asks
//   between steps: loss_sum() or losses(); keep_cached() and logits(); for a checkpoint result(),
//   non_finite_parameter(), reserve_master_files() and visit()
//   at the end, for the result: visit() and read_weight()
// To evaluate or generate: rehearse(), the constructor, restored() after an adapter, then losses or
// logits. To learn what files a run will write: planned(), learner().begin_run(), and for every
// step pass_step() and visit(). Steps are for a session that trains, logits for one whose use has
// logits_rows. The sessions of several ranks make these calls together (train/crew.h).
class Session {
 public:
  // Builds a session on the recipe's device, with memory reserved as planned. Throws
  // Error(does_not_fit) before anything is allocated when plan.ledger.peak exceeds device_memory
  // (require_fit() says more, and earlier).
  Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
          const SessionPlan& plan, const SessionHooks& hooks = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Runs loading, and one step, evaluation or generation as `use` says, on the plan device.
  static SessionPlan rehearse(const Recipe& recipe, const ModelFiles& files, const SessionUse& use);
  // A session on the plan device: nothing is read or computed, and the states that visit() shows
  // have names, types and shapes as in a run, but no values. pass_step() advances it.
  static std::unique_ptr<Session> planned(const Recipe& recipe, const ModelFiles& files,
                                          const SessionUse& use);

  Stage& stage() { return *stage_; }
  Learner& learner() { return *learner_; }
  const Device& device() const { return device_.hardware(); }
  Ops& ops() { return device_.ops(); }
  Memory& memory() { return device_.memory(); }
  const Memory& memory() const { return device_.memory(); }
  // The ledgers that SessionPlan has as `host` and `disk`.
  const Ledger& host_ledger() const { return device_.host().ledger(); }
  Ledger disk_ledger() const { return device_.disk_ledger(); }
  // Call before a checkpoint links the master files: reserves disk space for the files that will
  // replace them, so that no later step can run out of it. Throws Error(generic) where the disk has
  // no room.
  void reserve_master_files() { device_.reserve_each_master_anew(); }
  // The product of all weights that product_exclude does not name.
  const Product& product() const { return arithmetic_.product(); }

  // visit() shows everything that a checkpoint holds. After overwriting it, call
  // learner_restored() once the states of the role `learner` are in place, then restored() once
  // the others are.
  void visit(const StateVisitor& visitor) const;
  void learner_restored();
  void restored();

  // Called by logits(), so that the other stages' sessions can be asked too; calls compute() once.
  using LogitsListener = std::function<void(std::span<const int32_t> ids, int64_t rows,
                                            bool use_cache, const std::function<void()>& compute)>;
  void set_logits_listener(LogitsListener listener) { logits_listener_ = std::move(listener); }

  // With operands as the run's product rounds them.
  DevicePeak measure_peak();

  // One optimizer step in two halves: gradients of all micro-batches, then the update. `step`
  // counts from 0 and selects the random numbers. From the first step on that is not finite,
  // updates change nothing.
  // `progress` is called with 1 for each of at most block_passes() passes through a block.
  void accumulate(const StepBatch& batch, double learning_rate, int64_t step,
                  const ProgressCallback& progress = {}) {
    step_->accumulate(batch, learning_rate, step, progress);
  }
  int64_t block_passes(const StepBatch& batch) const { return step_->block_passes(batch); }
  void apply(const WeightDecay& weight_decay) { step_->apply(weight_decay); }
  // Waits for the device and returns the result of the last step, or of the first that was not
  // finite; in that case updates work again afterwards.
  StepResult result() { return step_->result(); }
  // The second half with its result, for callers that look at every step.
  StepResult update(const WeightDecay& weight_decay) {
    apply(weight_decay);
    return result();
  }

  // On the plan device: passes over a step without its arithmetic, so that what learns, and where
  // it lies, is as after the step. Returns true when that has changed.
  bool pass_step(int64_t step) { return step_->pass(step); }

  // The name of a learning parameter with a value that is not finite; empty: there is none.
  std::string non_finite_parameter();

  // The sum of the negative log-likelihoods over the batch's targets, nats. `progress` is called
  // with the tokens of each micro-batch.
  double loss_sum(const StepBatch& batch, const ProgressCallback& progress = {});
  // The sums that loss_sum() adds, one for each micro-batch of this replica, which takes every
  // `replicas`th where several ranks evaluate. Empty on a stage without the head.
  std::vector<double> losses(const StepBatch& batch, const ProgressCallback& progress = {}) {
    return passes_->losses(batch, progress);
  }

  // Decodes rows [begin, end) of a weight, at most panel_rows() of f32 in a training session, to
  // `out` on the host, f32 [end - begin, cols].
  void read_weight(const Weight& weight, int64_t begin, int64_t end, const Tensor& out);

  // With several ranks: bytes sent to others so far.
  const Traffic& sent() const { return peers_.sent(); }
  // Seconds that steps have waited for other ranks so far.
  double step_seconds_waited() const { return step_ ? step_->seconds_waited() : 0.0; }

  // The logits of the last `rows` tokens of one sequence, f32 [rows, vocab], on the device, valid
  // until the next call. With a cache, the tokens follow those already in it; in a training session
  // a step or an evaluation overwrites them, and keep_cached(0) begins anew. All stages of a
  // replica must be asked at once; the first and the last have the logits.
  Tensor logits(std::span<const int32_t> ids, int64_t rows, bool use_cache);
  // Drops from the cache all but its first tokens. Throws Error(generic) where it holds fewer.
  void keep_cached(int64_t tokens) { logits_->keep_cached(tokens); }
  int64_t tokens_at_once() const { return use_.tokens - virtual_tokens(); }
  int64_t cached_tokens() const { return logits_->cached_tokens(); }
  // How many virtual tokens the learner puts before every sequence. logits() adds them by itself,
  // and the counts above leave them out; whoever makes batches must add them.
  int64_t virtual_tokens() const { return learner_->virtual_tokens(); }

 private:
  // `measure` reads only `recompute` of the plan, `book` the arenas as well.
  Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
          const SessionPlan& plan, SessionMode mode, const SessionHooks& hooks = {});
  static SessionPlan rehearse(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                              bool recompute);
  // Does all that the use may ask for, at its largest. Returns what one step sends.
  Traffic rehearse_work();

  std::unique_ptr<Learner> make_learner(const Recipe& recipe, bool tied);
  // Completes use_: room for virtual tokens before a text, and for answers in a run that trains.
  void reserve_tokens(const ModelConfig& config);
  std::vector<InFlight> make_flights(const Recipe& recipe, int64_t hidden_size);
  void build_stage(const Recipe& recipe, const ModelFiles& files, const ProgressCallback& loaded);

  SessionUse use_;
  SessionDevice device_;
  Arena shared_gradients_;  // of the learner, with update=fused
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<Optimizer> optimizer_;
  Arithmetic arithmetic_;
  Peers peers_;
  std::shared_ptr<const WeightSource> source_;  // whose maps hold weights of the stage
  int64_t staging_bytes_ = 0;                   // the most that panels on their way have taken
  std::unique_ptr<Stage> stage_;
  std::optional<StagePasses> passes_;
  std::optional<TrainingStep> step_;      // in a session that trains
  std::optional<SequenceLogits> logits_;  // in one that is asked for logits
  LogitsListener logits_listener_;
};

}  // namespace jackscrew
