// Learners: who learns, and how. One Learner coordinates a run; it makes one slot per weight of the
// model. A slot sees the weight's forward and backward and decides what to accumulate and how to
// apply it; everything it keeps is reached through visit(). Adding a learner is a pair of files
// here and a line in the table of learner.cc.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_object.h"
#include "base/options.h"
#include "learners/adapter_merge.h"
#include "optim/optimizer.h"
#include "products/product.h"

namespace jackscrew {

class LearnerSlot {
 public:
  virtual ~LearnerSlot() = default;

  // Whether anything here learns: if not, backward() is never called.
  virtual bool learns() const = 0;
  // The approximate arithmetic of backward(), in units of the forward product: the gradient of the
  // whole weight, or of a factor on each of its rows, costs one.
  virtual double gradient_products() const { return learns() ? 1.0 : 0.0; }
  // Whether forward() adds to y.
  virtual bool adds_to_output() const { return false; }
  // Whether forward() does more with the product than add to it (DoRA scales it): y then comes in
  // as the product alone, and product_gradient() leads the gradient back through forward().
  virtual bool transforms_output() const { return false; }
  // With Accumulate::yes, adds the learner's own branch to y, f32, after the product's forward.
  // With Accumulate::no, which no slot is called with that transforms_output(), writes the branch
  // to y, of the product's activation_dtype(), rounded once; the product is then added to it.
  virtual void forward(Context&, const Operand&, const Tensor& /*y*/, Accumulate) {}
  // Returns the gradient of the product, given dy, the gradient of forward()'s result; both
  // [tokens, out] and of one dtype. The result may lie in context.scratch. Called only where
  // transforms_output().
  virtual Tensor product_gradient(Context&, const Tensor& dy) const { return dy; }
  // For the embedding: may change the gathered vectors x, f32 [tokens, hidden]. `positions`,
  // i32 [tokens], are the tokens' places in their sequences, as in Gradient::positions.
  virtual void gathered(Context&, const Tensor& /*positions*/, const Tensor& /*x*/) {}
  // Accumulates what it needs of the product's gradient. The learner's branch adds its share of the
  // input's gradient to `dx`, after the product's own; null when nobody below needs it.
  virtual void backward(const Gradient&, const Tensor* /*dx*/) {}
  // Called when the gradient is complete (Context::completes_gradients): in this step backward()
  // will not be called again, nor the weight be read.
  virtual void complete(Context&) {}
  // Updates from what was accumulated over the step, and clears it.
  virtual void apply(Context&, double /*weight_decay*/) {}
  virtual void visit(const StateVisitor&) const {}
  // The parameters behind visit() were overwritten: brings everything that depends on them in line.
  virtual void restored(Context&) {}
};

// A sum over the pipeline stages of a model: `add` is given the sum of the stages before and
// returns it with this stage's share added; the call returns the sum over all stages. All stages
// must make these calls in the same order.
using SumOverStages = std::function<double(const std::function<double(double)>& add)>;

// What slots are made with.
struct LearnerContext {
  Memory& memory;   // of the device
  Memory& masters;  // where exact values wait while others are trained
  Arena& scratch;   // for what ends with the call
  StepScalars* scalars;
  Ops& ops;
  const Optimizer& optimizer;
  uint64_t seed = 0;
  bool training = true;  // false: slots take no memory for gradients and optimizer states
  // Writes a weight's values from before its storage rounded them, f32 [rows, cols]: the first
  // values of a master.
  std::function<void(const Weight&, const Tensor&)> original = {};
  Arena* shared_gradients = nullptr;  // see GradientBuffer; FusedLearner sets it for its slots
  // How many sums of lanes wait at once (waiting_lane_sums() of parallel/lanes.h) beside each
  // gradient, and beside each window.
  int64_t lane_sums = 0, window_lane_sums = 0;
  SumOverStages sum_over_stages = [](const std::function<double(double)>& add) { return add(0.0); };
  // Whether another stage holds the weight as well, and adds what is measured of it to such sums.
  std::function<bool(const WeightSpec&)> is_measured_elsewhere = [](const WeightSpec&) {
    return false;
  };
  // The token ids of a text. Throws Error(model) where the model has no tokenizer.
  std::function<std::vector<int32_t>(const std::string& text)> encode = {};
  double learning_rate = 0.0;  // of the run, before its schedule
  // The type to which the slot may round the operands of its own products:
  // Product::operand_dtype() of the product that multiplies the weight.
  DType operand_dtype = DType::f32;
};

// Lines for the user, and warnings.
struct LearnerNotes {
  std::vector<std::string> lines, warnings;
};

// A line for the log.
struct LearnerEvent {
  std::string name;  // the kind of event: "rotate"
  JsonObject fields;
};

class Learner {
 public:
  virtual ~Learner() = default;
  virtual const char* name() const = 0;

