#include "conversion/calibration.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/map_guard.h"
#include "base/text.h"
#include "conversion/value_checks.h"
#include "learners/frozen.h"
#include "products/dense.h"
#include "session/stage_loader.h"

namespace jackscrew {

namespace {

// Tokens that pass through a block at once: products of this many rows run at full speed, and their
// activations take a few dozen megabytes in small models and a few hundred in large ones.
constexpr int64_t kBatchTokens = 2048;

std::unique_ptr<const Product> product_of(const std::string& name) {
  check_calibration_product(name);
  return name == "bf16" ? make_bf16_product() : make_f32_product();
}

std::unique_ptr<Device> open_device_of(const Recipe& recipe) {
  return open_device("cpu", {.threads = recipe.threads, .isa = choose_isa(recipe.isa)});
}

int64_t batch_sequences(const CalibrationSize& text) {
  return std::min(text.sequences, std::max<int64_t>(1, kBatchTokens / text.sequence_len));
}

// Whole sequences, laid end to end.
MicroBatch batch_of(std::vector<int32_t> ids, int64_t sequence_len) {
  MicroBatch batch;
  batch.ids = std::move(ids);
  batch.targets.assign(batch.ids.size(), -1);
  batch.cu_seqlens = {0};
  for (int32_t token = 0; token < batch.tokens(); ++token) {
    const auto position = static_cast<int32_t>(token % sequence_len);
    batch.positions.push_back(position);
    if (position + 1 == sequence_len) batch.cu_seqlens.push_back(token + 1);
  }
  return batch;
}

// Whether a part's outputs are added to the residual stream.
bool adds_to_stream(BlockPart part) {
  return part == BlockPart::o || part == BlockPart::down;
}

// What a part reads of so many tokens, at `at`, if that is kept until the part has been rounded:
// attention's output and the MLP's hidden layer. What other parts read, for which this is empty, is
// a norm of the residual stream, computed again as fast as it is copied.
Tensor kept_input(std::optional<BlockPart> part, void* at, int64_t tokens,
                  const ModelConfig& config, const ActivationTypes& types) {
  if (part == BlockPart::down) return {at, types.linear, {tokens, config.intermediate_size}};
  if (part != BlockPart::o) return {};
  return {at, types.attention, {tokens, checked_mul(config.num_attention_heads, config.head_dim)}};
}

// The columns of an f32 matrix that holds either of them.
int64_t kept_columns(const ModelConfig& config, const ActivationTypes& types) {
  const auto row_bytes = [&](BlockPart part) {
    return kept_input(part, nullptr, 1, config, types).bytes();
  };
  return ceil_div(std::max(row_bytes(BlockPart::o), row_bytes(BlockPart::down)),
                  dtype_size(DType::f32));
}

}  // namespace

void check_calibration_product(const std::string& name) {
  if (name == "auto" || name == "f32" || name == "bf16") return;
  throw Error(ErrorKind::usage, fmt::format("product={} cannot calibrate", name),
              "product=f32 or product=bf16");
}

struct CalibrationRun::Loaded {
  // With `measured` null, measures the sizes of the arenas on the plan device.
  Loaded(const Recipe& recipe, const ModelFiles& files, const StageSpec& spec, Memory& memory,
         Ops& ops_of, const Arithmetic& arithmetic, int64_t tokens, int64_t positions,
         const Loaded* measured)
      : ops(ops_of),
        scratch(measured ? Arena(memory, Purpose::workspace, measured->scratch.high_water())
                         : Arena::measuring()),
        buffers(memory, tokens,
                measured ? Arena(memory, Purpose::activations, measured->buffers.stash_bytes())
                         : Arena::measuring()),
        loader(recipe, files, nullptr, learner, ops,
               measured ? Arena(memory, Purpose::staging, measured->loader.staging_bytes())
                        : Arena::measuring(),
               {}),
        optimizer(make_optimizer("adamw", {})),
        stage(
            files.config, spec,
            StageBuild{LearnerContext{memory, memory, scratch, nullptr, ops, *optimizer, 0, false},
                       learner, arithmetic,
                       [this](const WeightSpec& weight) { return loader.format(weight); },
                       [this](Weight& weight) { loader.fill(weight); }, positions}) {}

  // The embedding of a batch, valid until the next call.
  Tensor embed(const MicroBatch& micro_batch) {
    scratch.reset();
    const Batch batch = buffers.upload(ops, micro_batch);
    Stash stash = buffers.begin(false, false);
    return stage.forward(Context{ops, scratch, nullptr}, batch, nullptr, stash);
  }

