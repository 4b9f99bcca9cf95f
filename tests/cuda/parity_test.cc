// Every op on the GPU beside the same on the CPU, all tensors in the device's memory.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "kernels/cpu/cpu_ops.h"
#include "quant/exl3.h"
#include "quant/format.h"
#include "quant/fp8.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/gpu.h"
#include "tests/support/rounded_token.h"

namespace jackscrew {
namespace {

// A device with tensors made from the same values on each.
class Side {
 public:
  explicit Side(const std::string& name, AttentionLibrary attention = AttentionLibrary::own)
      : device_(open_device(name, {.threads = 2,
                                   .isa = test_isa(),
                                   .environments = python_environments(),
                                   .attention = attention})),
        memory_("device", device_->make_backing(), 0),
        ops_(device_->make_ops(memory_)),
        scratch_(memory_, Purpose::workspace, int64_t{64} << 20) {}

  Ops& ops() { return *ops_; }
  Arena& scratch() { return scratch_; }

  template <class T>
  Tensor put(std::vector<T> values, int64_t rows, int64_t cols) {
    const Tensor to = tensors_
                          .emplace_back(memory_, Purpose::io, DTypeOf<T>::value,
                                        std::initializer_list<int64_t>{rows, cols})
                          .view();
    ops_->copy(to, Tensor(values.data(), to.dtype(), {rows, cols}));
    return to;
  }
  Tensor random(int64_t rows, int64_t cols, uint32_t seed) {
    return put(random_floats(rows * cols, seed), rows, cols);
  }
  template <class T = float>
  std::vector<T> get(const Tensor& from) {
    std::vector<T> out(at(from.size()));
    ops_->copy(Tensor(out.data(), DTypeOf<T>::value, {from.rows(), from.cols()}), from);
    return out;
  }

 private:
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Ops> ops_;
  Arena scratch_;
  std::deque<OwnedTensor> tensors_;
};

// Sums of f32 in another order.
constexpr double kTolerance = 2e-6;

// run(side) gives a list of results.
template <class Run>
void expect_parity(const Run& run, const std::string& what, double tolerance = kTolerance) {
  Side cpu("cpu");
  Side gpu("cuda:0");
  const auto wanted = run(cpu);
  const auto got = run(gpu);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_LE(relative_error(got[i], widen(wanted[i])), tolerance) << what << ", result " << i;
  }
}

using Results = std::vector<std::vector<float>>;

template <class T>
std::vector<T> converted(const std::vector<float>& values) {
  std::vector<T> out;
  for (const float value : values) out.push_back(from_float<T>(value));
  return out;
}

// c [m, n] within wider rows.
template <class T>
void expect_gemm_parity(bool ta, bool tb, Accumulate accumulate) {
  constexpr int64_t kM = 70, kN = 45, kK = 133;
  const auto run = [&](Side& side) {
    const auto operand = [&](int64_t rows, int64_t cols, uint32_t seed) {
      return side.put(converted<T>(random_floats(rows * (cols + 3), seed)), rows, cols + 3)
          .columns(0, cols);
    };
    const Tensor a = operand(ta ? kK : kM, ta ? kM : kK, 1);
    const Tensor b = operand(tb ? kN : kK, tb ? kK : kN, 2);
    const Tensor c = side.random(kM, kN + 5, 3);
    side.ops().gemm(a, Transpose{ta}, b, Transpose{tb}, c.columns(0, kN), accumulate);
    return Results{side.get(c)};
  };
  expect_parity(run, fmt::format("gemm {}{} of {} bytes", ta, tb, sizeof(T)));
}

// An addend apart from c: where its rows lie as those of c do, and where they do not.
TEST(GpuParity, GemmOntoAnotherTensor) {
  SKIP_WITHOUT_GPU();
  for (const int64_t gap : {0, 3}) {
    const auto run = [&](Side& side) {
      const Tensor a = side.random(70, 133, 1);
      const Tensor b = side.random(45, 133, 2);
      const Tensor addend = side.random(70, 45 + gap, 3).columns(0, 45);
      const Tensor c = side.random(70, 45, 4);
      side.ops().gemm_onto(addend, a, Transpose::no, b, Transpose::yes, c);
      return Results{side.get(c), side.get(addend)};
    };
    expect_parity(run, fmt::format("addend with gaps of {}", gap));
  }
}

TEST(GpuParity, GemmScaled) {
  SKIP_WITHOUT_GPU();
  const auto run = [&](Side& side) {
    const Tensor a = side.random(70, 133, 1);
    const Tensor b = side.random(16, 133, 2);
    const Tensor c = side.random(70, 16, 3);
    side.ops().gemm_scaled(0.3f, a, Transpose::no, b, Transpose::yes, c, side.scratch());
    return Results{side.get(c)};
  };
  expect_parity(run, "scaled gemm");
}

TEST(GpuParity, Gemm) {
  SKIP_WITHOUT_GPU();
  const bool bf16_too = make_cpu_ops(1, test_isa())->has_bf16();
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        expect_gemm_parity<float>(ta, tb, accumulate);
        if (bf16_too) expect_gemm_parity<bf16>(ta, tb, accumulate);
      }
    }
  }
}

