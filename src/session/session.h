// Session: everything that a run holds on one device, and the work on it. The same class plans (on
// the plan device, without arithmetic) and runs.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/progress_callback.h"
#include "data/batch.h"
#include "kernels/device.h"
#include "model/stage.h"
#include "optim/gradient_norm.h"
#include "parallel/lanes.h"
#include "parallel/peers.h"
#include "recipe/recipe.h"
#include "session/micro_batch_buffers.h"
#include "session/model_files.h"
#include "session/place.h"

namespace jackscrew {

class FileBacking;

// What a session is for. With the recipe and the model's configuration, it determines every byte
// that the session takes.
struct SessionUse {
  bool training = false;
  int64_t tokens = 0;         // most tokens of a micro-batch
  int64_t max_positions = 0;  // most positions of a sequence
  // The last of these positions: of tokens that are added to a sequence one by one (model/rope.h).
  int64_t later_positions = 0;
  int64_t kv_tokens = 0;    // capacity of the KV cache; 0: none, or as answer_tokens() says
  int64_t logits_rows = 0;  // rows of logits asked for at once; 0: none
  Place place = {};
  bool compares = false;  // texts under two models, as they are stored
  // For the hint of a session that does not train and does not fit: what would take less memory.
  const char* remedy = "take a smaller sequence_len";
};

// The most tokens of a prompt and its answer in a training session that is asked for logits. Its KV
// cache uses the memory of a step's activations: it gets as many tokens as fit there, but at least
// 128, and at most a sequence. `virtual_tokens` come before them.
int64_t answer_tokens(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens);
// Whether that least room is more than what a step that recomputes has as activations.
bool answers_take_memory(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens);

// The arenas' capacities, found by rehearsing on the plan device.
struct ArenaSizes {
  int64_t scratch = 0, stash = 0, staging = 0;
  int64_t gradients = 0;  // of the buffer that gradients share, with update=fused
  int64_t kv_cache = 0;   // where nothing is trained; else it lies in the stash
};

// The outcome of a rehearsal.
struct SessionPlan {
  ArenaSizes arenas;
  Ledger ledger;  // of the device
  Ledger host;    // beside it: masters, and what other ranks receive and send where the device is a
                  // GPU
  Ledger disk;    // masters that lie in files
  int64_t weight_bytes = 0;  // of this session's weights as they are stored
  int64_t mapped_bytes = 0;  // the part of weight_bytes that stays in file maps
  bool recompute = false;    // what gradient_checkpointing=auto came to
  int64_t gradients = 0;     // how many tensors learn, now or later
  // This is an end of a pipeline, and the embedding, which the other end holds as well, learns.
  bool updates_tied = false;
  Traffic sent;  // at most, in a step of full micro-batches
};

// Throws Error(usage) where a model has no gradients. A stage of it may have none.
void require_learning(const std::string& learner, int64_t gradients);

// What a caller may supply or observe while a session is built.
struct SessionHooks {
  // Wraps the Ops, between the model and the hardware: benchmarks measure what passes.
  std::function<std::unique_ptr<Ops>(std::unique_ptr<Ops>)> wrap = {};
  // Called with the bytes of each weight once it is loaded: the plan's weight_bytes in all.
  ProgressCallback loaded = {};
  // The device to use instead of the recipe's; null: the recipe's.
  std::shared_ptr<const Device> device = {};
  // Connects to the other ranks, if `place` has any; must outlive the session.
  Transport* transport = nullptr;
};

// The device that the recipe chooses. Throws as open_device() does.
std::unique_ptr<Device> open_device(const Recipe& recipe);

// The directory of a rank's master files while a run lasts (master=mmap). The run owns it, and
// empties it.
fs::path masters_directory(const fs::path& output_dir, int rank = 0);

struct StepResult {
  int64_t step = 0;  // counted from 0
  double loss = 0;   // mean over the step's targets, nats
  double grad_norm = 0;
  bool finite = true;
};

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
// step pass_step() and visit(). The sessions of several ranks make these calls together
// (train/crew.h).
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
  const Device& device() const { return *device_; }
  Ops& ops() { return *ops_; }
  Memory& memory() { return *memory_; }
  const Memory& memory() const { return *memory_; }
  // The ledgers that SessionPlan has as `host` and `disk`.
  const Ledger& host_ledger() const { return host_->ledger(); }
  Ledger disk_ledger() const { return disk_ ? disk_->ledger() : Ledger(); }
  // Call before a checkpoint links the master files: reserves disk space for the files that will
  // replace them, so that no later step can run out of it. Throws Error(generic) where the disk has
  // no room.
  void reserve_master_files();
  // The product of all weights that product_exclude does not name.
  const Product& product() const { return arithmetic_->product(); }

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