  // Returns what the part to be observed reads of a batch, valid until the next call. `rows` is the
  // batch's residual stream, `kept` the kept_input() of the part that is passed.
  Tensor pass(const BlockPass& step, const MicroBatch& micro_batch, const Tensor& rows,
              const Tensor& kept) {
    scratch.reset();
    Context context{ops, scratch, nullptr};
    const Batch batch = buffers.upload(ops, micro_batch);
    const Block& block = stage.blocks().front();
    BlockActivations saved =
        BlockActivations::take(stage.config(), stage.types(), rows.rows(), scratch);
    // The stream is one tensor throughout. A sum is written beside it: by o as `residual_mid`,
    // which to the parts after it is the stream.
    const Tensor sum = saved.residual_mid;
    if (step.passed != BlockPart::o) saved.residual_mid = rows;
    const ForwardPass forward{batch, rows, saved, sum};
    const auto input_of = [&](BlockPart part) { return block.input_of(part, context, forward); };
    if (step.passed) {
      LinearInput input(kept.empty() ? input_of(*step.passed) : kept);
      block.multiply(*step.passed, context, input, forward);
      if (adds_to_stream(*step.passed)) ops.copy(rows, sum);
    }
    return step.observed ? input_of(*step.observed) : Tensor();
  }

  // What the head reads of rows of the stream, valid until the next call.
  Tensor head_input(const Tensor& rows) {
    scratch.reset();
    Context context{ops, scratch, nullptr};
    return stage.head_input(context, rows);
  }

