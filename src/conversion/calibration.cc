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

}  // namespace

void check_calibration_product(const std::string& name) {
  if (name == "auto" || name == "f32" || name == "bf16") return;
  throw Error(ErrorKind::usage, fmt::format("quantize cannot calibrate with product={}", name),
              "product=f32 or product=bf16");
}

// A product that adds each input to its Hessian before the wrapped product multiplies it.
class ObservedProduct : public Product {
 public:
  ObservedProduct(std::unique_ptr<const Product> product, const Observation& observation,
                  Memory& memory)
      : product_(std::move(product)), observation_(observation), memory_(memory) {}

  const char* name() const override { return product_->name(); }
  DType activation_dtype() const override { return product_->activation_dtype(); }
  DType operand_dtype() const override { return product_->operand_dtype(); }

  Operand prepare(Context& context, const Tensor& x) const override {
    if (observation_.hessians != nullptr) observation_.hessians->has_new_input_ = true;
    return product_->prepare(context, x);
  }
  void forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
               Accumulate accumulate) const override {
    if (observation_.hessians != nullptr) observe(context.ops, use.weight.spec(), a.x);
    if (use.weight.spec().module == observation_.unread) return;
    product_->forward(context, a, use, y, accumulate);
  }
  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const LinearUse& use) const override {
    return product_->backward(context, a, dy, use);
  }
  void add_dw(const Gradient& g, const Tensor& d) const override { product_->add_dw(g, d); }

 private:
  void observe(Ops& ops, const WeightSpec& weight, const Tensor& x) const {
    BlockHessians& hessians = *observation_.hessians;
    auto& inputs = hessians.inputs_;
    const bool is_new = std::exchange(hessians.has_new_input_, false);
    const auto known = hessians.reads_.find(weight.name);
    if (known == hessians.reads_.end()) {
      if (is_new) inputs.push_back(std::make_unique<Hessian>(memory_, x.cols()));
      hessians.reads_[weight.name] = inputs.size() - 1;
    }
    if (is_new) inputs[hessians.reads_[weight.name]]->add(ops, x);
  }

  std::unique_ptr<const Product> product_;
  const Observation& observation_;
  Memory& memory_;
};

struct CalibrationRun::Loaded {
  // With `measured` null, measures the sizes of the arenas on the plan device.
  Loaded(const Recipe& recipe, const ModelFiles& files, const StageSpec& spec, Memory& memory,
         Ops& ops_of, const Arithmetic& arithmetic, int64_t tokens, int64_t positions,
         const Loaded* measured)
      : ops(ops_of),
        scratch(measured ? Arena(memory, Purpose::workspace, measured->scratch.high_water())
                         : Arena::measuring()),
        flight(memory, tokens,
               measured ? Arena(memory, Purpose::activations, measured->flight.stash_bytes())
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

  // Runs the head on rows of the stream so that its input is observed. The product skips the
  // multiplication, see begin_head().
  void pass_head(const Tensor& rows) {
    scratch.reset();
    Context context{ops, scratch, nullptr};
    stage.logits(context, rows,
                 Tensor(nullptr, DType::f32, {rows.rows(), stage.config().vocab_size}));
  }

  // Returns the output of a batch, valid until the next call. `input` is overwritten.
  Tensor forward(const MicroBatch& batch, const Tensor* input) {
    scratch.reset();
    const Batch there = flight.upload(ops, batch, 0, 0);
    Stash stash = flight.begin(false, false);
    return stage.forward(Context{ops, scratch, nullptr}, there, input, stash);
  }

  Ops& ops;
  FrozenLearner learner;
  Arena scratch;
  Flight flight;
  StageLoader loader;
  std::unique_ptr<Optimizer> optimizer;
  Stage stage;
};

CalibrationText calibration_text(const Dataset& data, int64_t sequences, int64_t sequence_len,
                                 int64_t least) {
  std::vector<int32_t> all;
  for (int64_t i = 0; i < data.size(); ++i) {
    const Example example = data.example(i);
    all.insert(all.end(), example.ids.begin(), example.ids.end());
  }
  const int64_t windows = std::ssize(all) / sequence_len;
  CalibrationText text{std::min(sequences, windows), sequence_len, {}};
  if (text.tokens() < least) {
    const bool has_enough = windows * sequence_len >= least;
    throw Error(
        ErrorKind::data,
        fmt::format("the calibration text has {}, {} of {} each; {} of them are {}: too few "
                    "for layers of {} inputs",
                    counted(std::ssize(all), "token"), counted(windows, "whole sequence"),
                    sequence_len, text.sequences, counted(text.tokens(), "token"), least),
        has_enough
            ? fmt::format("set calibration_sequences to {} or more", ceil_div(least, sequence_len))
            : fmt::format("at least {} are needed; 128 sequences of 512 are usual", least));
  }
  for (int64_t i = 0; i < text.sequences; ++i) {
    const auto from = all.begin() + i * windows / text.sequences * sequence_len;
    text.ids.insert(text.ids.end(), from, from + sequence_len);
  }
  return text;
}

CalibrationText part_of(const CalibrationText& text, int64_t sequences) {
  CalibrationText part{std::min(sequences, text.sequences), text.sequence_len, {}};
  for (int64_t i = 0; i < part.sequences; ++i) {
    const auto from = text.ids.begin() + i * text.sequences / part.sequences * text.sequence_len;
    part.ids.insert(part.ids.end(), from, from + text.sequence_len);
  }
  return part;
}

CalibrationRun::CalibrationRun(const Recipe& recipe, const ModelFiles& files,
                               const CalibrationText& text)
    : files_(files),
      recipe_(recipe),
      text_(text),
      device_(open_device_of(recipe)),
      memory_("host", device_->make_backing(), 0),
      ops_(device_->make_ops(memory_)),
      arithmetic_(std::make_unique<Arithmetic>(
          std::make_unique<ObservedProduct>(product_of(recipe.product), observation_, memory_))),
      stream_(memory_, Purpose::activations, DType::f32,
              {text.tokens(), files.config.hidden_size}) {
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
  const Tensor input(nullptr, DType::f32, {tokens, files.config.hidden_size});
  spec.head ? loaded->pass_head(input)
            : static_cast<void>(loaded->forward(batch, spec.embedding ? nullptr : &input));
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
  Memory nowhere("plan", make_plan_backing(), 0), part("plan", make_plan_backing(), 0),
      hessians("plan", make_plan_backing(), 0);
  const auto ops = open_device_of(recipe)->make_plan_ops(nowhere);
  BlockHessians inputs;
  const Observation observation{.hessians = &inputs};
  const Arithmetic arithmetic(
      std::make_unique<ObservedProduct>(product_of(recipe.product), observation, hessians));
  const auto sizes = measured(recipe, files, text, spec, nowhere, *ops, arithmetic);
  const Loaded loaded(recipe, files, spec, part, *ops, arithmetic, tokens, text.sequence_len,
                      sizes.get());
  const int64_t hidden = files.config.hidden_size;
  return {booked_f32(checked_mul(text.sequences, text.sequence_len), hidden), part.ledger().peak,
          hessians.ledger().peak, booked_f32(tokens, hidden)};
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
    use(batch, sequence * text_.sequence_len);
    sequence += std::ssize(batch.cu_seqlens) - 1;
    if (progress) progress(batch.tokens());
  }
}