  // The throughput of large products on the device now, with operands as the run's product rounds
  // them.
  struct Peak {
    DType operands = DType::f32;  // or bf16
    double flops = 0.0;  // per second, two per multiply-add; 0: too little scratch memory to tell
  };
  Peak measure_peak();

  // One optimizer step in two halves: gradients of all micro-batches, then the update. `step`
  // counts from 0 and selects the random numbers. From the first step on that is not finite,
  // updates change nothing.
  // `progress` is called with 1 for each of at most block_passes() passes through a block.
  void accumulate(const StepBatch& batch, double learning_rate, int64_t step,
                  const ProgressCallback& progress = {});
  int64_t block_passes(const StepBatch& batch) const;
  void apply(const WeightDecay& weight_decay);
  // Waits for the device and returns the result of the last step, or of the first that was not
  // finite; in that case updates work again afterwards.
  StepResult result();
  // The second half with its result, for callers that look at every step.
  StepResult update(const WeightDecay& weight_decay) {
    apply(weight_decay);
    return result();
  }

  // On the plan device: passes over a step without its arithmetic, so that what learns, and where
  // it lies, is as after the step. Returns true when that has changed.
  bool pass_step(int64_t step);

  // The name of a learning parameter with a value that is not finite; empty: there is none.
  std::string non_finite_parameter();

  // The sum of the negative log-likelihoods over the batch's targets, nats. `progress` is called
  // with the tokens of each micro-batch.
  double loss_sum(const StepBatch& batch, const ProgressCallback& progress = {});
  // The sums that loss_sum() adds, one for each micro-batch of this replica, which takes every
  // `replicas`th where several ranks evaluate. Empty on a stage without the head.
  std::vector<double> losses(const StepBatch& batch, const ProgressCallback& progress = {});

  // Decodes rows [begin, end) of a weight, at most panel_rows() of f32 in a training session, to
  // `out` on the host, f32 [end - begin, cols].
  void read_weight(const Weight& weight, int64_t begin, int64_t end, const Tensor& out);

  // With several ranks: bytes sent to others so far.
  const Traffic& sent() const { return peers_->sent(); }
  // Seconds that steps have waited for other ranks so far.
  double step_seconds_waited() const { return step_seconds_waited_; }

  // The logits of the last `rows` tokens of one sequence, f32 [rows, vocab], on the device, valid
  // until the next call. With a cache, the tokens follow those already in it; in a training session
  // a step or an evaluation overwrites them, and keep_cached(0) begins anew. All stages of a
  // replica must be asked at once; the first and the last have the logits.
  Tensor logits(std::span<const int32_t> ids, int64_t rows, bool use_cache);
  // Drops from the cache all but its first tokens. Throws Error(generic) where it holds fewer.
  void keep_cached(int64_t tokens);
  int64_t tokens_at_once() const { return use_.tokens - virtual_tokens(); }
  int64_t cached_tokens() const { return std::max<int64_t>(0, cache_.length - virtual_tokens()); }
  // How many virtual tokens the learner puts before every sequence. logits() adds them by itself,
  // and the counts above leave them out; whoever makes batches must add them.
  int64_t virtual_tokens() const { return learner_->virtual_tokens(); }