  Ops& ops;
  FrozenLearner learner;
  Arena scratch;
  MicroBatchBuffers buffers;
  StageLoader loader;
  std::unique_ptr<Optimizer> optimizer;
  Stage stage;
};

CalibrationRun::CalibrationRun(const Recipe& recipe, const ModelFiles& files,
                               const CalibrationText& text)
    : files_(files),
      recipe_(recipe),
      text_(text),
      device_(open_device_of(recipe)),
      memory_("host", device_->make_backing(), 0),
      ops_(device_->make_ops(memory_)),
      arithmetic_(std::make_unique<Arithmetic>(product_of(recipe.product))),
      stream_(memory_, Purpose::activations, DType::f32, {text.tokens(), files.config.hidden_size}),
      kept_(memory_, Purpose::activations, DType::f32,
            {text.tokens(), kept_columns(files.config, ActivationTypes::of(*arithmetic_, *ops_))}) {
  recipe_.storage = "f32";
}

CalibrationRun::~CalibrationRun() = default;

std::unique_ptr<CalibrationRun::Loaded> CalibrationRun::measured(
    const Recipe& recipe, const ModelFiles& files, const CalibrationSize& text,
    const StageSpec& spec, Memory& memory, Ops& ops, const Arithmetic& arithmetic) {
  const int64_t tokens = checked_mul(batch_sequences(text), text.sequence_len);
  auto loaded = std::make_unique<Loaded>(recipe, files, spec, memory, ops, arithmetic, tokens,
                                         text.sequence_len, nullptr);
  const MicroBatch batch =
      batch_of(std::vector<int32_t>(static_cast<size_t>(tokens)), text.sequence_len);
  const Tensor rows(nullptr, DType::f32, {tokens, files.config.hidden_size});
  if (spec.embedding) loaded->embed(batch);
  if (spec.head) loaded->head_input(rows);
  if (loaded->stage.blocks().empty()) return loaded;
  for (const BlockPass& step : kBlockPasses) {
    loaded->pass(step, batch, rows,
                 kept_input(step.passed, nullptr, tokens, files.config, loaded->stage.types()));
  }
  return loaded;
}

std::unique_ptr<CalibrationRun::Loaded> CalibrationRun::load(const StageSpec& spec) {
  Memory nowhere("plan", make_plan_backing(), 0);
  const auto plan_ops = device_->make_plan_ops(nowhere);
  const auto plan = measured(recipe_, files_, text_.size(), spec, nowhere, *plan_ops, *arithmetic_);
  const int64_t tokens = batch_sequences(text_.size()) * text_.sequence_len;
  auto loaded = std::make_unique<Loaded>(recipe_, files_, spec, memory_, *ops_, *arithmetic_,
                                         tokens, text_.sequence_len, plan.get());
  check_maps();
  return loaded;
}

CalibrationMemory CalibrationRun::plan(const Recipe& given, const ModelFiles& files,
                                       const CalibrationSize& text, const StageSpec& spec) {
  Recipe recipe = given;
  recipe.storage = "f32";
  const int64_t tokens = checked_mul(batch_sequences(text), text.sequence_len);
  Memory nowhere("plan", make_plan_backing(), 0), part("plan", make_plan_backing(), 0);
  const auto ops = open_device_of(recipe)->make_plan_ops(nowhere);
  const Arithmetic arithmetic(product_of(recipe.product));
  const auto sizes = measured(recipe, files, text, spec, nowhere, *ops, arithmetic);
  const Loaded loaded(recipe, files, spec, part, *ops, arithmetic, tokens, text.sequence_len,
                      sizes.get());
  const int64_t text_tokens = checked_mul(text.sequences, text.sequence_len);
  const int64_t kept = kept_columns(files.config, ActivationTypes::of(arithmetic, *ops));
  return {
      checked_add(booked_f32(text_tokens, files.config.hidden_size), booked_f32(text_tokens, kept)),
      part.ledger().peak};
}

MicroBatch CalibrationRun::batch_at(int64_t first) const {
  const int64_t length = text_.sequence_len;
  const int64_t last = std::min(text_.sequences, first + batch_sequences(text_.size()));
  return batch_of({text_.ids.begin() + first * length, text_.ids.begin() + last * length}, length);
}

template <class Use>
void CalibrationRun::run(const Use& use, const ProgressCallback& progress) {
  for (int64_t sequence = 0; sequence < text_.sequences;) {
    const MicroBatch batch = batch_at(sequence);
    const int64_t first = sequence * text_.sequence_len;
    use(batch, first, first + batch.tokens());
    sequence += std::ssize(batch.cu_seqlens) - 1;
    if (progress) progress(batch.tokens());
  }
}

void CalibrationRun::begin_block() {
  if (next_block_ == 0) {
    const auto embedding = load({0, 0, true, false});
    run([&](const MicroBatch& batch, int64_t first,
            int64_t end) { ops_->copy(stream_.view().rows(first, end), embedding->embed(batch)); },
        {});
  }
  block_.reset();
  block_ = load({next_block_, next_block_ + 1, false, false});
  // Else the inputs of a later matrix would be blamed.
  for (const BlockPart part : kBlockParts) {
    for (const Weight* weight : linears(part)) check_finite(weight->spec(), weight->as_f32());
  }
  ++next_block_;
}

std::vector<const Weight*> CalibrationRun::linears(BlockPart part) const {
  return block_->stage.blocks().front().weights_of(part);
}

void CalibrationRun::pass(const BlockPass& step, Hessian* hessian,
                          const ProgressCallback& progress) {
  const auto kept = [&](std::optional<BlockPart> part) {
    return kept_input(part, kept_.view().raw(), text_.tokens(), files_.config,
                      block_->stage.types());
  };
  const Tensor read = kept(step.passed), to_keep = kept(step.observed);
  run(
      [&](const MicroBatch& batch, int64_t first, int64_t end) {
        const Tensor input = block_->pass(step, batch, stream_.view().rows(first, end),
                                          read.empty() ? read : read.rows(first, end));
        if (hessian != nullptr) hessian->add(*ops_, input);
        if (!to_keep.empty()) ops_->copy(to_keep.rows(first, end), input);
      },
      progress);
}

Hessian CalibrationRun::observe(BlockPart part, const ProgressCallback& progress) {
  Hessian hessian(memory_, linears(part).front()->spec().cols);
  pass(kBlockPasses[static_cast<size_t>(part)], &hessian, progress);
  hessian.finish(fmt::format("block {}", next_block_ - 1).c_str());
  return hessian;
}

void CalibrationRun::end_block(const ProgressCallback& progress) {
  pass(kBlockPasses.back(), nullptr, progress);
}

void CalibrationRun::begin_head() {
  block_.reset();
  block_ = load({next_block_, next_block_, false, true});
}

const Weight& CalibrationRun::head() const {
  const auto& parameters = block_->stage.parameters();
  return *std::ranges::find_if(
              parameters, [](const auto& parameter) { return !parameter->weight->is_vector(); })
              ->get()
              ->weight;
}

Hessian CalibrationRun::observe_head(const ProgressCallback& progress) {
  Hessian hessian(memory_, files_.config.hidden_size);
  run([&](const MicroBatch&, int64_t first,
          int64_t end) { hessian.add(*ops_, block_->head_input(stream_.view().rows(first, end))); },
      progress);
  hessian.finish("the head");
  return hessian;
}

}  // namespace jackscrew
