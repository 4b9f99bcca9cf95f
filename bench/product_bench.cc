// Speed and error of products beside f32's: y = x Wᵀ and dx = dy W, casts and rounding included,
// for the linears of SmolLM2-135M, of models of about 1B and 7B, and several storages of W.
//   product_bench [--isa=LEVEL] [--threads=N] [--clock=wall|cpu] [--only=TEXT]
// Products alternate, so that all see the same load of the machine; times are the best of their
// rounds, and only their ratios mean much. Errors are relative to the f32 product, in the Frobenius
// norm; x once with normal elements and once with six columns of thirty times that, as the inputs
// of trained models have. --only: cases whose name contains the text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bench/machine.h"
#include "kernels/cpu/cpu_ops.h"
#include "products/product.h"

namespace jackscrew {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kArenaBytes = int64_t{512} << 20;
constexpr int64_t kOutlierColumns = 6;
constexpr float kOutlier = 30.0f;

struct Shape {
  int64_t out, in;
};
constexpr Shape kShapes[] = {{576, 576},   {1536, 576},  {576, 1536},   {2048, 2048}, {8192, 2048},
                             {2048, 8192}, {4096, 4096}, {11008, 4096}, {4096, 11008}};
constexpr int64_t kTokens[] = {512, 1024};
constexpr const char* kStorages[] = {"f32", "bf16", "q8_0"};

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

double relative_difference(const Tensor& a, const Tensor& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a.data<float>()[i]);
    const auto y = static_cast<double>(b.data<float>()[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

class ProductBench {
 public:
  ProductBench(const BenchClock& clock, IsaLevel isa)
      : clock_(clock), ops_(make_cpu_ops(clock.threads, isa)) {
    for (const char* name : {"f32", "bf16", "int8"}) {
      if (std::string_view(name) != "bf16" || ops_->has_bf16()) {
        products_.push_back(&find_product(name, *ops_));
      }
    }
  }

  void run(const char* storage, const Shape& shape, int64_t tokens, std::string_view only) {
    const auto name = fmt::format("{}x{} {} {}", shape.out, shape.in, tokens, storage);
    if (name.find(only) == std::string::npos) return;
    const Format& format = find_format(storage);
    Weight weight(memory_, "the.weight", shape.out, shape.in, false, format);
    fill_weight(weight);
    const auto take = [&](int64_t rows, int64_t cols) {
      return OwnedTensor(memory_, Purpose::activations, DType::f32, {rows, cols});
    };
    const OwnedTensor x = take(tokens, shape.in);
    const OwnedTensor dy = take(tokens, shape.out);
    fill(x.view(), 2);
    fill(dy.view(), 3);
    const OwnedTensor exact_y = take(tokens, shape.out), exact_dx = take(tokens, shape.in);
    const OwnedTensor y = take(tokens, shape.out), dx = take(tokens, shape.in);

    std::vector<Times> best(products_.size());
    for (int round = 0; round <= kRounds; ++round) {
      for (size_t i = 0; i < products_.size(); ++i) {
        const Times now = measure(*products_[i], weight, x.view(), dy.view(), y.view(), dx.view());
        if (round == 0) continue;
        best[i].forward = std::min(best[i].forward, now.forward);
        best[i].backward = std::min(best[i].backward, now.backward);
      }
    }
    const double work = 2e-9 * static_cast<double>(tokens * weight.size());
    const Times& f32 = best[0];
    for (size_t i = 0; i < products_.size(); ++i) {
      const Product& product = *products_[i];
      fmt::print("{:>11} {:>5} {:>8}  {:>4}  {:>6.0f} {:>6.0f}  {:>5.2f} {:>5.2f} {:>5.2f}",
                 fmt::format("{}x{}", shape.out, shape.in), tokens, storage, product.name(),
                 work / best[i].forward, work / best[i].backward, f32.forward / best[i].forward,
                 f32.backward / best[i].backward,
                 (f32.forward + f32.backward) / (best[i].forward + best[i].backward));
      if (i == 0) {
        fmt::print("\n");
        continue;
      }
      measure(*products_[0], weight, x.view(), dy.view(), exact_y.view(), exact_dx.view());
      measure(product, weight, x.view(), dy.view(), y.view(), dx.view());
      const double y_error = relative_difference(y.view(), exact_y.view());
      const double dx_error = relative_difference(dx.view(), exact_dx.view());
      const OwnedTensor rough = take(tokens, shape.in);
      fill(rough.view(), 2);
      for (int64_t at = 0; at < rough.view().size(); ++at) {
        const int64_t column = at % shape.in;
        if (column % (shape.in / kOutlierColumns) == 7) rough.view().data<float>()[at] *= kOutlier;
      }
      measure(*products_[0], weight, rough.view(), dy.view(), exact_y.view(), exact_dx.view());
      measure(product, weight, rough.view(), dy.view(), y.view(), dx.view());
      fmt::print("  {:>6.2f} {:>6.2f} {:>6.2f}\n", 100 * y_error,
                 100 * relative_difference(y.view(), exact_y.view()), 100 * dx_error);
    }
    std::fflush(stdout);
  }

 private:
  struct Times {
    double forward = 1e30, backward = 1e30;  // seconds
  };

  void fill_weight(Weight& weight) {
    if (weight.format().can_encode()) {
      const OwnedTensor master(memory_, Purpose::masters, DType::f32,
                               {weight.rows(), weight.cols()});
      fill(master.view(), 1);
      weight.publish(*ops_, master.view());
      return;
    }
    // Blocks of random bytes behind a scale in f16.
    std::mt19937 random(1);
    auto* bytes = weight.storage().data<uint8_t>();
    for (int64_t i = 0; i < weight.storage().size(); ++i) bytes[i] = random() & 0xFF;
    const f16 scale = to_f16(0.01f);
    for (int64_t at = 0; at < weight.storage().size(); at += weight.format().block_bytes()) {
      std::memcpy(bytes + at, &scale, sizeof scale);
    }
  }

  Times measure(const Product& product, const Weight& weight, const Tensor& x, const Tensor& dy,
                const Tensor& y, const Tensor& dx) {
    const Arena::Frame frame(scratch_);
    Context context{*ops_, scratch_, &scalars_, true};
    const double begin = clock_.seconds();
    const Operand operand = product.prepare(context, x);
    product.forward(context, operand, weight, y, Accumulate::no);
    const double middle = clock_.seconds();
    product.backward(context, operand, dy, weight).add_dx(dx, Accumulate::no);
    return {middle - begin, clock_.seconds() - middle};
  }

  BenchClock clock_;
  std::unique_ptr<Ops> ops_;
  std::vector<const Product*> products_;
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, kArenaBytes};
  StepScalars scalars_{};
};

int run(int argc, char** argv) {
  BenchClock clock;
  std::string level = "auto";
  std::string_view only;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--isa=")) {
      level = argument.substr(6);
    } else if (argument == "--clock=cpu" || argument == "--clock=wall") {
      clock.cpu = argument == "--clock=cpu";
    } else if (argument.starts_with("--threads=")) {
      clock.threads = std::max(1, std::atoi(argv[i] + 10));
    } else if (argument.starts_with("--only=")) {
      only = argument.substr(7);
    } else {
      fail(ErrorKind::usage, "unknown argument {}", argument);
    }
  }
  const IsaLevel isa = choose_isa(level);
  ProductBench bench(clock, isa);
  fmt::print("{}, {} threads, {} time\n", isa_name(isa), clock.threads,
             clock.cpu ? "processor" : "elapsed");
  fmt::print("{:>11} {:>5} {:>8}  {:>4}  {:>13}  {:>17}  {:>20}\n", "", "", "", "", "GFLOP/s",
             "times f32", "error, %");
  fmt::print("{:>11} {:>5} {:>8}  {:>4}  {:>6} {:>6}  {:>5} {:>5} {:>5}  {:>6} {:>6} {:>6}\n",
             "weight", "T", "storage", "", "y", "dx", "y", "dx", "both", "y", "y out", "dx");
  for (const Shape& shape : kShapes) {
    for (const int64_t tokens : kTokens) {
      for (const char* storage : kStorages) bench.run(storage, shape, tokens, only);
    }
  }
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  try {
    return jackscrew::run(argc, argv);
  } catch (const jackscrew::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  }
}
