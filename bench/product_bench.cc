// Speed and error of the int8 product beside f32's: y = x Wᵀ and dx = dy W, all rounding and
// decoding included, for the linears of SmolLM2-135M, of 1B and of 7B models.
//   product_bench [--isa=LEVEL] [--threads=N] [--clock=wall|cpu] [--only=TEXT]
// Ratios are to the f32 product over f32 storage; "same" is the ratio to the f32 product over the
// same storage, y and dx together. All cases of a shape alternate, so that they see the same load
// of the machine; times are the best of their rounds. Errors are those of the product alone,
// against f32 over the same storage, in the Frobenius norm: of y for normal x and for x with six
// columns of thirty times that, as trained models have, and of dx. --only: shapes whose name
// contains the text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string_view>
#include <vector>

#include "bench/machine.h"
#include "kernels/cpu/cpu_ops.h"
#include "products/product.h"

namespace jackscrew {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kArenaBytes = int64_t{512} << 20;
constexpr int64_t kOutlierColumns = 6;
constexpr float kOutlier = 30.0f;

struct Shape {
  const char* model;
  int64_t out, in;
};
constexpr Shape kShapes[] = {{"135M", 576, 576}, {"135M", 1536, 576}, {"135M", 576, 1536},
                             {"1B", 2048, 2048}, {"1B", 8192, 2048},  {"1B", 2048, 8192},
                             {"7B", 4096, 4096}, {"7B", 11008, 4096}, {"7B", 4096, 11008}};
constexpr int64_t kTokens[] = {512, 1024};
constexpr const char* kStorages[] = {"f32", "bf16", "int8", "int8_row", "int8_affine", "nf4"};

// Normal numbers, from a table: drawing each would take longer than the benchmark.
void fill(const Tensor& tensor, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> table(65536);
  for (float& value : table) value = normal(random);
  auto* data = tensor.data<float>();
  for (int64_t i = 0; i < tensor.size(); ++i) {
    data[i] = table[static_cast<size_t>((static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u) >> 48)];
  }
}

double percent_difference(const Tensor& a, const Tensor& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a.data<float>()[i]);
    const auto y = static_cast<double>(b.data<float>()[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return 100.0 * std::sqrt(difference / norm);
}

struct Times {
  double forward = 1e30, backward = 1e30;  // seconds
  double both() const { return forward + backward; }
};

class ProductBench {
 public:
  ProductBench(const BenchClock& clock, IsaLevel isa)
      : clock_(clock), ops_(make_cpu_ops(clock.threads, isa)) {}

  void run(const Shape& shape, int64_t tokens) {
    const auto take = [&](int64_t rows, int64_t cols) {
      return OwnedTensor(memory_, Purpose::activations, DType::f32, {rows, cols});
    };
    std::vector<Weight> weights;
    {
      const OwnedTensor master = take(shape.out, shape.in);
      fill(master.view(), 1);
      for (const char* storage : kStorages) {
        weights.emplace_back(memory_, WeightSpec{"the.weight", shape.out, shape.in},
                             find_format(storage));
        weights.back().publish(*ops_, master.view(), {}, scratch_);
      }
    }
    const OwnedTensor x = take(tokens, shape.in), dy = take(tokens, shape.out);
    const OwnedTensor y = take(tokens, shape.out), dx = take(tokens, shape.in);
    const OwnedTensor exact_y = take(tokens, shape.out), exact_dx = take(tokens, shape.in);
    fill(x.view(), 2);
    fill(dy.view(), 3);
    std::vector<Times> f32(weights.size()), int8(weights.size());
    for (int round = 0; round <= kRounds; ++round) {
      for (size_t i = 0; i < weights.size(); ++i) {
        measure("f32", weights[i], x, dy, exact_y, exact_dx, round > 0 ? &f32[i] : nullptr);
        measure("int8", weights[i], x, dy, y, dx, round > 0 ? &int8[i] : nullptr);
      }
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto compare = [&] {
        measure("f32", weights[i], x, dy, exact_y, exact_dx, nullptr);
        measure("int8", weights[i], x, dy, y, dx, nullptr);
        return percent_difference(y.view(), exact_y.view());
      };
      const double y_error = compare();
      const double dx_error = percent_difference(dx.view(), exact_dx.view());
      raise_columns(x.view(), kOutlier);
      const double outlier_error = compare();
      raise_columns(x.view(), 1.0f / kOutlier);
      const double work = 2e-9 * static_cast<double>(tokens * weights[i].size());
      fmt::print(
          "{:>5} {:>11} {:>5} {:>12}  {:>6.0f} {:>6.0f}  {:>5.2f} {:>5.2f} {:>5.2f} {:>5.2f}"
          "  {:>5.2f} {:>8.2f} {:>5.2f}\n",
          shape.model, fmt::format("{}x{}", shape.out, shape.in), tokens, kStorages[i],
          work / int8[i].forward, work / int8[i].backward, f32[0].forward / int8[i].forward,
          f32[0].backward / int8[i].backward, f32[0].both() / int8[i].both(),
          f32[i].both() / int8[i].both(), y_error, outlier_error, dx_error);
    }
    std::fflush(stdout);
  }

 private:
  static void raise_columns(const Tensor& x, float factor) {
    for (int64_t t = 0; t < x.rows(); ++t) {
      for (int64_t i = 0; i < kOutlierColumns; ++i) {
        x.data<float>()[t * x.cols() + x.cols() / kOutlierColumns * i + 7] *= factor;
      }
    }
  }

  void measure(const char* product_name, const Weight& weight, const OwnedTensor& x,
               const OwnedTensor& dy, const OwnedTensor& y, const OwnedTensor& dx, Times* best) {
    const auto product = find_product(product_name).make({}, *ops_);
    const Arena::Frame frame(scratch_);
    Context context{*ops_, scratch_, &scalars_, true};
    const double begin = clock_.seconds();
    const Operand operand = product->prepare(context, x.view());
    product->forward(context, operand, weight, y.view(), Accumulate::no);
    const double middle = clock_.seconds();
    product->backward(context, operand, dy.view(), weight).add_dx(dx.view(), Accumulate::no);
    const double end = clock_.seconds();
    if (best == nullptr) return;
    best->forward = std::min(best->forward, middle - begin);
    best->backward = std::min(best->backward, end - middle);
  }

  BenchClock clock_;
  std::unique_ptr<Ops> ops_;
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, kArenaBytes};
  StepScalars scalars_{};
};

int run(std::vector<std::string> arguments) {
  const auto [clock, isa] = take_kernel_run(arguments);
  std::string only;
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--only=")) fail(ErrorKind::usage, "unknown argument {}", argument);
    only = argument.substr(7);
  }
  ProductBench bench(clock, isa);
  fmt::print("int8 product, {}, {} threads, {} time\n", isa_name(isa), clock.threads, clock.name());
  fmt::print("{:>36}  {:>13}  {:>23}  {:>20}\n", "", "GFLOP/s", "times f32", "error, %");
  fmt::print("{:>5} {:>11} {:>5} {:>12}  {:>6} {:>6}  {:>5} {:>5} {:>5} {:>5}  {:>5} {:>8} {:>5}\n",
             "model", "weight", "T", "storage", "y", "dx", "y", "dx", "both", "same", "y",
             "outliers", "dx");
  for (const Shape& shape : kShapes) {
    const auto name = fmt::format("{} {}x{}", shape.model, shape.out, shape.in);
    if (name.find(only) == std::string::npos) continue;
    for (const int64_t tokens : kTokens) bench.run(shape, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  return jackscrew::guarded("product_bench", [&] {
    return jackscrew::run({argv + 1, argv + argc});
  });
}
