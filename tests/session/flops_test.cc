// The arithmetic of a step against its formula.
#include "session/flops.h"

#include "tests/support/batches.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

TEST(Flops, CountsTheProductsThatAreAskedFor) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const ModelConfig& config = files.config;
  const StepBatch batch = step_of({random_micro_batch(config.vocab_size, {9, 17}, 1)});
  int64_t blocks = 0;
  int64_t lowest = 0;  // of the first block, what reads its input
  for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
    if (!weight.is_block_matrix()) continue;
    blocks += weight.size();
    const bool reads_input =
        weight.module == "q_proj" || weight.module == "k_proj" || weight.module == "v_proj";
    if (reads_input && weight.layer == 0) lowest += weight.size();
  }
  const int64_t head = config.vocab_size * config.hidden_size;
  // Seven products over the causal half of the scores.
  const int64_t attention = 7 * config.num_hidden_layers * (9 * 9 + 17 * 17) *
                            config.num_attention_heads * config.head_dim;
  struct Case {
    const char* settings;
    int64_t of_blocks, of_head;  // products of a weight: y, dx and dW
    bool is_passed_on = true;    // dx of the first block, to an embedding or a norm that learns
  };
  for (const Case& c : {Case{"method=full", 3, 3},
                        {"method=lora", 2, 2, false},
                        {"method=rotary active_params=100% static=train", 3, 3},
                        {"method=rotary active_params=100% static=freeze", 3, 2, false}}) {
    const auto session =
        make_session(make_recipe(settings_of(c.settings)), files, training_use(batch.tokens));
    session->accumulate(batch, 0.0, 0);  // rotates
    const int64_t products =
        2 * (c.of_blocks * blocks * batch.tokens - (c.is_passed_on ? 0 : lowest * batch.tokens) +
             c.of_head * head * batch.targets);
    EXPECT_EQ(training_flops(session->stage(), batch), static_cast<double>(products + attention))
        << c.settings;
  }
}

// Below the lowest block that learns there is no backward.
TEST(Flops, EndAtTheLowestBlockThatLearns) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const ModelConfig& config = files.config;
  const StepBatch batch = step_of({random_micro_batch(config.vocab_size, {9, 17}, 1)});
  const int64_t learning = config.num_hidden_layers - 1;
  ASSERT_GT(learning, 0);
  int64_t products = 2 * config.vocab_size * config.hidden_size * batch.targets;
  for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
    if (!weight.is_block_matrix()) continue;
    // In the block that learns, q_proj is the lowest that does.
    const bool reads_input =
        weight.module == "q_proj" || weight.module == "k_proj" || weight.module == "v_proj";
    products += (weight.layer == learning && !reads_input ? 2 : 1) * weight.size() * batch.tokens;
  }
  const int64_t attention =
      (7 + 2 * learning) * (9 * 9 + 17 * 17) * config.num_attention_heads * config.head_dim;
  const Recipe recipe =
      make_recipe({"method=lora", fmt::format("lora_target=layers.{}.self_attn.q_proj", learning)});
  const auto session = Session::planned(recipe, files, training_use(batch.tokens));
  EXPECT_EQ(training_flops(session->stage(), batch), static_cast<double>(2 * products + attention));
}

// A tied embedding is multiplied where the head is, and attention where its blocks are.
TEST(Flops, OfStagesAddUp) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const StepBatch batch = step_of({random_micro_batch(files.config.vocab_size, {9, 17}, 1)});
  const Recipe recipe = make_recipe(settings_of("method=lora pipeline_stages=2"));
  double sum = 0.0;
  for (int rank = 0; rank < 2; ++rank) {
    SessionUse use = training_use(batch.tokens);
    use.place = {layout_of(recipe, 2), rank, {0, 1, files.config.num_hidden_layers}};
    const double part = training_flops(Session::planned(recipe, files, use)->stage(), batch);
    EXPECT_GT(part, 0.0);
    sum += part;
  }
  const Recipe whole = make_recipe(settings_of("method=lora"));
  const auto session = Session::planned(whole, files, training_use(batch.tokens));
  EXPECT_EQ(sum, training_flops(session->stage(), batch));
}

}  // namespace
}  // namespace jackscrew
