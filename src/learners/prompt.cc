#include "learners/prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/philox.h"
#include "learners/factor.h"
#include "learners/frozen.h"
#include "learners/prompt.rows.h"

namespace jackscrew {

namespace {

constexpr double kMostPromptTokens = 4096;
constexpr const char* kPromptName = "prompt_embeddings";  // as PEFT calls it

// A random prompt is drawn from the first tokens of the vocabulary: BPE learns frequent tokens
// first, and those at the end may never have been trained. The number is that of Lester et al.
// (section 3.2).
constexpr int64_t kFrequentTokens = 5000;

constexpr OptionSpec kPromptOptions[] = {
    {.name = "prompt_tokens",
     .type = OptionType::integer,
     .default_text = "20",
     .help = "virtual tokens before every sequence; sequence_len counts them",
     .aliases = "num_virtual_tokens",
     .min = 1,
     .max = kMostPromptTokens},
    {.name = "prompt_init_text",
     .type = OptionType::text,
     .default_text = "",
     .help = "text whose tokens they begin as, repeated as needed; empty: frequent tokens, drawn "
             "at random",
     .aliases = "prompt_tuning_init_text"},
};

class PromptSlot : public LearnerSlot {
 public:
  PromptSlot(const LearnerContext& context, const Weight& embedding, int64_t tokens,
             const std::string& text)
      : prompt_(context, kPromptName, {tokens, embedding.cols()}) {
    if (!context.training) return;
    std::vector<int32_t> ids = first_tokens(context, embedding, text);
    const Arena::Frame frame(context.scratch);
    const Tensor indices = context.scratch.tensor(DType::i32, {tokens});
    context.ops.copy(indices, Tensor(ids.data(), DType::i32, {tokens}));
    embedding.gather(context.ops, indices, prompt_.value());
  }

  bool learns() const override { return true; }
  double gradient_products() const override { return 0.0; }

  void gathered(Context& context, const Tensor& positions, const Tensor& x) override {
    context.ops.launch(PlacePrompt{prompt_.value().data<float>(), positions.data<int32_t>(),
                                   x.data<float>(), tokens(), x.cols()},
                       x.rows());
  }

  void backward(const Gradient& g, const Tensor*) override {
    if (g.positions.empty()) return;  // the gradient of a tied head
    g.context().ops.launch(
        PromptGradient{g.dy.data<float>(), g.positions.data<int32_t>(),
                       prompt_.gradient().data<float>(), g.dy.rows(), g.dy.cols()},
        tokens());
  }

  void apply(Context& context, double weight_decay) override {
    prompt_.apply(context, 1.0, weight_decay);
  }
  void visit(const StateVisitor& visitor) const override { prompt_.visit(visitor); }

 private:
  int64_t tokens() const { return prompt_.value().rows(); }

  // The tokens that the prompt begins as.
  std::vector<int32_t> first_tokens(const LearnerContext& context, const Weight& embedding,
                                    const std::string& text) const {
    std::vector<int32_t> ids(static_cast<size_t>(tokens()));
    if (context.ops.plans_only()) return ids;
    if (text.empty()) {
      const RandomStream random =
          RandomStream::make(context.seed, RandomPurpose::init, 0, name_hash(kPromptName));
      const auto range = static_cast<uint64_t>(std::min(kFrequentTokens, embedding.rows()));
      for (size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<int32_t>(random.bits(i) * range >> 32);
      }
      return ids;
    }
    const std::vector<int32_t> of_text = context.encode(text);
    if (of_text.empty()) {
      throw Error(ErrorKind::usage, "prompt_init_text has no tokens", "leave it out");
    }
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = of_text[i % of_text.size()];
    return ids;
  }

  Factor prompt_;  // [prompt_tokens, hidden]
};

class PromptLearner : public Learner {
 public:
  explicit PromptLearner(const OptionSet& options)
      : tokens_(options.integer("prompt_tokens")), text_(options.text("prompt_init_text")) {}

  const char* name() const override { return "prompt"; }
  void plan(std::span<const WeightSpec> weights) override {
    for (const WeightSpec& weight : weights) {
      if (weight.kind == WeightKind::embedding) hidden_ = weight.cols;
    }
  }
  bool changes(const WeightSpec&) const override { return false; }
  int64_t virtual_tokens() const override { return tokens_; }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    // A tied head on the last stage of a pipeline gathers nothing: the prompt is the first stage's.
    const WeightSpec& spec = weight.spec();
    if (spec.kind != WeightKind::embedding || context.is_measured_elsewhere(spec)) {
      return std::make_unique<FrozenSlot>();
    }
    return std::make_unique<PromptSlot>(context, weight, tokens_, text_);
  }

  nlohmann::json adapter() const override {
    // prompt_init_text is left out: with it PEFT would load the tokenizer.
    return {{"peft_type", "PROMPT_TUNING"},
            {"num_virtual_tokens", tokens_},
            {"token_dim", hidden_},
            {"num_transformer_submodules", 1},
            {"prompt_tuning_init", "RANDOM"},
            {"prompt_tuning_init_text", nullptr},
            {"tokenizer_name_or_path", nullptr}};
  }

  WeightMerge merge(const WeightSpec&, const AdapterValues&) const override {
    throw Error(ErrorKind::usage, "a soft prompt is not part of a weight and cannot be merged",
                "give it as adapter=DIR beside the model: generate, chat and eval take it");
  }

 private:
  int64_t tokens_;
  std::string text_;
  int64_t hidden_ = 0;
};

}  // namespace

std::span<const OptionSpec> prompt_options() {
  return kPromptOptions;
}

std::unique_ptr<Learner> make_prompt_learner(const OptionSet& options) {
  return std::make_unique<PromptLearner>(options);
}

}  // namespace jackscrew
