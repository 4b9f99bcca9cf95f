// Which product multiplies a weight.
#include "products/arithmetic.h"

#include "products/dense.h"
#include "products/int8.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

const std::vector<WeightSpec>& linears() {
  static const std::vector<WeightSpec> kLinears = [] {
    std::vector<WeightSpec> out;
    for (const int64_t layer : {0, 1, 10}) {
      const std::string base = fmt::format("model.layers.{}.", layer);
      out.push_back({base + "self_attn.q_proj.weight", 8, 8, WeightKind::linear, layer, "q_proj"});
      out.push_back({base + "mlp.down_proj.weight", 8, 8, WeightKind::linear, layer, "down_proj"});
    }
    out.push_back({"lm_head.weight", 8, 8, WeightKind::linear, -1, "lm_head"});
    return out;
  }();
  return kLinears;
}

// The weights that are multiplied in f32, by their places in the list.
std::vector<size_t> in_f32(std::vector<std::string> excluded) {
  const Arithmetic arithmetic(make_int8_product(), std::move(excluded), linears());
  std::vector<size_t> out;
  for (size_t i = 0; i < linears().size(); ++i) {
    const Product& product = arithmetic.product_of(linears()[i]);
    if (&product != &arithmetic.product()) {
      EXPECT_STREQ(product.name(), "f32");
      out.push_back(i);
    }
  }
  return out;
}

TEST(ArithmeticTest, PatternsAreEndsOfPaths) {
  using Places = std::vector<size_t>;
  EXPECT_EQ(in_f32({}), Places());
  EXPECT_EQ(in_f32({"lm_head"}), Places({6}));
  EXPECT_EQ(in_f32({"down_proj"}), Places({1, 3, 5}));
  EXPECT_EQ(in_f32({"mlp.down_proj", "lm_head"}), Places({1, 3, 5, 6}));
  EXPECT_EQ(in_f32({"layers.1.*"}), Places({2, 3}));
  EXPECT_EQ(in_f32({"layers.1*.q_proj"}), Places({2, 4}));
  EXPECT_EQ(in_f32({"model.layers.0.self_attn.q_proj"}), Places({0}));
  EXPECT_EQ(in_f32({"layers.*"}), Places({0, 1, 2, 3, 4, 5}));
}

TEST(ArithmeticTest, RefusesWhatExcludesNothing) {
  for (const char* pattern :
       {"up_proj", "proj", "down_proj.weight", "layers.2.*", "model.layers"}) {
    const std::string refusal = error_of(ErrorKind::usage, [&] { in_f32({"lm_head", pattern}); });
    EXPECT_NE(message_of(refusal).find(pattern), std::string::npos) << refusal;
    EXPECT_NE(hint_of(refusal).find("q_proj, down_proj, lm_head"), std::string::npos) << refusal;
  }
  for (const std::vector<std::string>& all :
       {std::vector<std::string>{"*"}, {"layers.*", "lm_head"}}) {
    expect_message(ErrorKind::usage, "leaves nothing to product=int8", [&] { in_f32(all); });
  }
  expect_message(ErrorKind::usage, "in f32",
                 [] { Arithmetic(make_f32_product(), {"lm_head"}, linears()); });
}

// What passes from one product to another must be what both take.
TEST(ArithmeticTest, ActivationsAreWhatEveryProductTakes) {
  EXPECT_EQ(Arithmetic(make_bf16_product()).activation_dtype(), DType::bf16);
  EXPECT_EQ(Arithmetic(make_int8_product()).activation_dtype(), DType::f32);
  const Arithmetic mixed(make_bf16_product(), {"lm_head"}, linears());
  EXPECT_EQ(mixed.activation_dtype(), DType::f32);
  EXPECT_EQ(mixed.attention_operands(), DType::bf16);
}

}  // namespace
}  // namespace jackscrew
