// Speed and error of the products of bytes beside f32's: y = x Wᵀ, dx = dy W and dW = dyᵀ x, all
// rounding, transforms, packing and decoding included, for the linears of small models, of
// SmolLM2-135M, of 1B and of 7B models.
//   product_bench [--isa=LEVEL] [--threads=N] [--clock=wall|cpu] [--only=TEXT] [--storages=TEXT]
// Ratios are to the f32 product over f32 storage; "same" is the ratio to the f32 product over the
// same storage, all three together. All cases of a shape alternate, so that they see the same load
// of the machine; times are the best of their rounds. Errors are those of the product alone,
// against f32 over the same storage, in the Frobenius norm: of y for normal x and for x with six
// columns of thirty times that, as trained models have, of dx and of dW. --only: shapes whose name
// contains the text; --storages: those whose name is in the text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
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
constexpr Shape kShapes[] = {{"small", 64, 64},   {"small", 128, 128}, {"small", 256, 256},
                             {"small", 384, 384}, {"135M", 576, 576},  {"135M", 1536, 576},
                             {"135M", 576, 1536}, {"1B", 2048, 2048},  {"1B", 8192, 2048},
                             {"1B", 2048, 8192},  {"7B", 4096, 4096},  {"7B", 11008, 4096},
                             {"7B", 4096, 11008}};
constexpr int64_t kTokens[] = {512, 1024};
constexpr const char* kStorages[] = {"f32", "bf16", "int8", "int8_row", "int8_affine", "nf4"};

struct Choice {
  const char* label;
  const char* product;
  std::initializer_list<std::pair<const char*, const char*>> options;
};
const Choice kChoices[] = {{"f32", "f32", {}},
                           {"int8", "int8", {}},
                           {"int8 dw", "int8", {{"int8_dw", "int8"}}},
                           {"w4a8", "w4a8", {}},
                           {"int4", "int4", {}}};

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
  double y = 1e30, dx = 1e30, dw = 1e30;  // seconds
  double all() const { return y + dx + dw; }
};

class ProductBench {
 public:
  ProductBench(const BenchClock& clock, IsaLevel isa)
      : clock_(clock), ops_(make_cpu_ops(clock.threads, isa)) {}

  void run(const Shape& shape, int64_t tokens, std::string_view storages) {
    const auto take = [&](int64_t rows, int64_t cols) {
      return OwnedTensor(memory_, Purpose::activations, DType::f32, {rows, cols});
    };
    std::vector<Weight> weights;
    {
      const OwnedTensor master = take(shape.out, shape.in);
      fill(master.view(), 1);
      for (const char* storage : kStorages) {
        if (std::string_view(storage) != "f32" && storages.find(storage) == std::string::npos)
          continue;
        weights.emplace_back(memory_, WeightSpec{"the.weight", shape.out, shape.in},
                             find_format(storage));
        weights.back().publish(*ops_, master.view(), {}, scratch_);
      }
    }
    const OwnedTensor x = take(tokens, shape.in), dy = take(tokens, shape.out);
    fill(x.view(), 2);
    fill(dy.view(), 3);
    const Results exact(memory_, shape, tokens), rounded(memory_, shape, tokens);
    std::vector<std::array<Times, std::size(kChoices)>> times(weights.size());
    for (int round = 0; round <= kRounds; ++round) {
      for (size_t i = 0; i < weights.size(); ++i) {
        for (size_t choice = 0; choice < std::size(kChoices); ++choice) {
          measure(choice, weights[i], x, dy, choice == 0 ? exact : rounded,
                  round > 0 ? &times[i][choice] : nullptr);
        }
      }
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      for (size_t choice = 1; choice < std::size(kChoices); ++choice) {
        print(shape, tokens, weights[i], choice, x, dy, exact, rounded, times[i], times[0][0]);
      }
    }
    std::fflush(stdout);
  }

 private:
  struct Results {
    Results(Memory& memory, const Shape& shape, int64_t tokens)
        : y(memory, Purpose::activations, DType::f32, {tokens, shape.out}),
          dx(memory, Purpose::activations, DType::f32, {tokens, shape.in}),
          dw(memory, Purpose::activations, DType::f32, {shape.out, shape.in}) {}
    OwnedTensor y, dx, dw;
  };