void CalibrationRun::begin_block() {
  if (next_block_ == 0) {
    const auto embedding = load({0, 0, true, false});
    run(
        [&](const MicroBatch& batch, int64_t first) {
          ops_->copy(stream_.view().rows(first, first + batch.tokens()),
                     embedding->forward(batch, nullptr));
        },
        {});
  }
  block_.reset();
  block_ = load({next_block_, next_block_ + 1, false, false});
  // Else the inputs of a later matrix would be blamed.
  for (const Weight* weight : linears()) check_finite(weight->spec(), weight->as_f32());
  ++next_block_;
}

std::vector<const Weight*> CalibrationRun::linears() const {
  std::vector<const Weight*> out;
  for (const auto& parameter : block_->stage.parameters()) {
    if (parameter->weight->spec().is_block_matrix()) out.push_back(parameter->weight.get());
  }
  return out;
}

template <class Body>
BlockHessians CalibrationRun::observed(const Body& body, std::string_view unread,
                                       const std::string& where) {
  BlockHessians hessians;
  observation_ = {&hessians, unread};
  body();
  observation_ = {};
  for (const auto& hessian : hessians.inputs_) hessian->finish(where.c_str());
  return hessians;
}

BlockHessians CalibrationRun::observe(const ProgressCallback& progress) {
  const OwnedTensor copy(memory_, Purpose::activations, DType::f32,
                         {batch_at(0).tokens(), files_.config.hidden_size});
  const auto body = [&] {
    run(
        [&](const MicroBatch& batch, int64_t first) {
          const Tensor input = copy.view().rows(0, batch.tokens());
          ops_->copy(input, stream_.view().rows(first, first + batch.tokens()));
          block_->forward(batch, &input);
        },
        progress);
  };
  return observed(body, "down_proj", fmt::format("block {}", next_block_ - 1));
}

BlockHessians CalibrationRun::observe_and_advance(const ProgressCallback& progress) {
  return observed([&] { advance(progress); }, {}, fmt::format("block {}", next_block_ - 1));
}

std::string_view CalibrationRun::head_module() const {
  return files_.config.tie_word_embeddings ? "embed_tokens" : "lm_head";
}

void CalibrationRun::begin_head() {
  block_.reset();
  observation_.unread = head_module();
  block_ = load({next_block_, next_block_, false, true});
}

const Weight& CalibrationRun::head() const {
  const auto& parameters = block_->stage.parameters();
  return *std::ranges::find_if(
              parameters, [](const auto& parameter) { return !parameter->weight->is_vector(); })
              ->get()
              ->weight;
}

BlockHessians CalibrationRun::observe_head(const ProgressCallback& progress) {
  const auto body = [&] {
    run(
        [&](const MicroBatch& batch, int64_t first) {
          block_->pass_head(stream_.view().rows(first, first + batch.tokens()));
        },
        progress);
  };
  return observed(body, head_module(), "the head");
}

void CalibrationRun::advance(const ProgressCallback& progress) {
  run(
      [&](const MicroBatch& batch, int64_t first) {
        const Tensor input = stream_.view().rows(first, first + batch.tokens());
        const Tensor output = block_->forward(batch, &input);
        if (output.raw() != input.raw()) ops_->copy(input, output);
      },
      progress);
}

}  // namespace jackscrew