  // The calls, in order:
  //   plan(), then make_slot() for every weight; in a session that trains, reserve()
  //   the slots' restored(), if an adapter was loaded into what they visit
  //   in a run that trains: begin_run()
  //   where it continues: restored(), once the learner's own states are overwritten, then the
  //   slots' restored(), once theirs are
  //   notes()
  //   for every step: begin_step(); the slots' forward() and backward(), and complete() as soon as
  //   a gradient is complete, which is when update=fused updates; the slots' apply();
  //   overlap_with_step(); take_events()
  // A rehearsal calls no begin_run(): it takes a step, then enter_rehearsal_case() and another step
  // for each of rehearsal_cases().
  // At any time, before plan() as well: changes(), updates_in_place(), virtual_tokens(),
  // original_model(), masters_in_files(), and adapter() to see whether it is null.

  // Gives all weights of the model before any of them exists, those of other pipeline stages
  // included, for which make_slot() is not called here.
  virtual void plan(std::span<const WeightSpec>) {}
  // Whether this learner changes the values of such a weight: it must then be stored in a format
  // that can be written.
  virtual bool changes(const WeightSpec& weight) const = 0;
  // Whether it changes such a weight where it is stored, in any format that can be written: no
  // exact copy of it needs memory.
  virtual bool updates_in_place(const WeightSpec& /*weight*/) const { return false; }
  // Whether slots are updated as soon as their gradients are complete: then no gradient is left
  // when backward has ended.
  virtual bool updates_in_backward() const { return false; }
  // How many virtual tokens every sequence begins with. Their ids are arbitrary: the slot of the
  // embedding supplies their vectors.
  virtual int64_t virtual_tokens() const { return 0; }
  // The model that LearnerContext::original reads, if it is not the run's own; else empty.
  virtual std::string original_model() const { return {}; }
  // Whether the masters of waiting weights are to be kept in files rather than in memory.
  virtual bool masters_in_files() const { return false; }
  virtual std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) = 0;
  // Called in a session that trains, once all slots exist: allocates for a moment the most memory
  // that the run will need, so that no run fails for want of it after it has begun.
  virtual void reserve(Context&) {}
  // What the largest decomposition of a matrix takes of the host's memory for a moment, beside all
  // that is booked. Called in a session that trains, once all slots exist.
  virtual int64_t decomposition_bytes() const { return 0; }
  // Tells how many steps the run has in all, those before a checkpoint included.
  virtual void begin_run(int64_t /*total_steps*/) {}
  // Prepares step `step` (from 0), outside of any step. True when other slots learn from now on, or
  // a window opens or closes.
  virtual bool begin_step(Context&, int64_t /*step*/) { return false; }
  // Called when the step's work has been issued: what the host does here runs beside the device.
  virtual void overlap_with_step(Context&) {}
  // The number of situations, other than that of the first step, in which a step may take more
  // scratch memory or send more gradients to other ranks; each is rehearsed on the plan device.
  // enter_rehearsal_case() brings one about, and no step leaves it again. Returns false where more
  // learns in it than in any step: it then tells of scratch memory alone, not of what is sent.
  virtual int64_t rehearsal_cases() const { return 0; }
  virtual bool enter_rehearsal_case(Context&, int64_t /*rehearsal_case*/) { return true; }
  // What the learner itself keeps beside its slots; the states have the role `learner`.
  virtual void visit(const StateVisitor&) const {}
  // The states behind visit() were overwritten: brings the slots in line with them.
  virtual void restored(Context&) {}
  // What the user is told before the run. Called after begin_run().
  virtual LearnerNotes notes() const { return {}; }
  // What has happened since the last call, for the log.
  virtual std::vector<LearnerEvent> take_events() { return {}; }
  // Where the result is an adapter rather than a changed model: the contents of PEFT's
  // adapter_config.json, peft_type included, and kBaseStorage; else null. The adapter's tensors are
  // the parameters that the slots visit, under PEFT's names without the prefix "base_model.model.".
  // Weights that such a learner changes are among them: these are f32 whatever `storage` is.
  virtual nlohmann::json adapter() const;
  // How the tensors of such an adapter are merged into a weight. Called after plan().
  virtual WeightMerge merge(const WeightSpec&, const AdapterValues&) const { return {}; }
};

// A setting of a learner that saves memory.
struct Saving {
  const char* setting;  // "name=value"
  const char* remark;   // what it costs
  double cost;          // factor by which training takes longer; it only ranks settings
};

// A row of the table of learners.
struct LearnerEntry {
  const char* name;
  const char* help;
  std::span<const OptionSpec> options;
  std::span<const Saving> savings;  // of one option: adjacent, each saving more than the one before
  std::unique_ptr<Learner> (*make)(const OptionSet& options);
};

std::span<const LearnerEntry> all_learners();
// Throws Error(usage) with the nearest name for an unknown one.
const LearnerEntry& find_learner(std::string_view name);

}  // namespace jackscrew
