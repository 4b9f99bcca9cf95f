// Ops at the sizes of real runs: thousands of tokens, heads of 64, 128 and 256, a vocabulary of
// 152k. Rows drawn at random are compared with double precision, since a CPU takes too long for all
// of them. On the emulated GPU the same at small sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "kernels/rows/loss.rows.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/gpu.h"

namespace jackscrew {
namespace {

// An endless matrix of values in [-1, 1) that bf16 holds exactly: each is found again from its
// index.
class Values {
 public:
  explicit Values(uint32_t seed) : table_(random_floats(1 << 16, seed)) {
    for (float& value : table_) value = to_float(to_bf16(value));
  }
  float operator()(int64_t index) const {
    return table_[(static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u) >> 48];
  }

 private:
  std::vector<float> table_;
};

class GpuScale : public ::testing::Test {
 protected:
  static constexpr int kDrawn = 12;  // rows that are compared

  explicit GpuScale(AttentionLibrary attention = AttentionLibrary::own) : attention_(attention) {}

  void SetUp() override {
    if (const auto missing = gpu_missing(attention_); !missing.empty()) GTEST_SKIP() << missing;
    device_ = open_device("cuda:0", {.threads = 2,
                                     .isa = test_isa(),
                                     .environments = python_environments(),
                                     .attention = attention_});
    memory_.emplace("device", device_->make_backing(), 0);
    ops_ = device_->make_ops(*memory_);
    scratch_.emplace(*memory_, Purpose::workspace, int64_t{64} << 20);
  }
  void TearDown() override {
    if (ops_) ops_->finish();
  }

  // The emulation has less memory than any GPU.
  bool is_real() const { return *device_->own_memory() > int64_t{2} << 30; }

  Tensor take(DType dtype, int64_t rows, int64_t cols) {
    return tensors_
        .emplace_back(*memory_, Purpose::io, dtype, std::initializer_list<int64_t>{rows, cols})
        .view();
  }
  template <class T>
  Tensor put(const Values& values, int64_t rows, int64_t cols, T (*convert)(float)) {
    const Tensor to = take(DTypeOf<T>::value, rows, cols);
    std::vector<T> row(at(cols));
    // A row at a time would wait for each.
    const int64_t at_once = std::max(int64_t{1}, (int64_t{1} << 22) / cols);
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t end = std::min(rows, begin + at_once);
      row.resize(at((end - begin) * cols));
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = convert(values(begin * cols + static_cast<int64_t>(i)));
      }
      ops_->copy(to.rows(begin, end), Tensor(row.data(), DTypeOf<T>::value, {end - begin, cols}));
    }
    return to;
  }
  template <class T>
  Tensor put(const Values& values, int64_t rows, int64_t cols) {
    return put<T>(values, rows, cols, [](float value) { return from_float<T>(value); });
  }
  Tensor put(const std::vector<int32_t>& values) {
    const auto count = static_cast<int64_t>(values.size());
    const Tensor to = take(DType::i32, 1, count);
    ops_->copy(to, Tensor(const_cast<int32_t*>(values.data()), DType::i32, {1, count}));
    return to.reshaped({count});
  }
  std::vector<float> row(const Tensor& from, int64_t index) {
    const int64_t cols = from.cols();
    std::vector<float> out(at(cols));
    const Tensor one = from.rows(index, index + 1);
    if (from.dtype() == DType::f32) {
      ops_->copy(Tensor(out.data(), DType::f32, {1, cols}), one);
      return out;
    }
    std::vector<bf16> halves(at(cols));
    ops_->copy(Tensor(halves.data(), DType::bf16, {1, cols}), one);
    for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(halves[i]);
    return out;
  }
  // The first and the last among them: there tiles are cut.
  std::vector<int64_t> drawn(int64_t count, uint32_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<int64_t> out = {0, count - 1};
    while (out.size() < kDrawn) {
      out.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(count)));
    }
    return out;
  }

  template <class Operand, class Result>
  void expect_product(int64_t m, int64_t n, int64_t k, bool ta, bool tb);
  void expect_product_of_bytes(int64_t m, int64_t n, int64_t k, bool tb);
  template <class T>
  void expect_attention(int64_t head_dim, const std::vector<int32_t>& cu_seqlens, double tolerance);
  template <class T>
  void expect_loss(int64_t rows, int64_t vocab, double tolerance);

  AttentionLibrary attention_;
  std::unique_ptr<Device> device_;
  std::optional<Memory> memory_;
  std::unique_ptr<Ops> ops_;
  std::optional<Arena> scratch_;
  std::deque<OwnedTensor> tensors_;
};

