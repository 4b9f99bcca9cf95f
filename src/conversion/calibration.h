// Runs a model on calibration text, block by block, and collects what the layers of each block read
// (as Hessians) and what the block outputs. One block's weights are in memory at a time, and of the
// activations only the residual stream between two blocks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conversion/hessian.h"
#include "data/dataset.h"
#include "kernels/device.h"
#include "model/stage.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/flight.h"
#include "session/model_files.h"

namespace jackscrew {

// The amount of calibration text that is asked for.
struct CalibrationSize {
  int64_t sequences = 128, sequence_len = 512;
};

struct CalibrationText {
  int64_t sequences = 0, sequence_len = 0;
  std::vector<int32_t> ids;  // [sequences, sequence_len]

  int64_t tokens() const { return sequences * sequence_len; }
  CalibrationSize size() const { return {sequences, sequence_len}; }
};

// Cuts the data's examples, laid end to end, into sequences of `sequence_len` tokens and takes up
// to `sequences` of them: evenly spaced where there are more, all where there are fewer. Throws
// Error(data), naming the number of tokens, where the result has fewer than `least`.
CalibrationText calibration_text(const Dataset& data, int64_t sequences, int64_t sequence_len,
                                 int64_t least);

// Up to `sequences` of the text's sequences, evenly spaced.
CalibrationText part_of(const CalibrationText& text, int64_t sequences);

// Throws Error(usage) for a product with which nothing is calibrated.
void check_calibration_product(const std::string& name);

// The Hessians of a block, or of the head: one for each distinct input of its linear layers.
class BlockHessians {
 public:
  const Hessian& of(const WeightSpec& weight) const { return *inputs_.at(reads_.at(weight.name)); }
  // The index of the input that a weight reads; weights that read the same input share it.
  size_t input_of(const WeightSpec& weight) const { return reads_.at(weight.name); }

 private:
  friend class CalibrationRun;
  friend class ObservedProduct;
  std::vector<std::unique_ptr<Hessian>> inputs_;
  std::map<std::string, size_t> reads_;  // weight name -> index into inputs_
  // Whether the input that was prepared last, once for all weights that read it, is to be counted.
  bool has_new_input_ = false;
};

// What the products of a run record, and which they skip.
struct Observation {
  BlockHessians* hessians = nullptr;  // to fill, unless null
  std::string_view unread = {};       // module whose outputs nobody reads: not computed
};

// What a CalibrationRun books, bytes.
struct CalibrationMemory {
  int64_t stream = 0;    // the text's residual stream
  int64_t part = 0;      // the part of the model that is loaded, and a batch that passes through it
  int64_t hessians = 0;  // of the part's inputs
  int64_t batch = 0;     // observe()'s copy of a batch
};

class CalibrationRun {
 public:
  // Computes on the CPU, with the recipe's threads and product (f32 or bf16) and all weights in
  // f32. `files` and `text` must outlive it. Throws Error(usage) for another product.
  CalibrationRun(const Recipe& recipe, const ModelFiles& files, const CalibrationText& text);
  ~CalibrationRun();

  // What a run over so much text books while it has loaded this part of the model. Throws as the
  // constructor.
  static CalibrationMemory plan(const Recipe& recipe, const ModelFiles& files,
                                const CalibrationSize& text, const StageSpec& spec);

  Ops& ops() { return *ops_; }
  Memory& memory() { return memory_; }

  // f32 [tokens, hidden]: the residual stream before the next block; valid once a block has begun.
  const Tensor& stream() const { return stream_.view(); }
  // Continues before block `next`, or before the head if `next` is the number of blocks. The caller
  // has filled the stream with what is read there.
  void resume_at(int64_t next) { next_block_ = next; }

  // Loads the next block; the first call also embeds the text.
  void begin_block();
  // The linear layers of the block, in the model's order. The caller may change them through
  // as_f32().
  std::vector<const Weight*> linears() const;
  // Runs the block without changing the stream, and returns the Hessians of its inputs.
  BlockHessians observe(const ProgressCallback& progress);
  // Runs the block with its present weights and replaces the stream by its outputs, which the next
  // block reads.
  void advance(const ProgressCallback& progress);
  // observe() and advance() in one pass, for a block that stays as it is.
  BlockHessians observe_and_advance(const ProgressCallback& progress);

  // Loads the head in the block's place, once the last block has been advanced. The head's input is
  // observed; its product is not computed.
  void begin_head();
  const Weight& head() const;
  BlockHessians observe_head(const ProgressCallback& progress);

 private:
  struct Loaded;  // a part of the model, with its arenas
  // A part on the plan device, through which a batch has passed: its arenas have their sizes.
  static std::unique_ptr<Loaded> measured(const Recipe& recipe, const ModelFiles& files,
                                          const CalibrationSize& text, const StageSpec& spec,
                                          Memory& memory, Ops& ops, const Arithmetic& arithmetic);
  std::unique_ptr<Loaded> load(const StageSpec& spec);
  // Calls use(batch, first) for every batch, first being its first token.
  template <class Use>
  void run(const Use& use, const ProgressCallback& progress);
  MicroBatch batch_at(int64_t first_sequence) const;
  std::string_view head_module() const;  // the module of the weight that serves as the head
  // Runs body() and returns the Hessians that it filled. `where` names the layer in errors.
  template <class Body>
  BlockHessians observed(const Body& body, std::string_view unread, const std::string& where);

  const ModelFiles& files_;
  Recipe recipe_;
  const CalibrationText& text_;
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Ops> ops_;
  Observation observation_;
  std::unique_ptr<Arithmetic> arithmetic_;
  int64_t next_block_ = 0;
  OwnedTensor stream_;  // f32 [tokens, hidden], the residual stream before the block
  std::unique_ptr<Loaded> block_;
};

}  // namespace jackscrew