// Rows of which none is aligned, whole blocks, and rows that end within what is copied at once.
TEST(GpuParity, GemmInt8) {
  SKIP_WITHOUT_GPU();
  struct Case {
    int64_t m, n, k, gap;  // gap: from the end of each row to the next
  };
  for (const Case& c : {Case{70, 45, 200, 0}, Case{256, 384, kInt8Depth + 192, 0},
                        Case{140, 136, 472, 8}, Case{131, 145, 607, 17}}) {
    for (const bool tb : {false, true}) {
      const auto run = [&](Side& side) {
        const auto codes = [&](int64_t rows, int64_t cols, uint32_t seed) {
          std::vector<int8_t> values;
          for (const float value : random_floats(rows * (cols + c.gap), seed)) {
            values.push_back(static_cast<int8_t>(value * 63.0f));
          }
          return side.put(values, rows, cols + c.gap).columns(0, cols);
        };
        const int64_t groups = ceil_div(c.k, kInt8Group);
        const Tensor out = side.random(c.m, c.n + c.gap, 3);
        side.ops().gemm_int8(
            {codes(c.m, c.k, 1), side.random(c.m, groups + c.gap, 4).columns(0, groups)},
            {codes(tb ? c.n : c.k, tb ? c.k : c.n, 2),
             tb ? side.random(1, c.n, 5).reshaped({c.n}) : Tensor()},
            Transpose{tb}, out.columns(0, c.n), Accumulate::yes, side.scratch());
        return Results{side.get(out)};
      };
      expect_parity(run, fmt::format("gemm_int8 {} x {} x {}", c.m, c.n, c.k), 0.0);  // same bits
    }
  }
}

// Every storage format is decoded to the same bits, whole, as rows of a list, and rounded to bf16;
// and its product of a single token is the same but for the order of sums, if the token is one that
// the CPU does not have to round. Where rows are whole groups of 32 it would round the numbers of
// NF4 and FP4 as well, and a token that int4_hadamard has transformed: theirs are not.
TEST(GpuParity, Formats) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kRows = 5, kCols = 768;
  std::vector<FormatPointer> formats;
  for (const Format* format : all_formats()) formats.push_back(unowned(*format));
  for (const PackedScale scale : {PackedScale::f16, PackedScale::bf16, PackedScale::f32}) {
    formats.push_back(make_fp8_format({scale, 2, 100}));
  }
  for (const Exl3Codebook book : {Exl3Codebook::plain, Exl3Codebook::mcg, Exl3Codebook::mul1}) {
    formats.push_back(make_exl3_format({128, kCols, 3, book}));
  }
  for (const FormatPointer& format : formats) {
    SCOPED_TRACE(format->name());
    const std::string name = format->name();
    const bool rounds_more =
        name.starts_with("nf4") || name.starts_with("fp4") || name == "int4_hadamard";
    const int64_t cols = rounds_more ? kCols - 8 : kCols;
    // Without this bit no number of a scale is infinite, wherever it lies.
    std::vector<uint8_t> bytes(at(format->storage_bytes(kRows, cols)));
    std::mt19937 random(1);
    for (uint8_t& byte : bytes) byte = random() & 0xBF;
    Results products;
    std::vector<std::vector<uint32_t>> decoded;
    for (const char* device : {"cpu", "cuda:0"}) {
      Side side(device);
      const auto size = static_cast<int64_t>(bytes.size());
      const Storage storage{side.put(bytes, 1, size).reshaped({size}), kRows, cols};
      const Tensor wide = side.random(kRows, cols, 1);
      format->decode(side.ops(), storage, 0, kRows, wide);
      const Tensor list = side.put(std::vector<int32_t>{4, 0, 4}, 1, 3).reshaped({3});
      const Tensor picked = side.random(3, cols, 2);
      format->gather(side.ops(), storage, list, picked);
      for (const Tensor& values : {wide, picked}) {
        std::vector<uint32_t> bits;
        for (const float value : side.get(values)) bits.push_back(float_bits(value));
        decoded.push_back(bits);
      }
      const Tensor narrow = side.put(std::vector<bf16>(at(kRows * cols)), kRows, cols);
      format->decode(side.ops(), storage, 0, kRows, narrow);
      std::vector<uint32_t> bits;
      for (const bf16 value : side.get<bf16>(narrow)) bits.push_back(value.bits);
      decoded.push_back(bits);
      const Tensor y = side.random(1, kRows, 3);
      const Tensor token = side.put(rounded_token(random_floats(cols, 4), {32767}), 1, cols);
      format->multiply(side.ops(), storage, token, y, Accumulate::yes, side.scratch());
      products.push_back(side.get(y));
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(decoded[i], decoded[i + 3]) << i;
    EXPECT_LE(relative_error(products[1], widen(products[0])), kTolerance);
  }
}