template <class Operand, class Result>
void GpuScale::expect_product(int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, {}{}, {} bytes to {}", m, n, k, ta, tb, sizeof(Operand),
                           sizeof(Result)));
  const Values a_values(1), b_values(2);
  const Tensor a = put<Operand>(a_values, ta ? k : m, ta ? m : k);
  const Tensor b = put<Operand>(b_values, tb ? n : k, tb ? k : n);
  const Tensor c = take(DTypeOf<Result>::value, m, n);
  ops_->gemm(a, Transpose{ta}, b, Transpose{tb}, c, Accumulate::no);
  // Roundings of the sum, four times what they come to on average; then one of the result. Tensor
  // cores do not round: with every 16 of the depth they cut what is below the sum's last bit (Fasi
  // et al. 2021, 'Numerical behavior of NVIDIA tensor cores', section 4), half a bit on average,
  // always towards zero.
  const double cut = sizeof(Operand) == 2 ? static_cast<double>(k) / 16.0 * 0x1p-24 : 0.0;
  const double tolerance = 4.0 * std::sqrt(static_cast<double>(k)) * 0x1p-24 + cut +
                           (sizeof(Result) == 2 ? 0x1p-8 : 0.0);
  for (const int64_t i : drawn(m, 3)) {
    const std::vector<float> got = row(c, i);
    std::vector<float> some;
    Doubles want;
    for (const int64_t j : drawn(n, 4)) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(a_values(ta ? l * m + i : i * k + l)) *
               static_cast<double>(b_values(tb ? j * k + l : l * n + j));
      }
      some.push_back(got[at(j)]);
      want.push_back(sum);
    }
    EXPECT_LE(relative_error(some, want), tolerance) << "row " << i;
  }
  tensors_.clear();
}

TEST_F(GpuScale, Products) {
  const int64_t tokens = is_real() ? 4096 : 40;
  const int64_t wide = is_real() ? 8960 : 70;
  const int64_t hidden = is_real() ? 1536 : 24;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      expect_product<float, float>(tokens, wide, hidden, ta, tb);
      expect_product<bf16, float>(tokens, wide, hidden, ta, tb);
      expect_product<bf16, bf16>(tokens, hidden, wide, ta, tb);
    }
  }
}

TEST_F(GpuScale, ProductsWithAVocabulary) {
  const int64_t vocab = is_real() ? 151936 : 300;
  const int64_t hidden = is_real() ? 1536 : 24;
  const int64_t tokens = is_real() ? 2048 : 16;
  expect_product<bf16, float>(tokens, vocab, hidden, false, true);   // logits
  expect_product<bf16, float>(tokens, hidden, vocab, false, false);  // their gradient
  expect_product<bf16, float>(vocab, hidden, tokens, true, false);   // the head's
  expect_product<float, float>(tokens, vocab, hidden, false, true);
}

int8_t code_of(float value) {
  return static_cast<int8_t>(value * 63.0f);
}

