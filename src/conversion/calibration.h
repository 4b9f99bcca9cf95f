// Runs a model on calibration text, layer by layer, and collects what the linear layers read, as
// Hessians. A layer that was changed in between, rounded, is read by those after it, within its
// block too; every product is computed once. One block's weights are in memory at a time, and of
// the text its residual stream and what its next product reads.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "conversion/calibration_text.h"
#include "conversion/hessian.h"
#include "kernels/device.h"
#include "model/stage.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/micro_batch_buffers.h"
#include "session/model_files.h"

namespace jackscrew {

// Throws Error(usage) for a product with which nothing is calibrated.
void check_calibration_product(const std::string& name);

// The bytes that a CalibrationRun books.
struct CalibrationMemory {
  int64_t text = 0;  // the text's residual stream, and what its next product reads
  int64_t part = 0;  // the part of the model that is loaded, and a batch that passes through it
};

// The text passes a block in steps: with the weights of one part as they are then, up to what the
// next part reads.
struct BlockPass {
  std::optional<BlockPart> passed, observed;
};
inline constexpr std::array kBlockPasses = {
    BlockPass{std::nullopt, BlockPart::qkv}, BlockPass{BlockPart::qkv, BlockPart::o},
    BlockPass{BlockPart::o, BlockPart::gate_up}, BlockPass{BlockPart::gate_up, BlockPart::down},
    BlockPass{BlockPart::down, std::nullopt}};

class CalibrationRun {
 public:
  // Computes on the CPU, with the recipe's threads and product (f32 or bf16) and all weights in
  // f32. `files` and `text` must outlive it. Throws Error(usage) for another product.
  CalibrationRun(const Recipe& recipe, const ModelFiles& files, const CalibrationText& text);
  ~CalibrationRun();

  // The memory of a run over so much text while it has loaded this part of the model. Throws as the
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
  // The linear layers of the block, by part. The caller may change them through as_f32().
  std::vector<const Weight*> linears(BlockPart part) const;
  // Returns the Hessian of what the linear layers of a part read. Call for each of kBlockParts, in
  // their order: the text passes the part before, as its weights are then.
  Hessian observe(BlockPart part, const ProgressCallback& progress);
  // Lets the text pass the last part. The stream is then what the next block reads.
  void end_block(const ProgressCallback& progress);

  // Loads the head in the block's place, once the last block has ended.
  void begin_head();
  const Weight& head() const;
  Hessian observe_head(const ProgressCallback& progress);

 private:
  struct Loaded;  // a part of the model, with its arenas
  // A part on the plan device, through which a batch has passed: its arenas have their sizes.
  static std::unique_ptr<Loaded> measured(const Recipe& recipe, const ModelFiles& files,
                                          const CalibrationSize& text, const StageSpec& spec,
                                          Memory& memory, Ops& ops, const Arithmetic& arithmetic);
  std::unique_ptr<Loaded> load(const StageSpec& spec);
  // Calls use(batch, first, end) for every batch: tokens [first, end) of the text.
  template <class Use>
  void run(const Use& use, const ProgressCallback& progress);
  MicroBatch batch_at(int64_t first_sequence) const;
  // Takes the text through a step, and adds what is observed to the Hessian, if one is given.
  void pass(const BlockPass& step, Hessian* hessian, const ProgressCallback& progress);

  const ModelFiles& files_;
  Recipe recipe_;
  const CalibrationText& text_;
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Arithmetic> arithmetic_;
  int64_t next_block_ = 0;
  OwnedTensor stream_;  // f32 [tokens, hidden], the residual stream before or within the block
  OwnedTensor kept_;    // kept_input() of the text
  std::unique_ptr<Loaded> block_;
};

}  // namespace jackscrew