TEST(GpuParity, Attention) {
  SKIP_WITHOUT_GPU();
  struct Case {
    std::vector<int32_t> cu_q, cu_k;
    int64_t heads, kv_heads, head_dim;
  };
  for (const Case& c :
       {Case{{0, 1, 34, 100}, {0, 1, 34, 100}, 6, 2, 64}, Case{{0, 65}, {0, 65}, 2, 2, 128},
        Case{{0, 1, 8}, {0, 77, 90}, 4, 1, 52}}) {
    DType operands = DType::f32;
    const auto run = [&](Side& side) {
      const int64_t queries = c.cu_q.back();
      const int64_t keys = c.cu_k.back();
      const auto sequences = static_cast<int64_t>(c.cu_q.size()) - 1;
      const int64_t width = c.heads * c.head_dim;
      const int64_t kv_width = c.kv_heads * c.head_dim;
      const AttentionShape shape{side.put(c.cu_q, 1, sequences + 1).reshaped({sequences + 1}),
                                 side.put(c.cu_k, 1, sequences + 1).reshaped({sequences + 1}),
                                 sequences,
                                 c.heads,
                                 c.kv_heads,
                                 c.head_dim,
                                 0.3f,
                                 0,
                                 operands};
      const Tensor q = side.random(queries, width, 1);
      const Tensor k = side.random(keys, kv_width, 2);
      const Tensor v = side.random(keys, kv_width, 3);
      const Tensor out = side.random(queries, width, 4);
      const Tensor lse = side.random(c.heads, queries, 5);
      side.ops().attention_forward(shape, q, k, v, out, lse, side.scratch());
      Results results = {side.get(out), side.get(lse)};
      if (c.cu_q != c.cu_k) return results;
      const Tensor dout = side.random(queries, width, 6);
      const Tensor dq = side.random(queries, width, 7);
      const Tensor dk = side.random(keys, kv_width, 8);
      const Tensor dv = side.random(keys, kv_width, 9);
      side.ops().attention_backward(shape, q, k, v, out, lse, dout, dq, dk, dv, side.scratch());
      for (const Tensor& result : {dq, dk, dv}) results.push_back(side.get(result));
      return results;
    };
    expect_parity(run, fmt::format("attention, heads of {}", c.head_dim));
    // The CPU does not round, the GPU by up to 2^-9 before every product.
    operands = DType::bf16;
    expect_parity(run, fmt::format("attention in bf16, heads of {}", c.head_dim), 1e-2);
  }
}

// Beside our own on the same GPU: with a window, without, and rows apart.
TEST(GpuParity, CudnnAttention) {
  if (const auto missing = gpu_missing(AttentionLibrary::cudnn); !missing.empty()) {
    GTEST_SKIP() << missing;
  }
  const std::vector<int32_t> cu_seqlens = {0, 1, 34, 134, 300};
  constexpr int64_t kTokens = 300, kSequences = 4, kHeads = 6, kKvHeads = 2, kGap = 8;
  const auto run = [&](AttentionLibrary library, int64_t head_dim, int64_t window) {
    Side side("cuda:0", library);
    const auto rows = [&](int64_t heads, uint32_t seed) {
      const int64_t width = heads * head_dim;
      return side
          .put(converted<bf16>(random_floats(kTokens * (width + kGap), seed)), kTokens,
               width + kGap)
          .columns(0, width);
    };
    const Tensor ends = side.put(cu_seqlens, 1, kSequences + 1).reshaped({kSequences + 1});
    const AttentionShape shape{ends,     ends, kSequences, kHeads,     kKvHeads,
                               head_dim, 0.3f, window,     DType::bf16};
    const Tensor out = rows(kHeads, 4);
    const Tensor lse = side.random(kHeads, kTokens, 5);
    side.ops().attention_forward(shape, rows(kHeads, 1), rows(kKvHeads, 2), rows(kKvHeads, 3), out,
                                 lse, side.scratch());
    std::vector<float> values;
    for (const bf16 value : side.get<bf16>(out)) values.push_back(to_float(value));
    return Results{values, side.get(lse)};
  };
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t window : {0, 40}) {
      const Results own = run(AttentionLibrary::own, head_dim, window);
      const Results got = run(AttentionLibrary::cudnn, head_dim, window);
      // Both round probabilities to bf16 and the result as well.
      EXPECT_LE(relative_error(got[0], widen(own[0])), 1e-2) << head_dim << " " << window;
      EXPECT_LE(relative_error(got[1], widen(own[1])), 1e-4) << head_dim << " " << window;
    }
  }
}

}  // namespace
}  // namespace jackscrew