void GpuScale::expect_product_of_bytes(int64_t m, int64_t n, int64_t k, bool tb) {
  SCOPED_TRACE(fmt::format("{} x {} x {}, {}", m, n, k, tb));
  const Values a_values(1), b_values(2), a_scales(3), b_scales(4);
  const int64_t groups = ceil_div(k, kInt8Group);
  const Int8Rows a{put<int8_t>(a_values, m, k, code_of), put<float>(a_scales, m, groups)};
  const Int8Rows b{put<int8_t>(b_values, tb ? n : k, tb ? k : n, code_of),
                   tb ? put<float>(b_scales, 1, n).reshaped({n}) : Tensor()};
  const Tensor c = take(DType::f32, m, n);
  ops_->gemm_int8(a, b, Transpose{tb}, c, Accumulate::no, *scratch_);
  // Within a group sums are exact.
  const double tolerance = 4.0 * std::sqrt(static_cast<double>(groups)) * 0x1p-24;
  for (const int64_t i : drawn(m, 3)) {
    const std::vector<float> got = row(c, i);
    std::vector<float> some;
    Doubles want;
    for (const int64_t j : drawn(n, 4)) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; ++l) {
        const int product =
            code_of(a_values(i * k + l)) * code_of(b_values(tb ? j * k + l : l * n + j));
        sum += static_cast<double>(a_scales(i * groups + l / kInt8Group)) * product;
      }
      some.push_back(got[at(j)]);
      want.push_back(tb ? sum * static_cast<double>(b_scales(j)) : sum);
    }
    EXPECT_LE(relative_error(some, want), tolerance) << "row " << i;
  }
  tensors_.clear();
}

TEST_F(GpuScale, ProductsOfBytes) {
  const int64_t tokens = is_real() ? 4096 : 40;
  const int64_t wide = is_real() ? 8960 : 200;
  const int64_t hidden = is_real() ? 1536 : 70;
  expect_product_of_bytes(tokens, wide, hidden, true);
  expect_product_of_bytes(tokens, hidden, wide, true);
  expect_product_of_bytes(tokens, hidden, wide, false);
}