  void print(const Shape& shape, int64_t tokens, const Weight& weight, size_t choice,
             const OwnedTensor& x, const OwnedTensor& dy, const Results& exact,
             const Results& rounded, const std::array<Times, std::size(kChoices)>& of_weight,
             const Times& f32) {
    const auto compare = [&] {
      measure(0, weight, x, dy, exact, nullptr);
      measure(choice, weight, x, dy, rounded, nullptr);
      return percent_difference(rounded.y.view(), exact.y.view());
    };
    const double y_error = compare();
    const double dx_error = percent_difference(rounded.dx.view(), exact.dx.view());
    const double dw_error = percent_difference(rounded.dw.view(), exact.dw.view());
    raise_columns(x.view(), kOutlier);
    const double outlier_error = compare();
    raise_columns(x.view(), 1.0f / kOutlier);
    const double work = 2e-9 * static_cast<double>(tokens * weight.size());
    const Times& t = of_weight[choice];
    fmt::print(
        "{:>5} {:>11} {:>5} {:>12} {:>8}  {:>5.0f} {:>5.0f} {:>5.0f}  {:>5.2f} {:>5.2f} {:>5.2f}"
        " {:>5.2f} {:>5.2f}  {:>5.2f} {:>8.2f} {:>5.2f} {:>5.2f}\n",
        shape.model, fmt::format("{}x{}", shape.out, shape.in), tokens, weight.format().name(),
        kChoices[choice].label, work / t.y, work / t.dx, work / t.dw, f32.y / t.y, f32.dx / t.dx,
        f32.dw / t.dw, f32.all() / t.all(), of_weight[0].all() / t.all(), y_error, outlier_error,
        dx_error, dw_error);
  }

  static void raise_columns(const Tensor& x, float factor) {
    for (int64_t t = 0; t < x.rows(); ++t) {
      for (int64_t i = 0; i < kOutlierColumns; ++i) {
        x.data<float>()[t * x.cols() + x.cols() / kOutlierColumns * i + 7] *= factor;
      }
    }
  }

  std::unique_ptr<const Product> make(const Choice& choice) const {
    const ProductEntry& entry = find_product(choice.product);
    OptionSet options;
    options.add({entry.name, entry.options});
    for (const auto& [name, value] : choice.options) options.set(name, value, "benchmark");
    return entry.make(options, *ops_);
  }

  // Leaves dW alone; times are those of the calls that form y, dx and dW.
  void measure(size_t choice, const Weight& weight, const OwnedTensor& x, const OwnedTensor& dy,
               const Results& results, Times* best) {
    const auto product = make(kChoices[choice]);
    ops_->zero(results.dw.view());
    const Arena::Frame frame(scratch_);
    Context context{*ops_, scratch_, &scalars_, true};
    const double begin = clock_.seconds();
    const Operand operand = product->prepare(context, x.view());
    product->forward(context, operand, weight, results.y.view(), Accumulate::no);
    const double after_y = clock_.seconds();
    const Gradient g = product->backward(context, operand, dy.view(), weight);
    g.add_dx(results.dx.view(), Accumulate::no);
    const double after_dx = clock_.seconds();
    g.add_dw(results.dw.view());
    const double end = clock_.seconds();
    if (best == nullptr) return;
    best->y = std::min(best->y, after_y - begin);
    best->dx = std::min(best->dx, after_dx - after_y);
    best->dw = std::min(best->dw, end - after_dx);
  }

  BenchClock clock_;
  std::unique_ptr<Ops> ops_;
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, kArenaBytes};
  StepScalars scalars_{};
};

int run(std::vector<std::string> arguments) {
  const auto [clock, isa] = take_kernel_run(arguments);
  std::string only, storages;
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--only=")) {
      only = argument.substr(7);
    } else if (argument.starts_with("--storages=")) {
      storages = argument.substr(11);
    } else {
      fail(ErrorKind::usage, "unknown argument {}", argument);
    }
  }
  ProductBench bench(clock, isa);
  fmt::print("products of bytes, {}, {} threads, {} time\n", isa_name(isa), clock.threads,
             clock.name());
  fmt::print("{:>45}  {:>17}  {:>29}  {:>26}\n", "", "GFLOP/s", "times f32", "error, %");
  fmt::print(
      "{:>5} {:>11} {:>5} {:>12} {:>8}  {:>5} {:>5} {:>5}  {:>5} {:>5} {:>5} {:>5} {:>5}  {:>5}"
      " {:>8} {:>5} {:>5}\n",
      "model", "weight", "T", "storage", "product", "y", "dx", "dW", "y", "dx", "dW", "all", "same",
      "y", "outliers", "dx", "dW");
  for (const Shape& shape : kShapes) {
    const auto name = fmt::format("{} {}x{}", shape.model, shape.out, shape.in);
    if (name.find(only) == std::string::npos) continue;
    for (const int64_t tokens : kTokens) bench.run(shape, tokens, storages);
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