 private:
  enum class Mode {
    measure,  // on the plan device; arenas measure how much they need
    book,     // on the plan device, with the arenas of the plan
    run
  };
  // `measure` reads only `recompute` of the plan, `book` the arenas as well.
  Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
          const SessionPlan& plan, Mode mode, const SessionHooks& hooks = {});
  static SessionPlan rehearse(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                              bool recompute);
  // Adds room for the virtual tokens before a text whose logits are asked for.
  void reserve_virtual_tokens();
  void build_stage(const Recipe& recipe, const ModelFiles& files, Arena staging,
                   const ProgressCallback& loaded);
  void prepare_training(const std::string& learner);  // the norm of gradients, and their exchange
  void prepare_logits(const ModelConfig& config);     // and the cache, where `use` asks for them
  // The elements of each gradient that this stage has or will have.
  std::vector<int64_t> gradient_sizes();
  // Returns what one step sends.
  Traffic rehearse_work();
  void begin_accumulation(const StepBatch& batch, double learning_rate, int64_t step);
  void accumulate_whole(Context& run, const StepBatch& batch);
  // Accumulates a step that is cut into lanes, or of a model that is cut into stages.
  void accumulate_parts(Context& run, const StepBatch& batch);
  // Forward through this stage with nothing kept for backward; receives from the stage before and
  // sends to the one after.
  Tensor pass_through(Context& run, InFlight& flight, KvCache* cache);
  void pass_forward(Context& run, const MicroBatch& micro_batch, const CountsBefore& before,
                    InFlight& flight);
  void pass_backward(Context& run, InFlight& flight);
  void end_lane(bool last);
  void sum_lanes();
  // The f64 at byte `offset` of the StepScalars on the device.
  double read_sum(size_t offset);
  void write_sum(size_t offset, double sum);
  void apply_parts(const WeightDecay& weight_decay);
  bool is_measured_elsewhere(const WeightSpec& weight) const;
  std::set<std::string> measured_elsewhere() const;
  void visit_tied(const StateVisitor& visitor) const;
  std::vector<Tensor> tied_gradients() const;
  bool updates_tied() const;
  Tensor compute_logits(std::span<const int32_t> ids, int64_t rows, bool use_cache);
  void require_one_update_of_tied() const;
  bool begin_step(Context& run, int64_t step);
  void watch_gradients();
  // The work that is repeated: the first number of its key.
  static constexpr int64_t kMicroBatch = 0, kUpdate = 1, kToken = 2;
  Context context(bool training);
  void write_scalars(const StepScalars& scalars, int64_t bytes);
  StepScalars read_scalars();
  std::unique_ptr<Learner> make_learner(const Recipe& recipe, bool tied);
  void make_host_memory(const Recipe& recipe, bool plans_only);
  // Memory of the host for tensors on their way between stages; empty where there is no need.
  OwnedTensor make_staged(int64_t rows, int64_t cols);
  Arena make_arena(Purpose purpose, int64_t ArenaSizes::*size);

  SessionUse use_;
  std::optional<ArenaSizes> sizes_;  // absent while measuring
  bool recompute_;
  uint64_t seed_;
  double max_grad_norm_;
  std::shared_ptr<const Device> device_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<Memory> host_;
  FileBacking* master_files_ = nullptr;  // the backing of disk_
  std::unique_ptr<Memory> disk_;         // masters in files; null: they lie in host_
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Arithmetic> arithmetic_;
  Arena scratch_;
  int64_t staging_high_water_ = 0;
  Arena shared_gradients_;
  OwnedTensor scalars_;  // StepScalars
  std::vector<InFlight> flights_;
  std::unique_ptr<Peers> peers_;
  double step_seconds_waited_ = 0;
  std::shared_ptr<const WeightSource> source_;  // whose maps hold weights of the stage
  LaneSums lane_sums_;
  std::vector<double> lane_losses_;  // of this replica's lanes that have ended in this step
  std::unique_ptr<Stage> stage_;
  std::optional<GradientNorm> norm_;
  KvCache cache_;
  Arena cache_arena_;  // of the cache where nothing is trained
  LogitsListener logits_listener_;
  OwnedTensor logits_;                      // f32 [logits_rows, vocab]
  OwnedTensor staged_logits_;               // the same on the host, see InFlight
  std::unique_ptr<NoAllocation> step_ban_;  // from accumulate() to apply()
};

}  // namespace jackscrew