// Of 4 heads over 2 of keys and values. The results of single queries and keys from q, k, v and
// dout alone, but for the gradients of keys and values: those need the statistics of all queries,
// for which the GPU's own are taken, that were compared before.
template <class T>
void GpuScale::expect_attention(int64_t head_dim, const std::vector<int32_t>& cu_seqlens,
                                double tolerance) {
  SCOPED_TRACE(fmt::format("heads of {}, {} bytes", head_dim, sizeof(T)));
  constexpr int64_t kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const int64_t tokens = cu_seqlens.back();
  const auto sequences = static_cast<int64_t>(cu_seqlens.size()) - 1;
  const int64_t width = kHeads * head_dim, kv_width = kKvHeads * head_dim;
  const Values q_values(1), k_values(2), v_values(3), dout_values(4);
  const Tensor q = put<T>(q_values, tokens, width), k = put<T>(k_values, tokens, kv_width);
  const Tensor v = put<T>(v_values, tokens, kv_width), dout = put<T>(dout_values, tokens, width);
  const Tensor out = take(DTypeOf<T>::value, tokens, width);
  const Tensor lse = take(DType::f32, kHeads, tokens);
  const Tensor dq = take(DType::f32, tokens, width);
  const Tensor dk = take(DType::f32, tokens, kv_width), dv = take(DType::f32, tokens, kv_width);
  const Tensor ends = put(cu_seqlens);
  const AttentionShape shape{ends,
                             ends,
                             sequences,
                             kHeads,
                             kKvHeads,
                             head_dim,
                             static_cast<float>(scale),
                             0,
                             sizeof(T) == 2 ? DType::bf16 : DType::f32};
  ops_->attention_forward(shape, q, k, v, out, lse, *scratch_);
  ops_->attention_backward(shape, q, k, v, out, lse, dout, dq, dk, dv, *scratch_);

  const auto of = [&](const Values& values, int64_t token, int64_t row_width, int64_t head,
                      int64_t i) {
    return static_cast<double>(values(token * row_width + head * head_dim + i));
  };
  const auto dot = [&](const Values& a, int64_t a_token, int64_t head, const Values& b,
                       int64_t b_token) {
    double sum = 0.0;
    for (int64_t i = 0; i < head_dim; ++i) {
      sum += of(a, a_token, width, head, i) * of(b, b_token, kv_width, head / kGroup, i);
    }
    return sum;
  };
  const auto sequence_of = [&](int64_t token) {
    const auto end = std::upper_bound(cu_seqlens.begin(), cu_seqlens.end(), token);
    return std::pair<int64_t, int64_t>{*(end - 1), *end};
  };
  const auto head_of = [&](const std::vector<float>& values, int64_t head) {
    const auto first = values.begin() + head * head_dim;
    return std::vector<float>(first, first + head_dim);
  };

  std::vector<std::vector<float>> statistics;
  for (int64_t head = 0; head < kHeads; ++head) statistics.push_back(row(lse, head));
  for (const int64_t token : drawn(tokens, 5)) {
    const int64_t head = token % kHeads;
    const int64_t first = sequence_of(token).first;
    Doubles weights;
    double largest = -1e300;
    for (int64_t j = first; j <= token; ++j) {
      weights.push_back(scale * dot(q_values, token, head, k_values, j));
      largest = std::max(largest, weights.back());
    }
    double total = 0.0;
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    Doubles want(at(head_dim)), want_dq(at(head_dim));
    double delta = 0.0;
    for (int64_t j = first; j <= token; ++j) {
      double& weight = weights[at(j - first)];
      weight /= total;
      delta += weight * dot(dout_values, token, head, v_values, j);
      for (int64_t i = 0; i < head_dim; ++i) {
        want[at(i)] += weight * of(v_values, j, kv_width, head / kGroup, i);
      }
    }
    for (int64_t j = first; j <= token; ++j) {
      const double dscore =
          scale * weights[at(j - first)] * (dot(dout_values, token, head, v_values, j) - delta);
      for (int64_t i = 0; i < head_dim; ++i) {
        want_dq[at(i)] += dscore * of(k_values, j, kv_width, head / kGroup, i);
      }
    }
    // Of bf16, too, products are exact and sums f32.
    const double want_lse = largest + std::log(total);
    EXPECT_NEAR(static_cast<double>(statistics[at(head)][at(token)]), want_lse,
                std::min(tolerance, 1e-4 * std::max(1.0, std::abs(want_lse))))
        << token;
    EXPECT_LE(relative_error(head_of(row(out, token), head), want), tolerance) << token;
    // Of the first of a sequence it is nothing.
    if (token == first) continue;
    EXPECT_LE(relative_error(head_of(row(dq, token), head), want_dq), tolerance) << token;
  }

  std::vector<std::vector<float>> outs;
  for (int64_t token = 0; token < tokens; ++token) outs.push_back(row(out, token));
  for (const int64_t key : drawn(tokens, 6)) {
    const int64_t kv_head = key % kKvHeads;
    Doubles want_dk(at(head_dim)), want_dv(at(head_dim));
    for (int64_t head = kv_head * kGroup; head < (kv_head + 1) * kGroup; ++head) {
      for (int64_t token = key; token < sequence_of(key).second; ++token) {
        const double weight = std::exp(scale * dot(q_values, token, head, k_values, key) -
                                       static_cast<double>(statistics[at(head)][at(token)]));
        double delta = 0.0;
        for (int64_t i = 0; i < head_dim; ++i) {
          delta += of(dout_values, token, width, head, i) *
                   static_cast<double>(outs[at(token)][at(head * head_dim + i)]);
        }
        const double dscore =
            scale * weight * (dot(dout_values, token, head, v_values, key) - delta);
        for (int64_t i = 0; i < head_dim; ++i) {
          want_dk[at(i)] += dscore * of(q_values, token, width, head, i);
          want_dv[at(i)] += weight * of(dout_values, token, width, head, i);
        }
      }
    }
    EXPECT_LE(relative_error(head_of(row(dk, key), kv_head), want_dk), tolerance) << key;
    EXPECT_LE(relative_error(head_of(row(dv, key), kv_head), want_dv), tolerance) << key;
  }
  tensors_.clear();
}

TEST_F(GpuScale, Attention) {
  const std::vector<int32_t> cu_seqlens =
      is_real() ? std::vector<int32_t>{0, 1, 2049, 2114, 6200} : std::vector<int32_t>{0, 1, 70};
  for (const int64_t head_dim : {64, 128, 256}) {
    expect_attention<float>(head_dim, cu_seqlens, 2e-5);
    // Rounded by up to 2^-9 before every product; gradients are differences of such.
    expect_attention<bf16>(head_dim, cu_seqlens, 2e-2);
  }
}

// With the statistics and results of cuDNN's forward pass our backward pass goes on.
class GpuScaleCudnn : public GpuScale {
 protected:
  GpuScaleCudnn() : GpuScale(AttentionLibrary::cudnn) {}
};

TEST_F(GpuScaleCudnn, Attention) {
  const std::vector<int32_t> cu_seqlens =
      is_real() ? std::vector<int32_t>{0, 1, 2049, 2114, 6200} : std::vector<int32_t>{0, 1, 70};
  for (const int64_t head_dim : {64, 128, 256}) {
    expect_attention<bf16>(head_dim, cu_seqlens, 2e-2);
  }
}

template <class T>
void GpuScale::expect_loss(int64_t rows, int64_t vocab, double tolerance) {
  const Values values(7);
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < rows; ++i) labels.push_back(static_cast<int32_t>(i * 7919 % vocab));
  const Tensor logits = put<float>(values, rows, vocab);
  const Tensor gradient = take(DTypeOf<T>::value, rows, vocab);
  const Tensor losses = take(DType::f32, 1, rows);
  const Tensor targets = put(labels);
  StepScalars host{};
  host.inverse_targets = 1.0f / static_cast<float>(rows);
  const Tensor scalars = take(DType::u8, 1, sizeof(StepScalars));
  ops_->copy(scalars, Tensor(&host, DType::u8, {1, sizeof(StepScalars)}));
  ops_->launch(SoftmaxCrossEntropy<T>{logits.data<float>(), targets.data<int32_t>(),
                                      losses.data<float>(), gradient.data<T>(),
                                      static_cast<const StepScalars*>(scalars.raw()), vocab},
               rows);
  const std::vector<float> got_losses = row(losses, 0);
  for (const int64_t i : drawn(rows, 8)) {
    double total = 0.0;
    for (int64_t j = 0; j < vocab; ++j) {
      total += std::exp(static_cast<double>(values(i * vocab + j)));
    }
    Doubles want;
    for (int64_t j = 0; j < vocab; ++j) {
      const double share = std::exp(static_cast<double>(values(i * vocab + j))) / total;
      want.push_back((share - (j == labels[at(i)] ? 1.0 : 0.0)) / static_cast<double>(rows));
    }
    EXPECT_LE(relative_error(row(gradient, i), want), tolerance) << i;
    const double loss = std::log(total) - static_cast<double>(values(i * vocab + labels[at(i)]));
    EXPECT_NEAR(static_cast<double>(got_losses[at(i)]), loss, 1e-5) << i;
  }
  tensors_.clear();
}

TEST_F(GpuScale, LossOfAVocabulary) {
  const int64_t vocab = is_real() ? 151936 : 1500;
  const int64_t rows = is_real() ? 4096 : 20;
  expect_loss<float>(rows, vocab, 2e-6);
  expect_loss<bf16>(rows, vocab, 0x1p-8);
}

}  // namespace
}  // namespace jackscrew
